package session

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
)

// codeAdministrative is the reason code for what an administrator did.
const codeAdministrative = 0x98

// ErrNoSession means that no client of that id has a session, or, for Disconnect, that it has no connection.
var ErrNoSession = errors.New("no such session")

// Info describes a session at one moment.
type Info struct {
	ID            string
	Connected     bool
	Remote        string         // if Connected
	User          string         // whose it is; "" for nobody in particular
	Version       packet.Version // if Connected
	Since         time.Time      // of the connection, or of being offline; zero if that is not known
	Durable       bool
	Expiry        uint32 // seconds; Never for none
	Will          bool
	Subscriptions []Subscription
	InFlight      int // sent and not acknowledged
	Receiving     int // QoS 2 publishes from it that are not released
	own           *feed.Feed
}

// Subscription is one filter of a session, as the client wrote it.
type Subscription struct {
	Filter string
	QoS    byte
	ID     uint32 // 0 for none
}

// Backlog counts what the session's ordinary subscriptions have yet to settle.
func (i *Info) Backlog() (feed.Backlog, error) {
	if i.own == nil {
		return feed.Backlog{}, nil
	}
	return i.own.Backlog()
}

// Sessions describes all sessions, sorted by client id.
func (m *Manager) Sessions() []Info {
	m.mu.Lock()
	all := make([]*Session, 0, len(m.sessions))
	for _, s := range m.sessions {
		all = append(all, s)
	}
	m.mu.Unlock()
	infos := make([]Info, 0, len(all))
	for _, s := range all {
		infos = append(infos, s.info())
	}
	slices.SortFunc(infos, func(a, b Info) int { return cmp.Compare(a.ID, b.ID) })
	return infos
}

// Session describes one session.
func (m *Manager) Session(id string) (Info, error) {
	m.mu.Lock()
	s := m.sessions[id]
	m.mu.Unlock()
	if s == nil {
		return Info{}, ErrNoSession
	}
	return s.info(), nil
}

func (s *Session) info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := Info{
		ID: s.id, Durable: s.durable, Expiry: s.expiry, Will: s.will != nil, Since: s.offline, InFlight: s.flights.n, own: s.own, User: s.user,
	}
	if s.link != nil {
		i.Connected, i.Remote, i.Version, i.Since = true, s.link.Remote, s.link.Version, s.link.since
	}
	for sub := range s.subs.All() {
		i.Subscriptions = append(i.Subscriptions, Subscription{sub.Filter, sub.QoS, sub.ID})
	}
	slices.SortFunc(i.Subscriptions, func(a, b Subscription) int { return cmp.Compare(a.Filter, b.Filter) })
	s.rxMu.Lock()
	i.Receiving = len(s.received)
	s.rxMu.Unlock()
	return i
}

// Disconnect ends a client's connection. Its session stays, as its expiry says, and its Will is published.
func (m *Manager) Disconnect(id, reason string) error {
	m.mu.Lock()
	s := m.sessions[id]
	m.mu.Unlock()
	if s == nil {
		return ErrNoSession
	}
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l == nil {
		return ErrNoSession
	}
	l.Kick(codeAdministrative, reason)
	return nil
}

// Delete ends a session, and its connection if it has one: subscriptions and what waits for it are gone.
func (m *Manager) Delete(id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[id]
	if s == nil {
		return ErrNoSession
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.link; l != nil {
		s.release()
		l.Kick(codeAdministrative, "the session was deleted")
		s.willOnReturn(true, true)
	}
	m.end(s)
	return nil
}

// Connection describes an open connection, whose CONNECT may not have come yet.
type Connection struct {
	Client  string // "" before CONNECT
	Remote  string
	Version packet.Version
	Since   time.Time
}

// Connections describes all open connections, the oldest first.
func (m *Manager) Connections() []Connection {
	var cs []Connection
	for _, l := range m.links.list() {
		c := Connection{Remote: l.Remote, Since: l.since}
		if s := l.session.Load(); s != nil {
			c.Client, c.Version = s.id, l.Version
		}
		cs = append(cs, c)
	}
	slices.SortFunc(cs, func(a, b Connection) int { return a.Since.Compare(b.Since) })
	return cs
}

// Subscriptions counts the subscriptions of all sessions, shared ones among them.
func (m *Manager) Subscriptions() (all, shared int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sessions {
		s.mu.Lock()
		all += s.subs.Len()
		shared += len(s.shares)
		s.mu.Unlock()
	}
	return all, shared
}

// Retained counts the retained messages.
func (m *Manager) Retained() int { return m.retained.len() }

// Received counts bytes that came in on the connection.
func (l *Link) Received(n int) {
	if l != nil && l.m != nil { // tests read without a broker
		l.m.bytesIn.Add(int64(n))
	}
}
