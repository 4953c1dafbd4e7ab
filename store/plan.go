package store

import (
	"slices"

	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/segment"
)

// plan is one batch on its way to the disk. It is thrown away if a write fails.
type plan struct {
	slots   []slot
	byKey   map[uint32]int // client, or segment.Shared → its newest slot
	runs    []run
	entries []ledger.Entry
	scratch []byte   // slots that are gathered, one behind the other
	vectors [][]byte // runs of those that are not
	nextID  uint32
	time    int64
	next    uint64 // offset after the last entry
	tallies map[*TopicLimit]*tallied
}

// tallied is what a batch adds to a topic with a policy.
type tallied struct {
	Tally
	last uint64
}

// tally counts a record.
func (p *plan) tally(l *TopicLimit, offset, size uint64) {
	t := p.tallies[l]
	if t == nil {
		if p.tallies == nil {
			p.tallies = make(map[*TopicLimit]*tallied)
		}
		t = new(tallied)
		p.tallies[l] = t
	}
	t.add(1, size)
	t.last = offset
}

// slot is what a batch adds to one segment.
type slot struct {
	a           *active
	fresh, full bool // the segment is new; is sealed after this
	vector      bool // its runs are written from where they are
	runs        int64
	filled      int64 // of those in plan.vectors
	pos, size   int64 // where in the file, how much
	start       int64 // where in plan.scratch, or in plan.vectors
	records     uint64
	base, last  uint64 // offsets
	from, to    int64  // times
}

// run is a stretch of a group's buffer that goes to one slot.
type run struct {
	buf  []byte
	slot int
	pos  int64 // in the slot
}

// makePlan decides where each record goes. It changes nothing but f.usage and topics that Meta takes over later, so it
// can be made again.
func (f *flusher) makePlan(groups []*Group) {
	p := &f.plan
	p.slots, p.runs, p.entries = p.slots[:0], p.runs[:0], p.entries[:0]
	p.byKey = make(map[uint32]int)
	p.nextID, p.time, p.next = f.nextID, f.time, f.s.ledger.Next()
	p.tallies = nil
	known := f.s.limits.table()
	var u *usage
	client, at := uint32(0), -1 // the slot of the record before, most likely the next one's too
	for _, g := range groups {
		for ; p.next < g.Base; p.next++ { // recovery lost groups here: their offsets stay, their bytes are gone
			p.entries = append(p.entries, ledger.Entry{Time: p.time})
		}
		began := -1 // where in g.buf the open run began
		var runPos int64
		for i := range g.Entries {
			e := &g.Entries[i]
			offset := g.Base + uint64(i)
			if offset < p.next {
				continue // replayed, and moved before
			}
			le := ledger.Entry{
				Topic: e.Topic, Client: e.Client, Length: e.size, Expiry: e.Expiry,
				PacketID: e.PacketID, Flags: e.Flags, Time: e.Time,
			}
			p.time, p.next = e.Time, offset+1
			if e.Flags.Has(record.FlagTransient) {
				p.endRun(g, began, int(e.pos), at, runPos)
				began = -1
				le.Length = 0
				p.entries = append(p.entries, le)
				continue
			}
			was := at
			if at < 0 || e.Client != client {
				u, client = f.usage.get(e.Client, f.s), e.Client
				at = f.slot(u, e)
			} else if !u.own || p.slots[at].pos+p.slots[at].size+int64(e.size) > f.s.opt.SegmentBytes {
				at = f.slot(u, e)
			}
			sl := &p.slots[at]
			if began < 0 || at != was {
				p.endRun(g, began, int(e.pos), was, runPos)
				began, runPos = int(e.pos), sl.size
			}
			if !f.seen.has(sl.a.id, e.Topic) {
				sl.a.topics = addTopic(sl.a.topics, e.Topic)
			}
			if sl.records == 0 {
				sl.base, sl.from = offset, e.Time
			}
			le.Segment, le.Pos = sl.a.id, uint32(sl.pos+sl.size)
			if known != nil {
				if l := known.get(e.Topic); l != nil && l.policy != nil {
					p.tally(l, offset, uint64(e.size))
				}
			}
			sl.records, sl.last, sl.to = sl.records+1, offset, e.Time
			sl.size += int64(e.size)
			p.entries = append(p.entries, le)
		}
		p.endRun(g, began, len(g.buf), at, runPos)
	}
}

// seen remembers which topics a segment is known to have, so that most records need no search for theirs. Each pair has one
// place, and the newest keeps it.
type seen [4096]uint64

// has tells whether the pair was asked for before, as far as that is remembered. No segment has number 0.
func (t *seen) has(segment, topic uint32) bool {
	pair := uint64(segment)<<32 | uint64(topic)
	at := &t[pair*0x9E3779B97F4A7C15>>52]
	if *at == pair {
		return true
	}
	*at = pair
	return false
}

// endRun notes that g.buf[began:end] goes to a slot.
func (p *plan) endRun(g *Group, began, end, slot int, pos int64) {
	if began >= 0 {
		p.runs = append(p.runs, run{buf: g.buf[began:end], slot: slot, pos: pos})
		p.slots[slot].runs++
	}
}

// slot returns where a record goes, and counts it to its client.
func (f *flusher) slot(u *usage, e *Entry) int {
	p := &f.plan
	key := e.Client
	if !u.own {
		if u.bytes += int64(e.size); u.bytes > f.s.opt.SharedBelow {
			u.own = true
		} else {
			key = segment.Shared
		}
	}
	at, ok := p.byKey[key]
	if !ok {
		at = len(p.slots)
		if a := f.own[key]; a != nil {
			p.slots = append(p.slots, slot{a: a, pos: a.meta.Bytes})
		} else {
			p.open(key, e)
		}
		p.byKey[key] = at
	}
	sl := &p.slots[at]
	if end := sl.pos + sl.size; end > segment.HeaderSize && end+int64(e.size) > f.s.opt.SegmentBytes {
		sl.full = true
		at = len(p.slots)
		p.open(key, e)
		p.byKey[key] = at
	}
	return at
}

// open plans a new segment.
func (p *plan) open(client uint32, e *Entry) {
	g := &seg{id: p.nextID, client: client}
	g.meta = segment.Meta{ID: g.id, Client: client, FirstTime: e.Time}
	p.nextID++
	p.slots = append(p.slots, slot{a: &active{seg: g}, fresh: true, pos: segment.HeaderSize})
}

// layOut decides how each slot is written, and makes room.
func (p *plan) layOut() {
	var bytes, runs int64
	for i := range p.slots {
		sl := &p.slots[i]
		if sl.vector = sl.size >= gatherBelow*sl.runs; sl.vector {
			sl.start = runs
			runs += sl.runs
		} else {
			sl.start = bytes
			bytes += sl.size
		}
	}
	if int64(len(p.scratch)) < bytes || len(p.scratch) > 4*flushBatch {
		p.scratch = make([]byte, bytes)
	}
	p.vectors = slices.Grow(p.vectors[:0], int(runs))[:runs]
}

// clear lets go of what a plan points to.
func (p *plan) clear() {
	clear(p.slots)
	clear(p.runs)
	clear(p.vectors)
	p.byKey, p.tallies = nil, nil
}
