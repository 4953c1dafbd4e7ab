package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/broker/auth"
	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// Options are what the broker lets sessions do. Every field is set by the broker.
type Options struct {
	MaxExpiry         uint32 // seconds; Never allows any
	V3Expiry          uint32 // of 3.1.1 sessions that are not clean
	Window            int    // unacknowledged deliveries to a 3.1.1 client
	MaxWindow         int    // to an MQTT 5 client, whose Receive Maximum may be lower
	WindowBytes       int    // and their bytes
	MaxLag            feed.Lag
	ReceiveMaximum    int // unacknowledged publishes of an MQTT 5 client
	TopicAliasMaximum int
	MaxQoS            byte
	NoRetain          bool // no messages are retained, and none sent
	Topics            topic.Limits
	StoreQoS0         bool
	DedupWindow       time.Duration           // how long a publisher's @MessageIds are remembered; 0 turns it off
	DedupCount        int                     // and how many of them
	DedupTotal        int                     // of all publishers
	Exclude           func(topic string) bool // whose messages go to live subscribers only; nil for none
	System            System                  // may be nil
	Auth              *auth.Authority         // may be nil
}

// Manager knows every session and every link.
type Manager struct {
	log    *store.Store
	hub    *feed.Hub
	queues *feed.Queues
	shares *feed.Shares
	opt    Options
	logger *slog.Logger

	mu       sync.Mutex
	sessions map[string]*Session
	unsaved  []*Session // have begun and may still be to be saved
	slow     []*Session // likewise, since a tick ago
	// taken are the connections, by client, that others took over from and whose readers are not done.
	taken map[string][]*Link

	retained  retainer
	exclusive exclusives
	delayed   delayed
	dedup     dedup
	hosts     hosts
	epochs    epochs
	orphansMu sync.Mutex
	orphans   []*orphan

	links   links
	refs    refs
	workers workers
	writers crew // links that are being written to, and workers

	due atomic.Int64 // when expire has something to do, ns since 1970; written with mu held

	messagesIn, messagesOut                              [3]atomic.Int64 // by QoS
	payloadIn, payloadOut, bytesIn, bytesOut             atomic.Int64
	refused, tooLarge, lost, duplicates, connects, peers atomic.Int64 // peers is the most connections there were at once
	loginsRefused, denied, faults, nacksRefused          atomic.Int64
	closedOver, saidNothing                              complaints // publishes refused by closing, and refusals at QoS 0
}

// NewManager loads the sessions that the state holds.
func NewManager(log *store.Store, hub *feed.Hub, queues *feed.Queues, o Options, logger *slog.Logger) (*Manager, error) {
	m := &Manager{
		log: log, hub: hub, queues: queues, shares: feed.NewShares(hub), opt: o,
		logger:   logger.With("component", "session"),
		sessions: map[string]*Session{},
		taken:    map[string][]*Link{},
		links:    links{all: map[*Link]struct{}{}},
		workers:  workers{most: runtime.GOMAXPROCS(0)},
	}
	m.dedup.init(o.DedupWindow, o.DedupCount, o.DedupTotal)
	m.hosts.init(m)
	hub.Relay(m.hosts.relay)
	if err := m.load(); err != nil {
		return nil, fmt.Errorf("load sessions: %w", err)
	}
	if err := m.epochs.load(log); err != nil {
		return nil, fmt.Errorf("load epochs: %w", err)
	}
	if err := m.retained.load(log); err != nil {
		return nil, fmt.Errorf("load retained messages: %w", err)
	}
	if err := m.delayed.init(m); err != nil {
		return nil, fmt.Errorf("load delayed messages: %w", err)
	}
	return m, nil
}

// excluded tells whether a topic's messages are for live subscribers only.
func (m *Manager) excluded(name string) bool { return m.opt.Exclude != nil && m.opt.Exclude(name) }

// transient tells whether a message is for live subscribers only.
func (m *Manager) transient(qos byte, excluded bool) bool {
	return excluded || qos == 0 && !m.opt.StoreQoS0
}

