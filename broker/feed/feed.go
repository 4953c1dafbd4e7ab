// Package feed is edgemq's one way of delivering messages: ordered, acknowledged walks over the log.
//
// A Feed has filters, a position, a window of records that are on their way, and members that take
// them. A session's subscriptions are a feed with one member; a queue is a feed that many sessions may join. The Hub
// hands every committed group to the feeds that keep up; one that falls behind reads the log at its own
// pace and changes back when it has caught up. Neither way slows the publishers or another feed.
//
// Locks are taken in this order: saver.order, Hub.mu, Feed.mu. Members are told that something waits for them through
// Waker, which must not block and must not call back into the feed.
package feed

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
)

// bounds of one feed's window, for each member. They bound memory only: what does not fit stays in the log.
type bounds struct {
	records int // taken from the log and not settled
	bytes   int // and their bytes
	span    int // slots, settled ones behind an unsettled one included
}

var defaultBounds = bounds{records: 4096, bytes: 8 << 20, span: 1 << 16}

// keepsUp is how many records wait for a member that keeps up, at most.
const keepsUp = 16

// Filter is one subscription or binding of a feed.
type Filter struct {
	Filter            string
	From              uint64 // holds for records at or after this offset
	QoS               byte   // the most that is granted
	ID                uint32 // MQTT 5 Subscription Identifier, 0 for none
	NoLocal           bool
	RetainAsPublished bool
	// Era says when Bind added the filter: what the feed had done with before that speaks for the older filters only.
	// Bind sets it, and it is saved with the filter.
	Era uint32
}

// Key implements topic.Filtered.
func (f *Filter) Key() string { return f.Filter }

// Match says under which subscriptions a record is delivered. It is shared and must not be changed.
type Match struct {
	QoS               byte
	IDs               []uint32 // Subscription Identifiers, in filter order
	RetainAsPublished bool
}

// Item is one record handed to a member.
type Item struct {
	store.Record
	Match *Match
	Seq   uint64 // names the item towards Member.Settle
	QoS   byte   // at which it is to be sent; items at 0 are settled already
	// Refused is how often the feed's members have refused it.
	Refused uint32
	Dup     bool // may have been sent to this feed's member before a crash
	// Expired is set of a message of QoS 2 that expired after it may have been sent: if it was, that goes on. [MQTT-4.3.3-7]
	Expired bool
}

// Waker is told, without blocking, that its member has something to take.
type Waker interface{ Wake() }

// Options say what kind of feed it is.
type Options struct {
	Durable bool   // its cursor is saved with the commit groups
	Shared  bool   // several members at once, one key's messages to one member
	Local   uint32 // the member's client number, for No Local; 0 for none
	Start   uint64 // where it starts if it has no cursor yet; Now for "now"
	Fresh   bool   // ignore a saved cursor: it belongs to a session that has ended

	// A feed that falls behind by more than MaxLag is moved forward to now, or, if it has a
	// subscription above QoS 0, Overrun is called, once, and the feed stops reading.
	MaxLag  Lag
	Overrun func()

	// Of queues.
	name   string
	queues *Queues
	policy Policy
	chosen settings
	ghosts []ghost
}

// Lag is a distance behind the newest record; zeros do not limit.
type Lag struct {
	Bytes int64 // estimated from the mean size of the records
	Time  time.Duration
}

// Now as Options.Start or Filter.From means: what is appended from this moment on.
const Now = ^uint64(0)

