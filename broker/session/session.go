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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// Never is the session expiry interval that means the session does not expire. [MQTT-3.1.2.11.2]
const Never = 0xFFFFFFFF

// Session is the state of one client. Its methods are safe for concurrent use.
type Session struct {
	m  *Manager
	id string
	// durable sessions outlive their connection; it is set by the CONNECT that began the session and by no other.
	durable bool

	mu      sync.Mutex
	unsaved bool  // it is not in the state yet, see newborn.go
	link    *Link // nil while offline
	expiry  uint32
	offline time.Time // since when, if link is nil
	user    string    // whose it is; "" if its client came without a name
	ended   bool
	subs    topic.Filters[subscription]
	own     *feed.Feed            // of the ordinary subscriptions; nil while there never were any
	shares  map[string]*feed.Feed // of the shared ones, by the filter as written
	solos   map[string]*feed.Feed // of those that have one to themselves
	will    *will                 // nil if there is none
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
	// Retained says that retained messages are still to be sent for it, in the order of their topics, After being the last that is done with.
	Retained bool
	After    string
	Replay   bool // from a start of the client's choice: deliveries carry stamps
}

// Key implements topic.Filtered: the filter as the client wrote it.
func (s subscription) Key() string { return s.Filter }

// source is where deliveries come from: a place in a feed, or the retained messages of a subscription.
type source interface {
	Take(dst []feed.Item, maxItems, maxBytes int) []feed.Item
	Settle(seqs ...uint64)
	SetQoS(qos byte)
	Leave()
}

// membership is a source of a session while it is connected.
type membership struct {
	source
	key      string     // names the source across connections
	f        *feed.Feed // nil for retained messages
	filter   string     // the subscription it serves; "" for the session's own feed
	queue    bool       // of a queue: a refusal has a meaning
	stamps   bool       // deliveries carry @Offset and the like
	envelope bool       // deliveries have their properties in the payload ($v5/)
	retained *retainedSource
	// A queue's member that is told when it has caught up: up to which offset that is, 0 once it has been told, and where.
	mark  atomic.Uint64 // set by SUBSCRIBE, cleared by the writer
	topic string        // $queue/<name>
	served
}