// expiryOf returns the session expiry interval that a CONNECT asks for, within our limit.
func (m *Manager) expiryOf(c *packet.Connect) uint32 {
	if c.Version == packet.V5 {
		return min(c.SessionExpiry, m.opt.MaxExpiry) // absent is 0: [MQTT-3.1.2.11.2]
	}
	if c.Clean {
		return 0
	}
	return min(m.opt.V3Expiry, m.opt.MaxExpiry)
}

// Expiry returns the session expiry interval in force for a link.
func (m *Manager) Expiry(l *Link) uint32 { return m.expiryOf(l.Connect) }

// newSession enters a new session; mu is held.
func (m *Manager) newSession(id string, durable bool) *Session {
	s := &Session{m: m, id: id, durable: durable}
	m.sessions[id] = s
	return s
}

// resume makes the session a member of its feeds again; mu is held.
func (s *Session) resume() error {
	if s.own != nil {
		s.join(s.own, nil, topic.Filter{}, false)
	}
	for sub := range s.subs.All() {
		flt, err := topic.ParseFilter(sub.Filter, s.m.opt.Topics)
		if err != nil {
			continue // the limits were lowered since; the subscription rests
		}
		switch {
		case flt.Kind == topic.QueueAttach:
			f, err := s.m.queues.Use(flt.Queue)
			if errors.Is(err, feed.ErrNoQueue) {
				continue // deleted since; the client, which cannot know, must not be kept out for it
			}
			if err != nil {
				return err
			}
			s.join(f, &sub, flt, true)
		case flt.Kind == topic.Share:
			s.join(s.shares[sub.Filter], &sub, flt, false)
		case solo(flt, sub):
			s.join(s.solos[sub.Filter], &sub, flt, sub.Replay)
		}
		if sub.Retained {
			s.sendRetained(sub, flt, s.m.log.Next())
		}
	}
	return nil
}

// release takes the session from its link; mu is held.
func (s *Session) release() {
	s.leave()
	s.link = nil
	s.offline = s.m.log.Now()
}

// expired tells whether the session's time after its connection is over; mu is held. A clock that has jumped far ahead is not believed: all sessions
// would end at once.
func (s *Session) expired(now time.Time) bool {
	return s.link == nil && s.expiry != Never && !s.offline.IsZero() &&
		now.Sub(s.offline) >= time.Duration(s.expiry)*time.Second && (s.expiry == 0 || !s.m.log.Doubtful())
}

// end forgets a session, its subscriptions and what was on its way; Manager.mu and s.mu are held and no link is there.
func (m *Manager) end(s *Session) {
	if m.sessions[s.id] == s {
		delete(m.sessions, s.id)
	}
	s.ended = true
	s.fireWill() // if it is still waiting: [MQTT-3.1.2-8]
	c := &change{}
	for filter := range s.shares {
		s.dropShare(filter)
	}
	for filter := range s.solos {
		flt, _ := topic.ParseFilter(filter, m.opt.Topics) // it was valid once; if the limits were lowered since, it is closed all the same
		s.dropSolo(filter, flt, c)
	}
	if s.own != nil {
		s.own.Close()
	}
	if s.durable {
		m.forget(s, c.muts)
	}
}

// forget deletes what the state has of a session.
func (m *Manager) forget(s *Session, muts []store.Mutation) {
	muts = append(muts,
		record.Delete(record.BucketSessions, []byte(s.id)),
		record.Delete(record.BucketCursors, feed.CursorKey(feedID(s.id))),
		record.Delete(record.BucketInflight, unackedKey(s.id)),
	)
	s.rxMu.Lock()
	for id := range s.received {
		muts = append(muts, record.Delete(record.BucketInflight, receivedKey(s.id, id)))
	}
	s.rxMu.Unlock()
	for k, to := range s.resend.byKey {
		if to.stage != sentQoS1 {
			muts = append(muts, record.Delete(record.BucketInflight, sentKey(s.id, to.id)))
		}
		muts = s.forgetKept(muts, k.feed, to.id)
	}
	for sub := range s.subs.All() {
		muts = append(muts, record.Delete(record.BucketSubscriptions, subKey(s.id, sub.Filter)))
	}
	if err := m.hub.Save(muts, nil); err != nil {
		m.logger.Error("deleting a session failed, it will expire again after a restart", "client", s.id, "err", err)
	}
}

