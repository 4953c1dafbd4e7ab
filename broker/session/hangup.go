package session

import "time"

// hearOut waits, for a while, until what a client said before it closed its last connection has been read: a DISCONNECT, which says what
// becomes of the Will and the session, must not be overtaken by the CONNECT that it sent after it. A connection that is open is not waited for.
func (m *Manager) hearOut(client string) {
	for patience := 2 * time.Second; patience > 0; patience -= time.Millisecond {
		m.mu.Lock()
		s := m.sessions[client]
		m.mu.Unlock()
		if s == nil {
			return
		}
		s.mu.Lock()
		l := s.link
		s.mu.Unlock()
		if l == nil || !hungUp(l.raw) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
