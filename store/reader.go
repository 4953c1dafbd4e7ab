package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"syscall"

	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
)

// Limits bound one Read; a zero does not limit.
type Limits struct {
	MaxRecords int // records returned
	MaxBytes   int // of their encoding; the first record is returned whatever its size
	MaxScan    int // entries examined

	// Topics, if not nil, is false for topics of which nothing is wanted at any offset. Where they are most of the log, it
	// is not read from end to end.
	Topics func(topic uint32) bool
	Flags  record.Flags // that a record must have

	// Dropped, if not nil, counts records that were wanted and are gone: dropped by a limit of their topic, deleted, damaged. Those that
	// were superseded in a topic that keeps its last are not among them, nor those below First.
	Dropped     *Gap
	DroppedFrom uint64 // only those from this offset on
}

// Gap is a stretch of the log of which records are gone.
type Gap struct {
	From, To uint64 // offsets of the first, and behind the last; To is 0 if there is none
	Records  int64
}

// Add counts a record.
func (g *Gap) Add(offset uint64) { g.Merge(Gap{offset, offset + 1, 1}) }

// Merge adds another gap.
func (g *Gap) Merge(more Gap) {
	switch {
	case more.To == 0:
	case g.To == 0:
		*g = more
	default:
		*g = Gap{min(g.From, more.From), max(g.To, more.To), g.Records + more.Records}
	}
}

// Reader walks the log for one feed. It is not safe for concurrent use. It holds no memory and no files between reads, so
// there may be very many.
type Reader struct {
	s *Store
}

// NewReader returns a reader; it needs no closing.
func (s *Store) NewReader() *Reader { return &Reader{s: s} }

// read is one Read in progress.
type read struct {
	s           *Store
	dst         []Record
	next        uint64 // offset
	left        Limits // counts down; math.MaxInt where there is no limit
	returned    int    // records
	want        func(offset uint64, topic uint32) bool
	topics      func(topic uint32) bool
	flags       record.Flags
	limits      *limitTable // nil: nothing was dropped
	dropped     *Gap
	droppedFrom uint64
	size        uint32 // of the entry that want is asked for, 0 if it has no bytes on disk
	segment     uint32 // and its segment, 0 while it is in memory
	scan        uint64 // the index is of no use below
	direct      bool   // what is read lies far apart: whole blocks would be for one record each
	satisfied   bool   // a limit is reached
}

const unlimited = int(^uint(0) >> 1)

func orUnlimited(n int) int {
	if n <= 0 {
		return unlimited
	}
	return n
}

// Read appends to dst the committed records with offset >= from that want chooses, within lim. next is the first
// offset not examined, Committed when caught up. Lost, deleted and gone transient records are skipped, damaged ones too, counted
// and logged. The bytes returned are valid for ever.
//
// The border between disk and memory moves while it reads, but only up: the flusher says what is on disk before the tail forgets
// it. So an offset that is not in the tail is on disk, whenever one looks.
func (r *Reader) Read(dst []Record, from uint64, lim Limits, want func(offset uint64, topic uint32) bool) (recs []Record, next uint64, err error) {
	s := r.s
	q := &read{s: s, dst: dst, next: max(from, s.First()), want: want, topics: lim.Topics, flags: lim.Flags, left: Limits{
		MaxRecords: orUnlimited(lim.MaxRecords), MaxBytes: orUnlimited(lim.MaxBytes), MaxScan: orUnlimited(lim.MaxScan),
	}, limits: s.limits.table(), dropped: lim.Dropped, droppedFrom: lim.DroppedFrom}
	err = q.run()
	s.timeline.realAll(q.dst[len(dst):])
	return q.dst, q.next, err
}

// run reads until a limit is reached or there is no more.
func (q *read) run() error {
	for !q.satisfied {
		g, caughtUp := q.s.tail.find(q.next)
		switch {
		case caughtUp:
			return nil
		case g != nil:
			q.readTail(g)
		default:
			if err := q.readDisk(q.s.tail.oldest()); err != nil {
				return err
			}
		}
	}
	return nil
}

// miss counts a record that was wanted and is not there.
func (q *read) miss(offset uint64) {
	if q.dropped != nil && offset >= q.droppedFrom {
		q.dropped.Add(offset)
	}
}

