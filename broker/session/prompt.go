package session

import (
	"strings"

	"github.com/edgemq/edgemq/broker/packet"
)

// What a client asks for is prompt if nobody has to wait for it: not for the disk, not for another connection, not for the processor for
// long. The loop that waits for all clients (package poll) does what is prompt; everything else needs a goroutine. Being wrong about it costs time and nothing
// else.

// fewSubs is how many subscriptions there may be for something to be prompt.
const fewSubs = 8

// PromptLogin tells whether letting the client of a CONNECT in is prompt.
func (m *Manager) PromptLogin(l *Link, d Door) bool {
	c := l.Connect
	switch {
	case c.Will != nil: // it is on disk before the CONNACK
		return false
	case len(c.User) > 0: // an @Epoch, perhaps
		return false
	case d.Certificate == "" && c.HasUsername && m.opt.Auth.HasUsers(): // a password takes its time
		return false
	}
	m.mu.Lock()
	s, others := m.sessions[c.ClientID], len(m.taken[c.ClientID])
	m.mu.Unlock()
	return others == 0 && (s == nil || s.promptReturn()) && m.log.Roomy()
}

// promptReturn tells whether a client can be given the session back, or have it ended, promptly.
func (s *Session) promptReturn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link == nil && s.will == nil && len(s.resend.byKey) == 0 && s.small()
}

// small tells whether the session has a few ordinary subscriptions and no more; mu is held.
func (s *Session) small() bool {
	if s.subs.Len() > fewSubs {
		return false
	}
	for sub := range s.subs.All() {
		if sub.Replay || sub.Retained || strings.HasPrefix(sub.Filter, "$") {
			return false
		}
	}
	return true
}

// PromptSubscribe tells whether a SUBSCRIBE is prompt: one for ordinary subscriptions, and of a session that is saved with them (see newborn.go) or not at all.
func (s *Session) PromptSubscribe(p *packet.Subscribe) bool {
	if len(p.Filters) > fewSubs || len(p.User) > 0 {
		return false
	}
	for _, f := range p.Filters {
		if f.NoLocal || strings.HasPrefix(f.Filter, "$") {
			return false
		}
	}
	s.mu.Lock()
	prompt := (s.unsaved || !s.durable) && s.small()
	s.mu.Unlock()
	return prompt && s.m.log.Roomy()
}

// Prompt tells whether an answer to something small can be given, and noted, without waiting.
func (l *Link) Prompt() bool {
	l.mu.Lock()
	room := len(l.out) <= maxUnsent
	l.mu.Unlock()
	return room && l.m.log.Roomy()
}

// PromptEnd tells whether ending the connection (Drain, Close, Manager.Detach) is prompt.
func (l *Link) PromptEnd() bool {
	if l.Draining() {
		return false
	}
	s := l.session.Load()
	if s == nil {
		return true
	}
	s.mu.Lock()
	prompt := s.will == nil && s.small()
	s.mu.Unlock()
	return prompt && l.m.log.Roomy()
}
