package store

import (
	"fmt"
	"os"
	"slices"

	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
)

const (
	// fewOf is what part of a block's records must be wanted at most for the index to be used: above, reading the
	// ledger from end to end is quicker.
	fewOf = 16
	// apart is from which distance on records are read one by one.
	apart = 64
	// sparseChunk is how many records are looked up at once.
	sparseChunk = 256
	// blockScan is what a block costs of Limits.MaxScan, whatever is in it.
	blockScan = 64
)

// readSparse reads on in the block that q.next is in by way of the index, if it has one and little in it is wanted. It reports false if
// the ledger must be read up to q.scan.
func (q *read) readSparse(c *chunk, until uint64) (bool, error) {
	x := &q.s.index
	if q.next < q.scan || q.next >= x.until.Load() {
		return false, nil
	}
	base := q.next / x.size * x.size
	end := min(base+x.size, until)
	offs, ok := q.wantedIn(base, end)
	if !ok {
		q.scan = end
		return false, nil
	}
	q.direct = len(offs) < int(end-q.next)/apart
	defer func() { q.direct = false }()
	for len(offs) > 0 && !q.satisfied {
		n := min(len(offs), sparseChunk, q.left.MaxScan)
		if n == 0 {
			q.satisfied = true
			return true, nil
		}
		if err := q.readOffsets(c, offs[:n]); err != nil {
			return true, err
		}
		q.left.MaxScan -= n
		offs = offs[n:]
	}
	if !q.satisfied {
		q.next = max(q.next, end)
		if q.left.MaxScan -= min(blockScan, q.left.MaxScan); q.left.MaxScan == 0 {
			q.satisfied = true
		}
	}
	return true, nil
}

// readOffsets reads the records at some offsets, ascending, as readDisk does.
func (q *read) readOffsets(c *chunk, offs []uint64) error {
	next := q.next
	c.picks = c.picks[:0]
	for i, offset := range offs {
		e := &c.entries[i]
		if n, err := q.s.ledger.Read(offset, c.entries[i:i+1]); err != nil || n == 0 {
			return fmt.Errorf("read ledger at offset %d: %w", offset, err)
		}
		q.size, q.segment = e.Length, e.Segment
		if e.Segment == 0 {
			if e.Bad {
				q.s.damagedAt(offset, e, errBadEntry)
				q.missUnknown(offset)
			}
		} else if e.Flags.Has(q.flags) && q.wants(offset, e.Topic) {
			if !q.fits(int(e.Length)) {
				break
			}
			c.picks = append(c.picks, pick{offset, e})
		}
		if next = offset + 1; q.satisfied {
			break
		}
	}
	if err := q.fetch(c); err != nil {
		return err
	}
	q.next = next
	return nil
}

// wantedIn returns the offsets from q.next to end whose topics are wanted, ascending; false if that is not known, or if they are
// too many.
func (q *read) wantedIn(base, end uint64) ([]uint64, bool) {
	x := &q.s.index
	if o := x.newest(); o.base == base && len(o.topics) > 0 && base+uint64(len(o.topics)) >= end {
		var offs []uint64
		last, wanted := uint32(0), false
		for i, topic := range o.topics[q.next-base : end-base] {
			if topic != last {
				last, wanted = topic, topic != 0 && q.topics(topic)
			}
			if !wanted && !(topic == 0 && o.damaged(q.next+uint64(i))) {
				continue
			}
			if offs = append(offs, q.next+uint64(i)); len(offs) > int(x.size)/fewOf {
				return nil, false
			}
		}
		return offs, true
	}
	b := x.block(base / x.size)
	if b == nil {
		return nil, false
	}
	var places []int
	total := 0
	for i := range b.dir {
		if e := &b.dir[i]; q.topics(e.topic) {
			if l := q.limits.get(e.topic); l != nil && q.dropped == nil && l.floor.Load() >= base+x.size {
				continue
			}
			if total += int(e.records); total > int(x.size)/fewOf {
				return nil, false
			}
			places = append(places, i)
		}
	}
	if len(places) == 0 {
		return nil, true
	}
	offs, err := x.postings(b, places, q.next)
	if err != nil {
		x.bad(base/x.size, err)
		return nil, false
	}
	for len(offs) > 0 && offs[len(offs)-1] >= end {
		offs = offs[:len(offs)-1]
	}
	return offs, true
}

