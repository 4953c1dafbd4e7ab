package session

import (
	"fmt"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/store"
)

// A durable session that begins is not saved at once but with the first SUBSCRIBE, in one append, if that is the first thing its
// client asks for. Then the SUBACK need not wait for the disk, nor the disk be asked at once (store.AppendSoon). There are three places for a crash:
//
//  1. Before the append is on disk: neither session nor subscription is there. The client comes back, is told that there is no
//     session (Session Present 0), and subscribes anew. Nothing is missing that anybody was promised: what was acknowledged to a
//     publisher after the SUBACK lies behind the append in the journal, and is not on disk before it.
//  2. While it is being written: an append is there whole or not at all, which is 1 or 3.
//  3. After: the session is there with what was granted.
//
// What must not be is a session without a subscription that was granted, since its client is told that the session is
// there and does not subscribe again. So a SUBSCRIBE that comes later waits for its commit, and so does one that
// changes more than the session (a queue, a group). Whatever else the client sends first has the session saved before it, so
// that what it is answered implies that the session will be there. A Will is saved with its session, and waited for. Of a client that
// sends nothing, the session is saved after a tick or two of Manager.Run.

// newborn notes that a session is to be saved; Manager.mu and s.mu are held.
func (m *Manager) newborn(s *Session) {
	s.unsaved = true
	m.unsaved = append(m.unsaved, s)
}

// Enter has a new session saved before what its client has sent is dealt with.
func (l *Link) Enter() error {
	s := l.Session()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(); err != nil {
		return &packet.Error{Code: codeOf(err), Msg: err.Error()}
	}
	return nil
}

// enter saves the session if it is not saved yet; mu is held.
func (s *Session) enter() error {
	if !s.unsaved || s.ended {
		return nil
	}
	if err := s.m.hub.SaveSoon([]store.Mutation{s.mutation()}); err != nil {
		return fmt.Errorf("save session: %w", err)
	}
	s.unsaved = false
	return nil
}

// enterAll saves the sessions that had begun when it was last called.
func (m *Manager) enterAll() {
	m.mu.Lock()
	all := m.slow
	m.slow, m.unsaved = m.unsaved, nil
	m.mu.Unlock()
	for _, s := range all {
		s.mu.Lock()
		if err := s.enter(); err != nil {
			m.logger.Warn("saving a new session failed, it is saved when its connection ends", "client", s.id, "err", err)
		}
		s.mu.Unlock()
	}
}

// ordinary tells whether the session has nothing but ordinary subscriptions; mu is held.
func (s *Session) ordinary() bool {
	for _, m := range s.members {
		if m.retained == nil && m.f != s.own {
			return false
		}
	}
	return true
}

// fed tells whether there is anything that deliveries could come from.
func (s *Session) fed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.members) > 0
}