// Feed is one walk over the log. Its methods are safe for concurrent use.
type Feed struct {
	hub *Hub
	id  string

	shared  bool // what its Options said
	durable bool // guarded by mu
	maxLag  Lag
	overrun func()
	local   uint32 // the member's client number, see SetLocal; changed with Hub.mu and mu held

	// Guarded by Hub.mu: the dispatcher works with them.
	indexed bool  // its filters are in the Hub's index
	batch   []ref // what the group in hand has for it

	mu      sync.Mutex
	filters topic.Filters[*Filter]
	gen     uint64                          // counts changes of filters
	own     *topic.Index[struct{}, *Filter] // of filters, built when matching by hand would be slow
	live    bool                            // the dispatcher pushes; changed with Hub.mu held too
	pos     uint64                          // first offset not examined; while live, nothing below it is pushed
	epoch   uint64                          // counts rewinds: what was read before one is void
	win     window
	waiting int // items not sent
	held    int // items not settled
	bytes   int // of the items not settled
	members []*Member
	joined  uint64          // members so far
	manned  uint64          // since this offset there has been a member
	keys    map[uint64]*key // of Shared feeds, those with unsettled items
	era     uint32          // the highest that a filter or a past has
	ghosts  []*ghost        // filters that were removed while past still speaks of what they chose
	past    []past          // done with before the feed went back, all below where it was; never changed in place
	extra   []uint64        // not settled although past says so; sorted. Below pos they are all in the window
	sent    uint64          // highest offset ever handed out
	resent  uint64          // at opening: items up to here may have been sent before
	reading bool            // a catch-up goroutine runs
	dirty   bool            // queued for the cursor saver
	closed  bool
	overran bool // overrun was called
	ended   atomic.Bool
	stats   Stats

	counted atomic.Pointer[counted] // nil until somebody asks

	// Of queues; guarded by mu but for name and queues, which are set once. What policy and chosen point to is never changed: of feeds that are
	// no queues it is the same for all.
	name    string
	queues  *Queues
	policy  *Policy
	chosen  *settings
	tries   map[uint64]try // by offset: what was refused and is not settled
	graves  []grave
	timer   *time.Timer // runs retry
	retryAt int64       // when; 0 if it is not to run
	gap     Gap         // dropped, and no member was told
	since   uint64      // what was dropped below was so before the queue was there, or bound to it

	admission atomic.Pointer[admission] // nil if nothing is refused
}

// Stats counts what a feed did since it was opened.
type Stats struct {
	Sent, Settled, Expired, Skipped uint64
	Redelivered                     uint64 // refused by a member
	Dead                            uint64 // of them gone to the dead letters
	Dropped                         uint64 // by the queue's limits
}

// Name is the queue's, "" if the feed is none.
func (f *Feed) Name() string { return f.name }

// ID is the name under which the feed's cursor is kept.
func (f *Feed) ID() string { return f.id }

// Ended tells whether the feed was closed. It costs nothing to ask.
func (f *Feed) Ended() bool { return f.ended.Load() }

// Stats returns the feed's counters.
func (f *Feed) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

// Filters returns a copy of the feed's filters.
func (f *Feed) Filters() []Filter {
	f.mu.Lock()
	defer f.mu.Unlock()
	fs := make([]Filter, 0, f.filters.Len())
	for flt := range f.filters.All() {
		fs = append(fs, *flt)
	}
	return fs
}

// Filter returns one of the feed's filters.
func (f *Feed) Filter(filter string) (Filter, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if flt, ok := f.filters.Get(filter); ok {
		return *flt, true
	}
	return Filter{}, false
}

// Subscribe adds a filter that holds from flt.From on (Now: from this moment), or replaces the
// options of one the feed has, which goes on from where it held. It returns where the filter holds from and whether it was there.
func (f *Feed) Subscribe(flt Filter) (from uint64, existed bool) {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if old, ok := f.filters.Get(flt.Filter); ok {
		flt.From, flt.Era, existed = old.From, old.Era, true
	} else if flt.From == Now {
		flt.From = h.log.Next()
	}
	f.setFilter(flt)
	return flt.From, existed
}