// wants tells whether an entry is to be returned: somebody wants it, and its topic's limits have left it there.
func (q *read) wants(offset uint64, topic uint32) bool {
	l := q.limits.get(topic)
	if l == nil || offset >= l.floor.Load() {
		return q.want(offset, topic)
	}
	if q.dropped != nil && !l.last() && q.want(offset, topic) {
		q.miss(offset)
	}
	return false
}

// fits counts an entry that is wanted, or says that it must wait for another Read.
func (q *read) fits(size int) bool {
	if size > q.left.MaxBytes && q.returned > 0 {
		q.satisfied = true
		return false
	}
	q.left.MaxRecords--
	q.left.MaxBytes = max(0, q.left.MaxBytes-size)
	q.returned++
	q.satisfied = q.left.MaxRecords == 0 || q.left.MaxBytes == 0
	return true
}

// readTail walks the tail from g on until a limit or the newest group.
func (q *read) readTail(g *Group) {
	for ; g != nil; g = g.next.Load() {
		mine, bytes := len(q.dst), 0
		for i := 0; i < len(g.Entries) && !q.satisfied; i++ {
			offset := g.Base + uint64(i)
			if offset < q.next {
				i += int(q.next - offset - 1)
				continue
			}
			if q.left.MaxScan == 0 {
				q.satisfied = true
				break
			}
			e := &g.Entries[i]
			q.size, q.segment = e.stored(), 0
			if e.Flags.Has(q.flags) && q.wants(offset, e.Topic) {
				if !q.fits(int(e.size)) {
					break
				}
				q.dst = append(q.dst, g.Record(i))
				bytes += int(e.size)
			}
			q.left.MaxScan--
			q.next = offset + 1
		}
		if bytes > 0 && bytes < len(g.buf)/8 {
			detach(q.dst[mine:]) // a few records must not keep the whole group in memory
		}
		if q.satisfied {
			return
		}
		q.next = max(q.next, g.End())
	}
}

// detach copies what records point to.
func detach(recs []Record) {
	n := 0
	for i := range recs {
		n += len(recs[i].Props) + len(recs[i].Payload)
	}
	arena := make([]byte, 0, n)
	own := func(b []byte) []byte {
		at := len(arena)
		arena = append(arena, b...)
		return arena[at:len(arena):len(arena)]
	}
	for i := range recs {
		if len(recs[i].Props) > 0 {
			recs[i].Props = own(recs[i].Props)
		}
		recs[i].Payload = own(recs[i].Payload)
	}
}

// chunk is the memory that a read of the disk works in.
type chunk struct {
	entries []ledger.Entry
	picks   []pick
	blocks  [16]*block // direct-mapped, held until the end of the read
	segs    [16]*seg
}

// pick is a wanted entry.
type pick struct {
	offset uint64
	*ledger.Entry
}

// directRead is the size from which on a record is read past the cache.
const directRead = 128 << 10

const (
	minChunk = 64
	maxChunk = 4096
)

var chunks = sync.Pool{New: func() any { return &chunk{entries: make([]ledger.Entry, maxChunk)} }}

// readDisk examines entries of the ledger below until.
func (q *read) readDisk(until uint64) error {
	c := chunks.Get().(*chunk)
	defer chunks.Put(c)
	defer c.releaseBlocks(&q.s.cache)
	// A reader that takes little at a time decodes little; one that finds little looks at more and more.
	size := maxChunk
	if q.left.MaxRecords < maxChunk/4 {
		size = max(minChunk, 2*q.left.MaxRecords)
	}
	for q.next < until && !q.satisfied {
		if q.topics != nil {
			if done, err := q.readSparse(c, until); err != nil {
				return err
			} else if done {
				continue
			}
		}
		size = min(size, q.left.MaxScan, int(min(until-q.next, maxChunk)))
		if size <= 0 {
			q.satisfied = true
			return nil
		}
		n, err := q.s.ledger.Read(q.next, c.entries[:size])
		if err != nil {
			return fmt.Errorf("read ledger at offset %d: %w", q.next, err)
		}
		if n == 0 {
			return fmt.Errorf("store: ledger ends at offset %d, %d was expected", q.next, until)
		}
		before := q.returned
		first, next := q.next, q.next
		c.picks = c.picks[:0]
		for i := range c.entries[:n] {
			e := &c.entries[i]
			offset := first + uint64(i)
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
			next = offset + 1
			if q.satisfied {
				break
			}
		}
		if err := q.fetch(c); err != nil {
			return err // q.next is still at the chunk's beginning, and so is dst
		}
		q.left.MaxScan -= int(next - first)
		q.next = next
		if q.returned == before {
			size = maxChunk
		}
	}
	return nil
}