// damaged tells whether an offset's entry is damaged.
func (o *openBlock) damaged(offset uint64) bool {
	_, ok := slices.BinarySearch(o.bad, offset)
	return ok
}

// postings returns the offsets of several topics, ascending.
func (x *index) postings(b *indexBlock, places []int, from uint64) (offs []uint64, err error) {
	f, err := x.s.fs.OpenFile(b.path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	for _, i := range places {
		if offs, err = b.postings(f, offs, i, from); err != nil {
			return nil, err
		}
	}
	slices.Sort(offs)
	return offs, nil
}

// Tally is how many records there are, and the bytes they take.
type Tally struct{ Records, Bytes uint64 }

func (t *Tally) add(n, bytes uint64) { t.Records, t.Bytes = t.Records+n, t.Bytes+bytes }

// Count counts the records with from <= offset < to whose topic is wanted, at the cost of the topics where the index is whole
// and of the ledger's entries elsewhere. Messages for live subscribers only do not count; those of deleted segments may, when
// others around them are still there.
func (s *Store) Count(from, to uint64, want func(topic uint32) bool) (t Tally, err error) {
	return s.CountAbove(from, to, want, s.floor)
}

// CountAbove is Count with what floor says of each topic in place of where its limits have come to: what lies below does not count.
func (s *Store) CountAbove(from, to uint64, want func(topic uint32) bool, floor func(topic uint32) uint64) (t Tally, err error) {
	err = s.tally(max(from, s.First()), min(to, s.Committed()), &floors{of: floor}, func(topic uint32, _ uint64, n, bytes uint64) {
		if want(topic) {
			t.add(n, bytes)
		}
	})
	return t, err
}

// floors remembers the last answer: records of one topic often come in a row.
type floors struct {
	of    func(topic uint32) uint64
	topic uint32
	last  uint64
}

func (f *floors) get(topic uint32) uint64 {
	if topic != f.topic {
		f.topic, f.last = topic, f.of(topic)
	}
	return f.last
}

// below tells whether a record is below its topic's floor.
func (f *floors) below(topic uint32, offset uint64) bool { return offset < f.get(topic) }

// tally calls fn for every record, or for many of one topic at once: with the offset of the first of them, their number and bytes.
func (s *Store) tally(from, to uint64, known *floors, fn func(topic uint32, offset uint64, n, bytes uint64)) error {
	x := &s.index
	for from < to {
		if from < x.until.Load() {
			base := from / x.size * x.size
			if o := x.newest(); o.base == base && base+uint64(len(o.topics)) > from {
				end := min(to, base+uint64(len(o.topics)))
				for i := from - base; i < end-base; i++ {
					if o.topics[i] != 0 && !known.below(o.topics[i], base+i) {
						fn(o.topics[i], base+i, 1, uint64(o.sizes[i]))
					}
				}
				from = end
				continue
			}
			if from <= max(base, 1) && to >= base+x.size { // there is no offset 0
				if b := x.block(base / x.size); b != nil {
					for i := range b.dir {
						if n, bytes := x.above(known, b, i, base); n > 0 {
							fn(b.dir[i].topic, base, n, bytes)
						}
					}
					from = base + x.size
					continue
				}
			}
			end := min(to, base+x.size)
			if err := s.tallyLedger(from, end, known, fn); err != nil {
				return err
			}
			from = end
			continue
		}
		g, caughtUp := s.tail.find(from)
		switch {
		case caughtUp:
			return nil
		case g == nil:
			end := min(to, s.tail.oldest())
			if err := s.tallyLedger(from, end, known, fn); err != nil {
				return err
			}
			from = end
		default:
			for i := range g.Entries {
				e, offset := &g.Entries[i], g.Base+uint64(i)
				if offset >= from && offset < to && !e.Flags.Has(record.FlagTransient) && !known.below(e.Topic, offset) {
					fn(e.Topic, offset, 1, uint64(e.size))
				}
			}
			from = max(from, g.End())
		}
	}
	return nil
}

// above returns what a topic has in a block above its floor. The bytes are estimated where the floor is within the block.
func (x *index) above(known *floors, b *indexBlock, i int, base uint64) (n, bytes uint64) {
	n, bytes = uint64(b.dir[i].records), b.dir[i].bytes
	switch floor := known.get(b.dir[i].topic); {
	case floor <= base:
	case floor >= base+x.size:
		return 0, 0
	default:
		offs, err := x.postings(b, []int{i}, floor)
		if err != nil {
			x.bad(base/x.size, err)
			return n, bytes
		}
		return uint64(len(offs)), bytes * uint64(len(offs)) / max(1, n)
	}
	return n, bytes
}

// tallyLedger is tally for what is on disk and has no index.
func (s *Store) tallyLedger(from, to uint64, known *floors, fn func(topic uint32, offset uint64, n, bytes uint64)) error {
	c := chunks.Get().(*chunk)
	defer chunks.Put(c)
	for from < to {
		n, err := s.ledger.Read(from, c.entries[:min(maxChunk, to-from)])
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("store: ledger ends at offset %d, %d was expected", from, to)
		}
		for i := range c.entries[:n] {
			if e := &c.entries[i]; e.Segment != 0 && !known.below(e.Topic, from+uint64(i)) {
				fn(e.Topic, from+uint64(i), 1, uint64(e.Length))
			}
		}
		from += uint64(n)
	}
	return nil
}

