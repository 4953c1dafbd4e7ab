package session

import "time"

// hearOut waits, for a while, until what a client said before it closed its last connection has been read: a DISCONNECT, which says what
// becomes of the Will and the session, must not be overtaken by the CONNECT that it sent after it. A connection that is open is not waited for.
func (m *Manager) hearOut(client string) {
	var patience <-chan time.Time
	for {
		l := m.linkOf(client)
		if l == nil || !hungUp(l.raw) {
			return
		}
		if patience == nil {
			patience = time.After(2 * time.Second)
		}
		select {
		case <-m.goneOf(l):
		case <-patience:
			return
		}
	}
}

// linkOf returns the connection of a client's session, nil if there is none.
func (m *Manager) linkOf(client string) *Link {
	m.mu.Lock()
	s := m.sessions[client]
	m.mu.Unlock()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link
}

// goneOf returns a channel that is closed when the link has ended, its reader too.
func (m *Manager) goneOf(l *Link) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return l.awaited()
}

// awaited returns a channel that is closed when the link has ended, its reader too; Manager.mu is held.
func (l *Link) awaited() <-chan struct{} {
	if l.gone == nil {
		if l.gone = make(chan struct{}); l.over {
			close(l.gone)
		}
	}
	return l.gone
}