var errBadEntry = errors.New("damaged ledger entry")

// fetch reads the chosen records into memory of their own and appends them to q.dst.
func (q *read) fetch(c *chunk) error {
	total := 0
	for i := range c.picks {
		total += int(c.picks[i].Length)
	}
	arena := make([]byte, 0, total)
	kept := len(q.dst)
	for i := range c.picks {
		p := &c.picks[i]
		at := len(arena)
		b := arena[at : at+int(p.Length) : at+int(p.Length)]
		ok, err := q.load(c, b, p)
		if err != nil {
			q.dst = q.dst[:kept]
			return err
		}
		if !ok { // deleted or damaged
			q.miss(p.offset)
			continue
		}
		r, n, err := record.Parse(b)
		if err == nil && (n != len(b) || r.Offset != p.offset) {
			err = fmt.Errorf("record %d of %d bytes where the ledger has %d of %d", r.Offset, n, p.offset, len(b))
		}
		if err != nil {
			q.s.damagedAt(p.offset, p.Entry, err)
			q.miss(p.offset)
			continue
		}
		if len(r.Props) == 0 {
			r.Props = nil
		}
		arena = arena[:at+len(b)]
		q.dst = append(q.dst, r)
	}
	return nil
}

// load fills b with the record's bytes. It returns false if the record is deleted or cannot be read any more.
func (q *read) load(c *chunk, b []byte, p *pick) (bool, error) {
	slot := p.Segment % uint32(len(c.segs))
	g := c.segs[slot]
	if g == nil || g.id != p.Segment {
		if g = q.s.table.get(p.Segment); g == nil {
			return false, nil // deleted
		}
		c.segs[slot] = g
	}
	var err error
	if len(b) >= directRead || q.direct {
		_, err = q.s.readSegment(g, b, int64(p.Pos)) // through the cache it would push out all else
	} else {
		err = q.copyBlocks(c, g, b, p.Pos)
	}
	switch {
	case err == nil:
		return true, nil
	case q.s.table.get(p.Segment) == nil:
		return false, nil // deleted while we looked
	case !isDamage(err):
		return false, err // no file descriptors left, closed: the record is still there
	}
	q.s.damagedAt(p.offset, p.Entry, err)
	return false, nil
}

// isDamage says whether an error means that the bytes are gone, not that they cannot be had just now.
func isDamage(err error) bool {
	var corrupt *record.CorruptError
	return errors.As(err, &corrupt) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.EIO) || errors.Is(err, record.ErrMagic)
}

// copyBlocks fills b from the cache. The blocks stay in use until the end of the read, since the next record is most likely
// in them too.
func (q *read) copyBlocks(c *chunk, g *seg, b []byte, pos uint32) error {
	for len(b) > 0 {
		key := blockKey{g.id, pos / blockSize}
		in := int(pos % blockSize)
		need := min(in+len(b), blockSize)
		slot := (key.segment ^ key.index*7) % uint32(len(c.blocks))
		bl := c.blocks[slot]
		if bl == nil || bl.key != key || len(bl.data) < need {
			if bl != nil {
				c.blocks[slot] = nil
				q.s.cache.release(bl)
			}
			var err error
			bl, err = q.s.cache.get(key, need, func(p []byte) (int, error) {
				return q.s.readSegment(g, p, int64(key.index)*blockSize)
			})
			if err != nil {
				return err
			}
			c.blocks[slot] = bl
		}
		n := copy(b, bl.data[in:need])
		b, pos = b[n:], pos+uint32(n)
	}
	return nil
}

func (c *chunk) releaseBlocks(cache *cache) {
	for i, b := range c.blocks {
		if b != nil {
			cache.release(b)
			c.blocks[i] = nil
		}
	}
	clear(c.segs[:])
	clear(c.picks)
}

// readSegment reads from a segment's file, no further than what the flusher has published: what is behind may be written
// again with other bytes.
func (s *Store) readSegment(g *seg, p []byte, pos int64) (int, error) {
	valid := g.bytes.Load() - pos
	if valid <= 0 {
		return 0, nil
	}
	h, err := s.handles.acquire(g)
	if err != nil {
		return 0, err
	}
	defer s.handles.release(h)
	n, err := h.r.ReadAt(p[:min(int64(len(p)), valid)], pos)
	return n, err
}
