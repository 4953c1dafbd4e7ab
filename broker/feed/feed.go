// Package feed is edgemq's one way of delivering messages: ordered, acknowledged walks over the log.
//
// A Feed has filters, a position, a window of records that are on their way, and members that take
// them. A session's subscriptions are a feed with one member; a queue is a feed that many sessions may join. The Hub
// hands every committed group to the feeds that keep up; one that falls behind reads the log at its own
// pace and changes back when it has caught up. Neither way slows the publishers or another feed.
//
// Locks are taken in this order: Hub.saveMu, Hub.mu, Feed.mu. Members are told that something waits for them through
// Waker, which must not block and must not call back into the feed.
package feed

import (
	"sync"
	"time"

	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
)

// Bounds of one feed's window. They bound memory only: what does not fit stays in the log.
const (
	maxUnsettled = 4096    // records taken from the log and not settled
	maxBytes     = 8 << 20 // and their bytes
	maxSpan      = 1 << 16 // slots, settled ones behind an unsettled one included
	lowWater     = maxUnsettled / 2
)

// Filter is one subscription or binding of a feed.
type Filter struct {
	Filter            string
	From              uint64 // holds for records at or after this offset
	QoS               byte   // the most that is granted
	ID                uint32 // MQTT 5 Subscription Identifier, 0 for none
	NoLocal           bool
	RetainAsPublished bool
	// Fresh marks a binding that was added while the feed still knew settled ranges ahead of its
	// position: those ranges say nothing about what only this filter matches.
	Fresh bool
}

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
	Dup   bool   // may have been sent to this feed's member before a crash
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
	opt Options

	// Guarded by Hub.mu: the dispatcher works with them.
	indexed bool  // its filters are in the Hub's index
	batch   []ref // what the group in hand has for it

	mu      sync.Mutex
	filters map[string]*Filter
	gen     uint64                          // counts changes of filters
	own     *topic.Index[struct{}, *Filter] // of filters, built when matching by hand would be slow
	live    bool                            // the dispatcher pushes; changed with Hub.mu held too
	pos     uint64                          // first offset not examined; while live, nothing below it is pushed
	epoch   uint64                          // counts rewinds: what was read before one is void
	win     window
	waiting int             // items not sent
	held    int             // items not settled
	bytes   int             // of the items not settled
	members []*Member       // never changed in place
	joined  uint64          // members so far
	keys    map[uint64]*key // of Shared feeds, those with unsettled items
	skip    []span          // settled before the last rewind, not below the cursor
	extra   []uint64        // unsettled, below the From of the filters that chose them; sorted
	sent    uint64          // highest offset ever handed out
	resent  uint64          // at opening: items up to here may have been sent before
	reading bool            // a catch-up goroutine runs
	dirty   bool            // queued for the cursor saver
	closed  bool
	overrun bool // Overrun was called
	stats   Stats
}

// Stats counts what a feed did since it was opened.
type Stats struct {
	Sent, Settled, Expired, Skipped uint64
}

// ID is the name under which the feed's cursor is kept.
func (f *Feed) ID() string { return f.id }

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
	fs := make([]Filter, 0, len(f.filters))
	for _, flt := range f.filters {
		fs = append(fs, *flt)
	}
	return fs
}

// Subscribe adds a filter that holds from flt.From on (Now: from this moment), or replaces the
// options of one the feed has, which goes on from where it held. It returns where the filter holds from and whether it was there.
func (f *Feed) Subscribe(flt Filter) (from uint64, existed bool) {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.filters[flt.Filter]; old != nil {
		flt.From, flt.Fresh, existed = old.From, old.Fresh, true
	} else if flt.From == Now {
		flt.From = h.log.Next()
	}
	f.setFilter(flt)
	return flt.From, existed
}

