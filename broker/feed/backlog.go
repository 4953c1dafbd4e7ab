package feed

import (
	"slices"
	"sync"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// Backlog is what a feed has yet to settle.
type Backlog struct {
	Messages, Bytes int64
	Oldest          time.Time // when the oldest of them was stored; zero if there is none
}

// maxPieces bounds the stretches that a backlog is counted in.
const maxPieces = 4096

// counted remembers what a backlog was, so that to ask again costs what has changed since.
type counted struct {
	mu       sync.Mutex
	gen      uint64
	epoch    uint64
	pos, end uint64 // what lies between was counted
	sum      store.Tally
	floors   map[uint32]uint64 // of the topics with limits among it: what lay below was dropped already
	drops    uint64            // of the store: when it changes, floors may have
	oldest   uint64            // offset of the first that is wanted at or after pos; 0 if that is not known
	wanted   map[uint32]bool
}

// lastCount returns what is remembered of the feed's last count; most feeds are never counted.
func (f *Feed) lastCount() *counted {
	if c := f.counted.Load(); c != nil {
		return c
	}
	f.counted.CompareAndSwap(nil, &counted{})
	return f.counted.Load()
}

// Backlog counts what is not settled. What waits in the window is known; what the feed has not examined is counted by the store's
// index, or, if it was counted before, only as far as the log or the feed has moved.
func (f *Feed) Backlog() (Backlog, error) {
	c := f.lastCount()
	c.mu.Lock()
	defer c.mu.Unlock()
	log := f.hub.log
	f.mu.Lock()
	b := Backlog{Messages: int64(f.held), Bytes: int64(f.bytes + f.held*record.HeaderSize)}
	pos, gen, epoch := max(f.examined(), log.First()), f.gen, f.epoch
	var first *slot
	for seq := f.win.head; seq < f.win.tail; seq++ {
		s := f.win.at(seq)
		if s.state == settled {
			continue
		}
		if first == nil || s.Offset < first.Offset {
			first = s
		}
		if len(f.extra) == 0 {
			break
		}
		if s.Offset >= pos { // taken before the feed went back, so it is counted with what lies ahead
			b.Messages--
			b.Bytes -= int64(record.Size(len(s.Props), len(s.Payload)))
		}
	}
	if first != nil {
		b.Oldest = time.UnixMicro(first.Time)
	}
	edges := f.edges(pos)
	f.mu.Unlock()

	end := log.Committed()
	if c.gen != gen || c.wanted == nil {
		c.wanted = map[uint32]bool{}
	}
	if pos >= end {
		c.pos, c.end, c.sum, c.gen, c.epoch, c.oldest = pos, pos, store.Tally{}, gen, epoch, 0
		return b, nil
	}
	sum, err := f.count(c, pos, end, gen, epoch, edges)
	if err != nil {
		return b, err
	}
	b.Messages += int64(sum.Records)
	b.Bytes += int64(sum.Bytes)
	if b.Oldest.IsZero() && sum.Records > 0 {
		b.Oldest = f.oldest(c, pos)
	}
	return b, nil
}

// edges returns the offsets from pos on at which what the feed wants of a topic may change, sorted; f.mu is held.
func (f *Feed) edges(pos uint64) []uint64 {
	var es []uint64
	add := func(off uint64) {
		if off > pos {
			es = append(es, off)
		}
	}
	for flt := range f.filters.All() {
		add(flt.From)
	}
	for _, p := range f.past {
		for _, s := range p.spans {
			add(s.from)
			add(s.to + 1)
		}
	}
	for _, off := range f.extra {
		add(off)
		add(off + 1)
	}
	return sorted(es)
}

// count counts what is wanted from pos to end. c.mu is held.
func (f *Feed) count(c *counted, pos, end, gen, epoch uint64, edges []uint64) (store.Tally, error) {
	log := f.hub.log
	edges = slices.DeleteFunc(edges, func(off uint64) bool { return off >= end })
	plain := len(edges) == 0
	again := plain && c.gen == gen && c.epoch == epoch && c.end > c.pos && pos >= c.pos && pos <= c.end && end >= c.end
	var sum store.Tally
	if again {
		var err error
		if sum, again, err = f.countOn(c, pos, end); err != nil {
			c.end = 0
			return sum, err
		}
	}
	if !again {
		c.end, c.oldest, c.drops, c.floors = 0, 0, log.Drops(), map[uint32]uint64{}
		if len(edges) > maxPieces {
			edges = edges[len(edges)-maxPieces:] // what is settled out of turn before them counts as well, then
		}
		from := pos
		for _, to := range append(edges, end) {
			known := c.wanted
			if !plain {
				known = map[uint32]bool{}
			}
			want := f.wantedFrom(from, known)
			t, err := log.CountAbove(from, to, want, c.floorOf(log, want))
			if err != nil {
				return sum, err
			}
			sum.Records += t.Records
			sum.Bytes += t.Bytes
			from = to
		}
	}
	if !plain {
		clear(c.wanted)
		c.gen, c.end = gen, 0 // to be counted in full the next time
		c.pos, c.epoch, c.oldest = 0, epoch, 0
		return sum, nil
	}
	if c.oldest < pos || c.gen != gen || c.epoch != epoch {
		c.oldest = 0
	}
	c.gen, c.epoch, c.pos, c.end, c.sum = gen, epoch, pos, end, sum
	return sum, nil
}

// maxRaised is of how many topics what was dropped is counted by itself; with more, everything is counted again.
const maxRaised = 16

// countOn corrects a count by what has come, been settled and been dropped since. It reports false if it is cheaper to count again.
func (f *Feed) countOn(c *counted, pos, end uint64) (sum store.Tally, ok bool, err error) {
	log := f.hub.log
	want := f.wantedFrom(pos, c.wanted)
	floor := c.floorOf(log, want)
	more, err := log.CountAbove(c.end, end, want, floor)
	if err != nil {
		return sum, false, err
	}
	less, err := log.CountAbove(c.pos, pos, want, floor)
	if err != nil {
		return sum, false, err
	}
	if drops := log.Drops(); drops != c.drops {
		c.drops = drops
		raised := 0
		for topic, was := range c.floors {
			now, _ := log.Floor(topic)
			if now == was {
				continue
			}
			c.floors[topic] = now
			if now > c.oldest {
				c.oldest = 0
			}
			from, to := max(pos, was), min(now, end)
			if from >= to {
				continue // of what is settled or was not counted
			}
			if raised++; raised > maxRaised {
				return sum, false, nil
			}
			gone, err := log.CountAbove(from, to, func(t uint32) bool { return t == topic }, func(uint32) uint64 { return 0 })
			if err != nil {
				return sum, false, err
			}
			less.Records, less.Bytes = less.Records+gone.Records, less.Bytes+gone.Bytes
		}
	}
	sum.Records = c.sum.Records + more.Records - min(less.Records, c.sum.Records+more.Records)
	sum.Bytes = c.sum.Bytes + more.Bytes - min(less.Bytes, c.sum.Bytes+more.Bytes)
	return sum, log.First() <= c.pos, nil // if not, some of what is over was deleted, and did not count
}

// floorOf tells what was dropped of a topic, and remembers it: a count holds as of then.
func (c *counted) floorOf(log *store.Store, want func(topic uint32) bool) func(topic uint32) uint64 {
	return func(topic uint32) uint64 {
		if at, ok := c.floors[topic]; ok {
			return at
		}
		at, limited := log.Floor(topic)
		if limited && want(topic) {
			c.floors[topic] = at
		}
		return at
	}
}

// wantedFrom tells of which topics the feed wants the records at off and up to the next edge.
func (f *Feed) wantedFrom(off uint64, known map[uint32]bool) func(topic uint32) bool {
	last, was := uint32(0), false
	return func(topic uint32) bool {
		if topic == last {
			return was
		}
		ok, seen := known[topic]
		if !seen {
			ok = f.wants(topic, off)
			known[topic] = ok
		}
		last, was = topic, ok
		return ok
	}
}

// wants tells whether the feed wants a topic's record at off, and has not done with it.
func (f *Feed) wants(topic uint32, off uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.target(topic)
	return t.at(off, false) != nil && (len(f.past) == 0 || f.isExtra(off) || !t.done(f.past, off))
}

// oldest returns the time of the first record from pos on that is wanted. c.mu is held.
func (f *Feed) oldest(c *counted, pos uint64) time.Time {
	log := f.hub.log
	if c.oldest == 0 || c.oldest < pos {
		f.mu.Lock()
		past := f.past
		f.mu.Unlock()
		interest := f.wantedFrom(^uint64(0), map[uint32]bool{})
		targets := map[uint32]*target{}
		want := func(off uint64, id uint32) bool {
			if !interest(id) {
				return false
			}
			t, ok := targets[id]
			if !ok {
				t = f.targetOf(id)
				targets[id] = t
			}
			return t.at(off, false) != nil && (len(past) == 0 || !t.done(past, off))
		}
		recs, _, err := log.NewReader().Read(nil, pos, store.Limits{MaxRecords: 1, Topics: interest}, want)
		if err != nil || len(recs) == 0 {
			return time.Time{}
		}
		c.oldest = recs[0].Offset
		return time.UnixMicro(recs[0].Time)
	}
	if at, ok := log.TimeOf(c.oldest); ok {
		return time.UnixMicro(at)
	}
	return time.Time{}
}

// Backlog counts what is not settled in a queue.
func (q *Queues) Backlog(name string) (Backlog, error) {
	f, err := q.Find(name)
	if err != nil {
		return Backlog{}, err
	}
	return f.Backlog()
}
