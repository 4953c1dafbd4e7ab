// Package session holds what MQTT calls a session, and the connection that serves it at the moment.
//
// A Session outlives connections: its subscriptions are a feed, its attachments are memberships in queues' feeds, and
// what it was sent and has not acknowledged is in its flights. A Link is one connection's side: the publishes that
// come in go to the store a whole read at a time, and one writer goroutine, which exists only while there
// is something to write, sends answers and deliveries. The Manager knows all sessions and moves them from link to link.
//
// Locks are taken in this order: Manager.mu, Session.mu, then those of package feed; Link.mu is a leaf.
package session

import (
	"sync"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// Never is the session expiry interval that means the session does not expire. [MQTT-3.1.2.11.2]
const Never = 0xFFFFFFFF

// Session is the state of one client. Its methods are safe for concurrent use.
type Session struct {
	m      *Manager
	id     string
	client uint32 // the store's number for id
	// durable sessions outlive their connection; it is set by the CONNECT that began the session and by no other.
	durable bool

	mu      sync.Mutex
	link    *Link // nil while offline
	expiry  uint32
	offline time.Time // since when, if link is nil
	ended   bool
	subs    map[string]subscription // by filter, as the client wrote it
	own     *feed.Feed              // of the ordinary subscriptions; nil while there never were any
	members []*membership
	next    int // whose turn it is to be asked first
	flights flights
	resend  resends
	lastID  uint16

	// rxMu guards received. It is a leaf: the committer takes it.
	rxMu sync.Mutex
	// received has the packet ids of QoS 2 publishes whose PUBREL has not come, and the link on which
	// each came, nil if that was before a restart. [MQTT-4.3.3-10]
	received map[uint16]*Link
}

// subscription is one filter of a session.
type subscription struct {
	packet.Subscription
	ID   uint32 // Subscription Identifier, 0 for none
	From uint64 // of an ordinary one: where it holds from
}

// membership is a session's place in a feed while it is connected.
type membership struct {
	*feed.Member
	f     *feed.Feed
	queue string // "" for the session's own feed
	qos   byte
}

// ID returns the client id.
func (s *Session) ID() string { return s.id }

// feedID is the name of the session's own feed.
func feedID(client string) string { return "s/" + client }

// ownFeed returns the session's own feed, which it opens at the first subscription; mu is held.
func (s *Session) ownFeed() (*feed.Feed, error) {
	if s.own != nil {
		return s.own, nil
	}
	client, err := s.m.log.ClientID(s.id, s.durable)
	if err != nil {
		return nil, err
	}
	s.client = client
	f, err := s.m.hub.Open(feedID(s.id), feed.Options{
		Durable: s.durable,
		Local:   s.client,
		Start:   feed.Now,
		Fresh:   true,
		MaxLag:  s.lagLimit(),
		Overrun: s.overrun,
	})
	if err != nil {
		return nil, err
	}
	s.own = f
	if s.link != nil {
		s.join(f, "", 2)
	}
	return f, nil
}

// lagLimit returns how far the session's own feed may fall behind; a durable session may for ever.
func (s *Session) lagLimit() feed.Lag {
	if s.durable {
		return feed.Lag{}
	}
	return s.m.opt.MaxLag
}

// overrun ends the connection of a client that cannot keep up and has no session to keep its place.
func (s *Session) overrun() {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l != nil {
		l.Kick(packet.CodeQuotaExceeded, "subscriber is too far behind (session.max_lag)")
	}
}

// join makes the session a member of a feed; mu is held and a link is there.
func (s *Session) join(f *feed.Feed, queue string, qos byte) {
	m := &membership{f: f, queue: queue, qos: qos}
	m.Member = f.Join(s.link, qos)
	s.members = append(s.members, m)
}

// leave ends all memberships; mu is held.
func (s *Session) leave() {
	for _, m := range s.members {
		m.Leave()
	}
	s.members = nil
	for i := range s.flights.slots {
		if fl := &s.flights.slots[i]; fl.m != nil {
			s.resend.add(flightKey{fl.m.f.ID(), fl.offset}, resend{fl.id, fl.stage})
		}
	}
	s.flights.clear()
}

// Subscribe carries out a SUBSCRIBE and returns its reason codes. What is granted to a durable session is on disk when
// it returns.
func (s *Session) Subscribe(l *Link, p *packet.Subscribe) (codes []byte, reason string) {
	codes = make([]byte, len(p.Filters))
	wait := newWaiter()
	s.mu.Lock()
	if s.link != l {
		s.mu.Unlock()
		return nil, ""
	}
	var muts []store.Mutation
	for i, sub := range p.Filters {
		code, why := s.subscribe(subscription{Subscription: sub, ID: p.SubscriptionID}, &muts, wait)
		codes[i] = code
		if why != "" {
			reason = why
		}
	}
	if len(muts) > 0 {
		wait.add()
		if err := s.m.hub.Save(muts, wait, s.own); err != nil {
			wait.Committed(0, err)
		}
	}
	s.mu.Unlock()
	if err := wait.wait(); err != nil {
		for i := range codes {
			if codes[i] < packet.CodeUnspecified {
				codes[i] = codeOf(err)
			}
		}
		return codes, err.Error()
	}
	return codes, reason
}

// Unsubscribe carries out an UNSUBSCRIBE and returns its reason codes.
func (s *Session) Unsubscribe(l *Link, filters []string) (codes []byte, reason string) {
	codes = make([]byte, len(filters))
	wait := newWaiter()
	s.mu.Lock()
	if s.link != l {
		s.mu.Unlock()
		return nil, ""
	}
	var muts []store.Mutation
	for i, filter := range filters {
		codes[i] = s.unsubscribe(filter, &muts, wait)
	}
	if len(muts) > 0 {
		wait.add()
		if err := s.m.hub.Save(muts, wait, s.own); err != nil {
			wait.Committed(0, err)
		}
	}
	s.mu.Unlock()
	if err := wait.wait(); err != nil {
		for i := range codes {
			codes[i] = codeOf(err)
		}
		return codes, err.Error()
	}
	return codes, ""
}

// save returns the changes of state that make a subscription durable.
func (s *Session) saveSub(sub subscription) store.Mutation {
	return record.Put(record.BucketSubscriptions, subKey(s.id, sub.Filter), appendSubscription(nil, sub))
}