// Bind adds a filter whose records are wanted from flt.From on, however far the feed has come: the feed goes
// back for them, and its other filters hold from where it was. It reports whether the filter was there,
// in which case nothing changes. The caller saves the filters and the cursor together (Hub.Save).
func (f *Feed) Bind(flt Filter) (existed bool) {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.filters[flt.Filter] != nil {
		return true
	}
	if flt.From == Now {
		flt.From = h.log.Next()
	}
	flt.From = max(flt.From, h.log.First())
	if examined := f.examined(); flt.From < examined {
		f.goBack(flt.From, examined)
		flt.Fresh = len(f.skip) > 0
	}
	f.setFilter(flt)
	f.resume()
	return false
}

// setFilter stores a filter; Hub.mu and f.mu are held.
func (f *Feed) setFilter(flt Filter) {
	f.filters[flt.Filter] = &flt
	f.gen++
	f.own = nil
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
	if f.filters[filter] == nil {
		return false
	}
	delete(f.filters, filter)
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
		if m := f.match(s.Offset, s.Topic, s.Client); m != nil {
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

// index puts the filters into the Hub's index; Hub.mu and f.mu are held.
func (f *Feed) index() {
	f.indexed = true
	for name, flt := range f.filters {
		f.hub.index.Add(name, f, flt)
		f.hub.invalidate(name)
	}
}

func (f *Feed) unindex() {
	if !f.indexed {
		return
	}
	f.indexed = false
	for name := range f.filters {
		f.hub.index.Remove(name, f)
		f.hub.invalidate(name)
	}
}

// examined returns the first offset the feed has not looked at; f.mu is held.
func (f *Feed) examined() uint64 {
	if f.live {
		return max(f.pos, f.hub.pos.Load())
	}
	return f.pos
}

// goBack moves the position back to from. What the present filters chose below examined stays chosen,
// by name: it becomes extra; items that are already with a member stay there. Hub.mu and f.mu are held.
func (f *Feed) goBack(from, examined uint64) {
	extra := f.extra[:0:0]
	for _, off := range f.extra {
		if off >= examined { // not reached yet by an earlier walk back
			extra = append(extra, off)
		}
	}
	for seq := f.win.head; seq < f.win.tail; seq++ {
		s := f.win.at(seq)
		switch s.state {
		case sent:
			s.extra = true
			extra = append(extra, s.Offset)
		case waiting: // read again, when the walk comes by
			extra = append(extra, s.Offset)
			f.drop(s)
		}
	}
	f.win.trim()
	f.extra = sorted(extra)
	for _, flt := range f.filters {
		if flt.From < examined {
			flt.From = examined
		}
	}
	f.gen++
	for name := range f.filters {
		f.hub.invalidate(name)
	}
	keep := f.skip[:0]
	for _, sp := range f.skip {
		if sp.to >= examined {
			keep = append(keep, sp)
		}
	}
	f.skip = keep
	f.live = false
	f.pos = from
	f.epoch++
	f.rebalance()
	f.touch()
}

// match returns under which of the feed's filters a record is delivered, nil for none; f.mu is held. It is the slow
// way, for the rare cases: the dispatcher and the reader keep targets by topic.
func (f *Feed) match(off uint64, topicID, client uint32) *Match {
	t := f.target(topicID)
	if m := t.at(off, client == f.opt.Local && client != 0); m != nil {
		return m
	}
	if f.isExtra(off) && t != nil {
		return t.merge(func(*Filter) bool { return true })
	}
	return nil
}

// target collects the feed's filters that match a topic, nil if none does; f.mu is held.
func (f *Feed) target(topicID uint32) *target {
	name := f.hub.log.TopicName(topicID)
	t := &target{feed: f}
	if len(f.filters) <= 8 {
		for _, flt := range f.filters {
			if topic.Match(flt.Filter, name) {
				t.filters = append(t.filters, flt)
			}
		}
	} else {
		if f.own == nil {
			f.own = &topic.Index[struct{}, *Filter]{}
			for n, flt := range f.filters {
				f.own.Add(n, struct{}{}, flt)
			}
		}
		f.own.Match(name, func(_ struct{}, flt *Filter) { t.filters = append(t.filters, flt) })
	}
	if len(t.filters) == 0 {
		return nil
	}
	t.finish()
	return t
}