// Run ends sessions whose time is over, publishes Wills that are due and forgets retained messages that have expired, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { m.delayed.run(ctx) })
	wg.Go(func() { m.dedup.rebuild(ctx, m) })
	lastSweep := time.Now()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var clock setBack
	for {
		m.enterAll()
		m.orphanedWills()
		now := m.log.Now()
		back, wrong := clock.at(now)
		if back {
			m.lookAtAll()
		}
		if wrong {
			if err := m.retained.setRight(m, now); err != nil {
				m.logger.Error("retained messages from when the clock was far ahead expire when it is there", "err", err)
			}
		}
		m.expire(now)
		m.retained.expire(m, m.log.Now())
		if time.Since(lastSweep) > time.Minute {
			lastSweep = time.Now()
			m.dedup.sweep(m.log.Now())
			m.hosts.sweep(ctx, lastSweep)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// expire looks at the sessions without a connection.
func (m *Manager) expire(now time.Time) {
	if now.Before(m.nextExpiry()) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	next := now.Add(time.Hour)
	for _, s := range m.sessions {
		s.mu.Lock()
		if s.setRight(now); s.expired(now) {
			m.logger.Info("session expired", "client", s.id)
			m.end(s)
		} else if at := s.nextEvent(now); !at.IsZero() && at.Before(next) {
			if next = at; !at.After(now) { // it would be over if the clock were believed
				next = now.Add(time.Second)
			}
		}
		s.mu.Unlock()
	}
	m.due.Store(next.UnixNano())
}

// lookAtAll has expire look at all sessions: what it noted as the next time is of another clock.
func (m *Manager) lookAtAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.due.Store(0)
}

// nextExpiry is when expire has something to do.
func (m *Manager) nextExpiry() time.Time { return time.Unix(0, m.due.Load()) }

// dueAt sees to it that expire runs at a time, if not before; mu is held. The zero time is never.
func (m *Manager) dueAt(at time.Time) {
	if !at.IsZero() && at.UnixNano() < m.due.Load() {
		m.due.Store(at.UnixNano())
	}
}

// nextEvent publishes a Will that is due and returns when the session, while it is without a connection, next needs looking at; mu is held.
func (s *Session) nextEvent(now time.Time) time.Time {
	if s.link != nil {
		return time.Time{}
	}
	var at time.Time
	if s.expiry != Never {
		at = s.offline.Add(time.Duration(s.expiry) * time.Second)
	}
	if s.will != nil && !s.will.due.IsZero() {
		if !now.Before(s.will.due) {
			s.fireWill()
		} else if at.IsZero() || s.will.due.Before(at) {
			at = s.will.due
		}
	}
	return at
}

// Shutdown ends every connection: what was accepted is first acknowledged, as long as ctx allows.
func (m *Manager) Shutdown(ctx context.Context) {
	all := m.links.list()
	for _, l := range all {
		l.draining.Store(true) // before the deadline: the reader looks at it after it has set one itself
		_ = l.raw.SetReadDeadline(time.Unix(1, 0))
	}
	stop := context.AfterFunc(ctx, func() {
		for _, l := range all {
			l.notify()
		}
	})
	defer stop()
	for _, l := range all {
		l.awaitAnswers(ctx)
		l.Kick(packet.CodeShuttingDown, "the broker is shutting down")
	}
}

// Wait returns when the last writer has ended. Call it after every link is closed.
func (m *Manager) Wait() { m.writers.wait() }

// crew counts goroutines. Unlike a WaitGroup's its count may rise from 0 while somebody waits.
type crew struct {
	n     atomic.Int64
	waits atomic.Bool // somebody does, or did

	mu   sync.Mutex
	none *sync.Cond // made by the first who waits
}

// Add adds to the count.
func (c *crew) Add(n int64) {
	if c.n.Add(n) == 0 && c.waits.Load() {
		c.mu.Lock()
		c.none.Broadcast()
		c.mu.Unlock()
	}
}

func (c *crew) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.none == nil {
		c.none = sync.NewCond(&c.mu)
	}
	c.waits.Store(true)
	for c.n.Load() > 0 {
		c.none.Wait()
	}
}