// TopicTotals returns how many records there are of each topic that has some, by topic number.
func (s *Store) TopicTotals() (map[uint32]Tally, error) {
	totals := make(map[uint32]*Tally)
	var last *Tally
	var number uint32
	err := s.tally(s.First(), s.Committed(), &floors{of: s.floor}, func(topic uint32, _ uint64, n, bytes uint64) {
		if last == nil || topic != number {
			if last, number = totals[topic], topic; last == nil {
				last = new(Tally)
				totals[topic] = last
			}
		}
		last.add(n, bytes)
	})
	out := make(map[uint32]Tally, len(totals))
	for topic, t := range totals {
		out[topic] = *t
	}
	return out, err
}

// keyed tells whether Options.Keys finds anything in properties.
func (s *Store) keyed(props []byte) bool {
	found := false
	if s.opt.Keys != nil && len(props) > 0 {
		s.opt.Keys(props, func(byte, []byte) bool {
			found = true
			return false
		})
	}
	return found
}

// Lookup appends to dst the committed records with offset >= from that have a key (see Options.Keys), in order, at most limit. It costs a
// look into each block of the index, and a look at the ledger's entries where there is none yet.
func (s *Store) Lookup(dst []Record, kind byte, value []byte, from uint64, limit int) ([]Record, error) {
	if s.opt.Keys == nil {
		return dst, nil
	}
	x, hash := &s.index, hashKey(kind, value)
	q := &lookup{s: s, r: s.NewReader(), kind: kind, value: value, dst: dst, left: limit}
	committed := s.Committed()
	for from = max(from, s.First()); from < committed && q.left > 0; {
		end, offs, ok := x.lookup(from, hash)
		if !ok {
			end = min(end, committed)
			if err := q.scan(from, end); err != nil {
				return q.dst, err
			}
			from = end
			continue
		}
		for _, offset := range offs {
			if q.left > 0 && offset >= from {
				if err := q.scan(offset, offset+1); err != nil {
					return q.dst, err
				}
			}
		}
		from = end
	}
	return q.dst, nil
}