// Bind adds a filter whose records are wanted from flt.From on, however far the feed has come: the feed goes
// back for those that no other filter has chosen yet. It reports whether the filter was there,
// in which case nothing changes. The caller saves the filter and the cursor together (Hub.Save).
func (f *Feed) Bind(flt Filter) (existed bool) {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.filters.Get(flt.Filter); ok {
		return true
	}
	f.ghosts = slices.DeleteFunc(f.ghosts, func(g *ghost) bool { return g.Filter.Filter == flt.Filter }) // its new life begins anew
	if flt.From == Now {
		flt.From = h.log.Next()
	}
	flt.From = max(flt.From, h.log.First())
	if examined := f.examined(); flt.From < examined {
		f.goBack(flt.From, examined)
	}
	f.since = h.log.Next()
	if len(f.past) > 0 {
		f.era++
	}
	flt.Era = f.era
	f.setFilter(flt)
	f.resume()
	return false
}

// setFilter stores a filter; Hub.mu and f.mu are held.
func (f *Feed) setFilter(flt Filter) {
	f.filters.Set(&flt)
	f.gen++
	f.own = nil
	f.hub.guards.add(f, flt.Filter)
	if f.indexed {
		f.hub.index.Add(flt.Filter, f, &flt)
		f.hub.invalidate(flt.Filter)
	}
	if len(f.members) > 0 && !f.indexed {
		f.index()
	}
}

// Unsubscribe removes a filter, and with it the records that waited for it alone. It reports whether it was there.
func (f *Feed) Unsubscribe(filter string) bool {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	old, _ := f.filters.Get(filter)
	if old == nil {
		return false
	}
	f.haunt(old)
	f.filters.Remove(filter)
	h.guards.remove(f, filter)
	f.gen++
	f.own = nil
	if f.indexed {
		h.index.Remove(filter, f)
		h.invalidate(filter)
	}
	for seq := f.win.head; seq < f.win.tail; seq++ {
		s := f.win.at(seq)
		if s.state != waiting {
			continue
		}
		if m := f.target(s.Topic).at(s.Offset, f.mine(s.Client)); m != nil {
			s.Match = m
		} else {
			f.settle(s)
		}
	}
	f.win.trim()
	f.touch()
	f.resume()
	return true
}

// Orphans settles what the member was sent and no filter wants any more, and returns the sequence numbers: to finish that is up to
// the session. [MQTT-3.10.4-3]
func (f *Feed) Orphans() (seqs []uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for seq := f.win.head; seq < f.win.tail; seq++ {
		if s := f.win.at(seq); s.state == sent && f.target(s.Topic).at(s.Offset, f.mine(s.Client)) == nil {
			seqs = append(seqs, seq)
			f.settle(s)
		}
	}
	f.win.trim()
	f.touch()
	return seqs
}

// index puts the filters into the Hub's index; Hub.mu and f.mu are held.
func (f *Feed) index() {
	f.indexed = true
	for flt := range f.filters.All() {
		f.hub.index.Add(flt.Filter, f, flt)
		f.hub.invalidate(flt.Filter)
	}
}

func (f *Feed) unindex() {
	if !f.indexed {
		return
	}
	f.indexed = false
	for flt := range f.filters.All() {
		f.hub.index.Remove(flt.Filter, f)
		f.hub.invalidate(flt.Filter)
	}
}

// examined returns the first offset the feed has not looked at; f.mu is held.
func (f *Feed) examined() uint64 {
	if f.live {
		return max(f.pos, f.hub.pos.Load())
	}
	return f.pos
}

// goBack moves the position back to from. What the present filters chose below examined is done with, but for what is in
// the window: that becomes extra. Of it, items that are already with a member stay there, and the others are read
// again when the walk comes by. Hub.mu and f.mu are held.
func (f *Feed) goBack(from, examined uint64) {
	extra := f.extra[:0:0]
	for _, off := range f.extra {
		if off >= examined { // not reached yet by an earlier walk back; the others are in the window
			extra = append(extra, off)
		}
	}
	for seq := f.win.head; seq < f.win.tail; seq++ {
		s := f.win.at(seq)
		switch s.state {
		case sent:
			s.extra = true
			extra = append(extra, s.Offset)
		case waiting, refused:
			extra = append(extra, s.Offset)
			f.drop(s)
		}
	}
	f.win.trim()
	f.extra = sorted(extra)
	f.past = addPast(f.past, f.era, span{0, examined - 1})
	f.live = false
	f.pos = from
	f.epoch++
	f.rebalance()
	f.touch()
}