// served is whose subscription deliveries are made for: one of a feed with many members is the member's alone, and so are
// its identifier and options. A SUBSCRIBE changes it with Session.mu held.
type served struct {
	alone bool
	ids   []uint32
	rap   bool // retain as published
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
	f, err := s.m.hub.Open(feedID(s.id), feed.Options{
		Durable: s.durable,
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
		s.join(f, nil, topic.Filter{}, false)
	}
	return f, nil
}

// local returns the client's number for a feed that is to leave out the client's own messages, 0 if it is not: who never publishes needs
// no number in the store.
func (s *Session) local(noLocal bool) (uint32, error) {
	if !noLocal {
		return 0, nil
	}
	return s.m.log.ClientID(s.id, s.durable)
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

// join makes the session a member of a feed that serves one subscription, sub, which flt is taken apart, or of its own
// feed if sub is nil; mu is held and a link is there.
func (s *Session) join(f *feed.Feed, sub *subscription, flt topic.Filter, stamps bool) {
	m := &membership{f: f, key: f.ID(), queue: flt.Queue != "", stamps: stamps, envelope: flt.V5}
	if flt.Queue != "" {
		m.topic = topic.QueuePrefix + flt.Queue
		if flt.V5 {
			m.mark.Store(s.m.log.Next())
		}
	}
	qos := byte(2)
	if sub != nil {
		qos = sub.QoS
		m.serve(*sub)
	}
	m.source = f.Join(s.link, qos)
	s.members = append(s.members, m)
}

// serve notes whose subscription the membership serves.
func (m *membership) serve(sub subscription) {
	m.filter, m.served = sub.Filter, served{alone: true, rap: sub.RetainAsPublished}
	if sub.ID != 0 {
		m.ids = []uint32{sub.ID}
	}
}

// member returns the membership that serves a subscription with a feed of its own, nil if there is none; mu is held.
func (s *Session) member(filter string) *membership {
	for _, m := range s.members {
		if m.filter == filter && m.retained == nil {
			return m
		}
	}
	return nil
}

// leave ends all memberships; mu is held.
func (s *Session) leave() {
	for _, m := range s.members {
		if sub, ok := s.subs.Get(m.filter); ok && m.retained != nil {
			sub.After, _ = m.retained.progress()
			s.subs.Set(sub)
		}
		s.keepApart(m)
		m.Leave()
	}
	s.members = nil
	for i := range s.flights.slots {
		if fl := &s.flights.slots[i]; fl.m != nil {
			s.resend.add(flightKey{fl.m.key, fl.offset}, resend{fl.id, fl.stage})
		}
	}
	s.flights.clear()
}

// Subscribe carries out a SUBSCRIBE and returns its reason codes. What is granted to a durable session is on disk when
// it returns, or will be there with the session or not at all (see newborn.go).
func (s *Session) Subscribe(l *Link, p *packet.Subscribe) (codes []byte, reason string) {
	codes = make([]byte, len(p.Filters))
	c := &change{wait: newWaiter()}
	start, err := streamOffset(p)
	if err != nil {
		for i := range codes {
			codes[i] = codeOf(err)
		}
		return codes, err.Error()
	}
	more, reason, ok := s.subscribeAll(l, p, start, codes, c)
	if !ok {
		return nil, ""
	}
	if err := c.wait.wait(); err != nil {
		for i := range codes {
			if codes[i] < packet.CodeUnspecified {
				codes[i] = codeOf(err)
			}
		}
		return codes, err.Error()
	}
	if more { // retained messages to be sent, perhaps, or a mark
		l.Wake()
	}
	return codes, reason
}

// subscribeAll carries out what a SUBSCRIBE asks for, but for waiting for the disk. It reports false if the session is not the link's
// any more, and whether there may be something to send that no feed announces.
func (s *Session) subscribeAll(l *Link, p *packet.Subscribe, start *topic.Start, codes []byte, c *change) (more bool, reason string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l {
		return false, "", false
	}
	for i, sub := range p.Filters {
		if sub.Filter == wire.Receipts {
			l.receipts.Store(true)
			continue // granted, at QoS 0
		}
		code, note, err := s.subscribe(subscription{Subscription: sub, ID: p.SubscriptionID}, start, c)
		if codes[i] = code; err != nil {
			codes[i], note = codeOf(err), reasonOf(err)
		}
		if note != "" {
			reason = note
		}
	}
	s.commit(c)
	more = slices.ContainsFunc(s.members, func(m *membership) bool { return m.retained != nil || m.mark.Load() > 0 })
	return more, reason, true
}

// Unsubscribe carries out an UNSUBSCRIBE and returns its reason codes.
func (s *Session) Unsubscribe(l *Link, filters []string) (codes []byte, reason string) {
	codes = make([]byte, len(filters))
	c := &change{wait: newWaiter()}
	if !s.unsubscribeAll(l, filters, codes, c) {
		return nil, ""
	}
	if err := c.wait.wait(); err != nil {
		for i := range codes {
			codes[i] = packet.CodeFor(packet.TypeUnsuback, codeOf(err))
		}
		return codes, err.Error()
	}
	return codes, ""
}

// unsubscribeAll carries out what an UNSUBSCRIBE asks for, but for waiting for the disk. It reports false if the session is not the
// link's any more.
func (s *Session) unsubscribeAll(l *Link, filters []string, codes []byte, c *change) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l {
		return false
	}
	for i, filter := range filters {
		if filter == wire.Receipts {
			if !l.receipts.Swap(false) {
				codes[i] = packet.CodeNoSubscription
			}
			continue
		}
		codes[i] = packet.CodeFor(packet.TypeUnsuback, s.unsubscribe(filter, l.allowed(), c))
	}
	s.commit(c)
	return true
}

// commit appends a change, if it changes anything; mu is held.
func (s *Session) commit(c *change) {
	if len(c.muts) == 0 {
		return
	}
	c.wait.add()
	feeds, soon := append(c.feeds, s.own), s.unsaved && s.ordinary()
	if s.unsaved {
		c.muts = append(c.muts, s.mutation())
	}
	var err error
	if soon {
		err = s.m.hub.SaveSoon(c.muts, feeds...)
	} else {
		err = s.m.hub.Save(c.muts, c.wait, feeds...)
	}
	if err != nil || soon {
		c.wait.Committed(0, err)
	}
	if err == nil {
		s.unsaved = false
	}
}

// saveSub returns the change of state that makes a subscription durable.
func (s *Session) saveSub(sub subscription) store.Mutation {
	return record.Put(record.BucketSubscriptions, subKey(s.id, sub.Filter), appendSubscription(nil, sub))
}