// lookup returns the offsets that a hash has in the block of an offset, and where that block ends; false if it must be scanned.
func (x *index) lookup(from, hash uint64) (end uint64, offs []uint64, ok bool) {
	until := x.until.Load()
	if from >= until {
		return ^uint64(0), nil, false
	}
	base := from / x.size * x.size
	if o := x.newest(); o.base == base && base+uint64(len(o.topics)) > from {
		for _, k := range o.keys {
			if k.hash == hash {
				offs = append(offs, base+uint64(k.rel))
			}
		}
		return base + uint64(len(o.topics)), offs, true
	}
	end = base + x.size
	b := x.block(base / x.size)
	if b == nil {
		return end, nil, false
	}
	offs, err := b.find(x.s.fs, nil, hash)
	if err != nil {
		x.bad(base/x.size, err)
		return end, nil, false
	}
	return end, offs, true
}

// lookup is one Lookup in progress.
type lookup struct {
	s     *Store
	r     *Reader
	kind  byte
	value []byte
	dst   []Record
	left  int
}

// scan takes the records that have the key out of a stretch of the log.
func (q *lookup) scan(from, to uint64) error {
	var recs []Record
	for from < to && q.left > 0 {
		var err error
		lim := Limits{MaxRecords: 1024, MaxBytes: 1 << 20, MaxScan: int(min(to-from, 1<<18)), Flags: record.FlagKeyed}
		before := from
		if recs, from, err = q.r.Read(recs[:0], from, lim, func(uint64, uint32) bool { return true }); err != nil {
			return err
		}
		for _, r := range recs {
			has := false
			q.s.opt.Keys(r.Props, func(kind byte, value []byte) bool {
				has = has || kind == q.kind && string(value) == string(q.value)
				return !has
			})
			if has && q.left > 0 {
				q.dst = append(q.dst, r)
				q.left--
			}
		}
		if from == before {
			return nil // caught up
		}
	}
	return nil
}

// TimeOf returns when the first record at or after an offset was stored (µs since 1970); false if there is none.
func (s *Store) TimeOf(offset uint64) (int64, bool) {
	for offset = max(offset, s.First()); ; {
		g, caughtUp := s.tail.find(offset)
		switch {
		case caughtUp:
			return 0, false
		case g != nil:
			for ; g != nil; g = g.next.Load() {
				if len(g.Entries) > 0 && g.End() > offset {
					at := max(offset, g.Base)
					return s.timeline.real(at, g.Entries[at-g.Base].Time), true
				}
			}
			return 0, false
		}
		var e [64]ledger.Entry
		n, err := s.ledger.Read(offset, e[:])
		if err != nil || n == 0 {
			return 0, false
		}
		for i := range e[:n] {
			if !e[i].Bad {
				return s.timeline.real(offset+uint64(i), e[i].Time), true
			}
		}
		offset += uint64(n)
	}
}

// Ends returns the first and the last offset of the topics that are wanted; zeros if there is none. Deleted records may count.
func (s *Store) Ends(want func(topic uint32) bool) (first, last uint64, err error) {
	start, end := s.First(), s.Committed()
	r := s.NewReader()
	for from := start; from < end && first == 0; {
		lim := Limits{MaxScan: 1 << 18, Topics: want}
		if _, from, err = r.Read(nil, from, lim, func(offset uint64, topic uint32) bool {
			if first == 0 && offset < end && want(topic) {
				first = offset
			}
			return false
		}); err != nil {
			return 0, 0, err
		}
	}
	// Backwards in longer and longer stretches.
	for size := uint64(maxChunk); first > 0 && last == 0; size *= 4 {
		begin := end - min(size, end-first)
		for from := begin; from < end; {
			lim := Limits{MaxScan: int(min(end-from, 1<<18)), Topics: want}
			if _, from, err = r.Read(nil, from, lim, func(offset uint64, topic uint32) bool {
				if offset < end && want(topic) {
					last = offset
				}
				return false
			}); err != nil {
				return 0, 0, err
			}
		}
		if begin <= first {
			return first, max(first, last), nil
		}
		end = begin
	}
	return first, last, nil
}