// restart puts the feed to where everything below is settled, but for the extra; f.mu is held.
func (f *Feed) restart(cursor uint64) {
	f.pos = cursor
	if len(f.extra) > 0 && f.extra[0] < cursor {
		f.past = addPast(f.past, f.era, span{0, cursor - 1})
		f.pos = f.extra[0]
	}
}

// choose returns under which filters a record is delivered now, nil for none: no filter wants it, or it is done with, or in the
// window already. t is the feed's interest in the record's topic. f.mu is held.
func (f *Feed) choose(t *target, off uint64, local bool) *Match {
	if len(f.extra) > 0 && f.isExtra(off) {
		if f.inWindow(off) {
			return nil
		}
		return t.at(off, local)
	}
	if len(f.past) > 0 && t.done(f.past, off) {
		return nil
	}
	return t.at(off, local)
}

// isExtra tells whether off was chosen before the feed went back; f.mu is held.
func (f *Feed) isExtra(off uint64) bool {
	_, ok := slices.BinarySearch(f.extra, off)
	return ok
}

// inWindow tells whether off is with a member or waits for one; f.mu is held.
func (f *Feed) inWindow(off uint64) bool {
	for seq := f.win.head; seq < f.win.tail; seq++ {
		if s := f.win.at(seq); s.Offset == off && s.state != settled {
			return true
		}
	}
	return false
}

// forgetExtra drops the extra that the walk has passed and not found: their records are deleted, or no filter wants
// them any more. f.mu is held.
func (f *Feed) forgetExtra() {
	if len(f.extra) == 0 || f.extra[0] >= f.pos {
		return
	}
	there := make(map[uint64]struct{})
	for seq := f.win.head; seq < f.win.tail; seq++ {
		if s := f.win.at(seq); s.state != settled {
			there[s.Offset] = struct{}{}
		}
	}
	f.extra = slices.DeleteFunc(f.extra, func(off uint64) bool {
		_, ok := there[off]
		return off < f.pos && !ok
	})
}

// mine tells whether the feed's own member published a record; Hub.mu or f.mu is held.
func (f *Feed) mine(client uint32) bool { return client == f.local && client != 0 }

// SetLocal says which client the feed's member is. Only filters with No Local ask, so before there is one of them it need not be known.
func (f *Feed) SetLocal(client uint32) {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.local = client
}

// targetOf is target for those who do not hold f.mu.
func (f *Feed) targetOf(topicID uint32) *target {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.target(topicID)
}

// target collects the feed's filters that match a topic, nil if none does; f.mu is held.
func (f *Feed) target(topicID uint32) *target {
	name := f.hub.log.TopicName(topicID)
	t := &target{feed: f}
	if f.filters.Len() <= topic.FewFilters {
		for flt := range f.filters.All() {
			if topic.Match(flt.Filter, name) {
				t.filters = append(t.filters, flt)
			}
		}
	} else {
		if f.own == nil {
			f.own = &topic.Index[struct{}, *Filter]{}
			for flt := range f.filters.All() {
				f.own.Add(flt.Filter, struct{}{}, flt)
			}
		}
		f.own.Match(name, func(_ struct{}, flt *Filter) { t.filters = append(t.filters, flt) })
	}
	if len(t.filters) == 0 {
		return nil
	}
	for _, g := range f.ghosts {
		if topic.Match(g.Filter.Filter, name) {
			t.ghosts = append(t.ghosts, g)
		}
	}
	t.finish()
	return t
}
