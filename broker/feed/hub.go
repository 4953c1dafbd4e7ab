package feed

import (
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
)

// Hub dispatches what the store commits to the feeds, and saves their cursors.
type Hub struct {
	log    *store.Store
	logger *slog.Logger
	max    bounds // of each feed

	// mu is held by the dispatcher for the length of one group, and by whoever changes who gets
	// what: a change falls between two groups, never inside one.
	mu      sync.Mutex
	index   *topic.Index[*Feed, *Filter]
	routes  routes        // of an older gen: to be made
	cached  int           // targets in them
	gen     uint32        // from 1
	pos     atomic.Uint64 // first offset not dispatched; written with mu held
	bytes   int64         // of the records dispatched
	count   int64         // of them
	mean    atomic.Int64  // bytes a record
	waiters []waiter
	touched []*Feed // feeds with a batch from the group in hand

	feedsMu sync.Mutex
	feeds   map[string]*Feed
	guards  guards
	traffic traffic
	began   time.Time // has the monotonic clock

	panics atomic.Int64

	relay func(rec *store.Record, msg *store.Message)
	// groups is there before anything is appended that a feed could want: one that the dispatcher never saw would be missed by every
	// live feed, and would not count as examined when a queue is bound.
	groups *store.Follower
	saver  saver
	walks  walks // catch-up goroutines
	ctx    context.Context
	stop   context.CancelFunc
}

// walks are goroutines that may be started until end is called, which waits for them.
type walks struct {
	mu   sync.Mutex
	over bool
	wg   sync.WaitGroup
}

func (w *walks) start(fn func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.wg.Go(fn)
	}
	return !w.over
}

func (w *walks) end() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.wg.Wait()
}

// ref is a record of the group in hand, chosen for a feed.
type ref struct {
	i int
	m *Match
}

// NewHub returns a hub over a store whose recovery is done.
func NewHub(log *store.Store, logger *slog.Logger) *Hub {
	h := &Hub{
		log:    log,
		logger: logger.With("component", "feed"),
		max:    defaultBounds,
		gen:    1,
		index:  &topic.Index[*Feed, *Filter]{},
		feeds:  map[string]*Feed{},
		began:  time.Now(),
	}
	h.groups = log.NewFollower(h.dispatch, h.tryDispatch)
	h.relay = func(*store.Record, *store.Message) {}
	h.saver.init(h)
	h.ctx, h.stop = context.WithCancel(context.Background())
	h.pos.Store(log.Committed())
	return h
}

// Relay has fn look at every message that a queue passes on to another, a copy of rec. It is to be called before there are queues in use.
func (h *Hub) Relay(fn func(rec *store.Record, msg *store.Message)) { h.relay = fn }

// relayAll has copies of records looked at. It may read the disk, so no lock of a feed is held.
func (h *Hub) relayAll(recs []store.Record, msgs []store.Message) {
	for i := range recs {
		h.relay(&recs[i], &msgs[i])
	}
}

// Run dispatches until ctx ends. Before it returns every catch-up goroutine has ended and
// every cursor has been handed to the store.
func (h *Hub) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { h.saver.run(ctx) })
	wg.Go(func() { h.watchQueues(ctx) })
	err := h.groups.Run(ctx)
	h.stop()
	h.walks.end()
	wg.Wait()
	h.saver.flush()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// watchQueues looks, once a second, for consumers that keep messages for too long and for queues over their limits.
func (h *Hub) watchQueues(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			h.feedsMu.Lock()
			var queues []*Feed
			for _, f := range h.feeds {
				if f.queues != nil {
					queues = append(queues, f)
				}
			}
			h.feedsMu.Unlock()
			for _, f := range queues {
				f.watch(now)
			}
		}
	}
}

// watch is one look of watchQueues.
func (f *Feed) watch(now time.Time) {
	defer f.hub.caught("panic while a queue's limits were looked at", "queue", f.name)
	f.checkAcks(now)
	if err := f.enforce(f.hub.log.Now()); err != nil {
		f.hub.logger.Error("counting a queue's messages failed", "queue", f.name, "err", err)
	}
}

// caught ends a panic of what concerns one feed: it must not end what all others need too. A panic of the dispatcher or the saver, which serve
// all, ends the process, as one of the store's goroutines does: recovery knows what to make of what is there then.
func (h *Hub) caught(msg string, attrs ...any) {
	if p := recover(); p != nil {
		h.fault(msg, p, attrs...)
	}
}

// fault logs and counts a panic that was caught; the stack is still there.
func (h *Hub) fault(msg string, panicked any, attrs ...any) {
	h.panics.Add(1)
	h.logger.Error(msg, append(attrs, "panic", panicked, "stack", string(debug.Stack()))...)
}

// Panics counts those that were caught.
func (h *Hub) Panics() int64 { return h.panics.Load() }

// dispatch hands one group to the feeds that keep up with the log.
func (h *Hub) dispatch(g *store.Group) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hand(g)
}

// fewTargets are how many deliveries a publisher may have to see to before it gets its own answer.
const fewTargets = 16

// tryDispatch is dispatch if it waits for nobody and is done at once.
func (h *Hub) tryDispatch(g *store.Group) bool {
	if !h.mu.TryLock() {
		return false
	}
	defer h.mu.Unlock()
	n := 0
	for i := range g.Entries {
		n += len(h.route(g.Entries[i].Topic).targets)
	}
	if n > fewTargets {
		return false
	}
	h.hand(g)
	return true
}

// hand is dispatch with mu held.
func (h *Hub) hand(g *store.Group) {
	size := 0
	for i := range g.Entries {
		e := &g.Entries[i]
		size += e.Size()
		rt := h.route(e.Topic)
		if len(rt.targets) == 0 {
			continue
		}
		off := g.Base + uint64(i)
		for j := range rt.targets {
			t := &rt.targets[j]
			f := t.feed
			if !f.live || off < f.pos { // both change only while we hold mu
				continue
			}
			m := t.all
			if off < t.from || t.noLocal {
				if m = t.at(off, e.Client == f.local); m == nil {
					continue
				}
			}
			if len(f.batch) == 0 {
				h.touched = append(h.touched, f)
			}
			f.batch = append(f.batch, ref{i, m})
		}
	}
	for i, f := range h.touched {
		f.push(g, f.batch, size)
		clear(f.batch)
		f.batch = f.batch[:0]
		h.touched[i] = nil
	}
	h.touched = h.touched[:0]
	h.bytes += int64(size)
	if h.count += int64(len(g.Entries)); h.count > 0 {
		h.mean.Store(h.bytes / h.count)
	}
	h.pos.Store(max(h.pos.Load(), g.Base+uint64(len(g.Entries))))
	h.traffic.note(time.Now(), len(g.Entries))
	if len(h.waiters) > 0 {
		h.wakeWaiters()
	}
}

// Reached tells whether everything below off has been dispatched; if not, w, unless it is nil, is woken when it has.
func (h *Hub) Reached(off uint64, w Waker) bool {
	if h.pos.Load() >= off {
		return true
	}
	if w == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pos.Load() >= off {
		return true
	}
	h.waiters = append(h.waiters, waiter{off, w})
	return false
}

// waiter is somebody who waits for the dispatcher to come to an offset.
type waiter struct {
	off uint64
	w   Waker
}

// wakeWaiters tells those whose offset has come; mu is held.
func (h *Hub) wakeWaiters() {
	pos := h.pos.Load()
	h.waiters = slices.DeleteFunc(h.waiters, func(x waiter) bool {
		if x.off <= pos {
			x.w.Wake()
			return true
		}
		return false
	})
}

// Open returns the feed with the given id, from its saved cursor if it has one.
func (h *Hub) Open(id string, o Options, filters ...Filter) (*Feed, error) {
	f := &Feed{
		hub: h, id: id, shared: o.Shared, durable: o.Durable, maxLag: o.MaxLag, overrun: o.Overrun, local: o.Local,
		win: window{head: 1, tail: 1}, policy: &noPolicy, chosen: &noSettings,
	}
	if o.queues != nil {
		policy, chosen := o.policy, o.chosen // copies, so that the Options of others need not outlive this
		f.name, f.queues, f.policy, f.chosen = o.name, o.queues, &policy, &chosen
		f.setLimits(o.policy.Limits)
	}
	if o.Shared {
		f.keys = map[uint64]*key{}
	}
	for _, flt := range filters {
		f.filters.Set(&flt)
		f.era = max(f.era, flt.Era)
	}
	for _, g := range o.ghosts {
		f.ghosts = append(f.ghosts, &g)
		f.era = max(f.era, g.last+1)
	}
	h.mu.Lock()
	f.pos = o.Start
	if f.pos == Now {
		f.pos = h.log.Next()
	}
	h.mu.Unlock()
	if o.queues != nil && o.Fresh {
		f.since = h.log.Next()
	}
	if o.Durable && !o.Fresh {
		if err := f.load(); err != nil {
			return nil, err
		}
	}
	h.guards.open(f)
	h.feedsMu.Lock()
	defer h.feedsMu.Unlock()
	h.feeds[id] = f
	return f, nil
}

// Close ends a feed: its members are gone, its filters forgotten. Its saved cursor is the caller's to delete, see CursorKey.
func (f *Feed) Close() {
	h := f.hub
	h.feedsMu.Lock()
	if h.feeds[f.id] == f {
		delete(h.feeds, f.id)
	}
	h.feedsMu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unindex()
	for flt := range f.filters.All() {
		h.guards.remove(f, flt.Filter)
	}
	f.closed, f.live = true, false
	f.ended.Store(true)
	f.epoch++
	for _, m := range f.members {
		m.gone = true
		if c, ok := m.w.(notified); ok && f.queues != nil {
			c.Orphaned()
		}
	}
	f.members = nil
	f.win.clear()
	f.waiting, f.held, f.bytes = 0, 0, 0
	f.disarm()
}

// disarm stops the timer of refused items; f.mu is held.
func (f *Feed) disarm() {
	if f.timer != nil {
		f.timer.Stop()
		f.timer, f.retryAt = nil, 0
	}
}

// Wanted tells whether somebody would be handed a record of a topic now.
func (h *Hub) Wanted(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	wanted := false
	h.index.Match(name, func(*Feed, *Filter) { wanted = true })
	return wanted
}

// Feeds counts the feeds: live ones, those that are behind, and those without members.
func (h *Hub) Feeds() (live, behind, idle int) {
	h.feedsMu.Lock()
	feeds := make([]*Feed, 0, len(h.feeds))
	for _, f := range h.feeds {
		feeds = append(feeds, f)
	}
	h.feedsMu.Unlock()
	for _, f := range feeds {
		f.mu.Lock()
		switch {
		case len(f.members) == 0:
			idle++
		case f.live:
			live++
		default:
			behind++
		}
		f.mu.Unlock()
	}
	return live, behind, idle
}
