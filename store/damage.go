package store

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"sync"

	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/segment"
)

// damagedAt counts and logs a record that cannot be read, unless retention has taken it meanwhile.
func (s *Store) damagedAt(offset uint64, e *ledger.Entry, err error) {
	if offset < s.First() {
		return
	}
	s.count.damaged.Add(1)
	var c *record.CorruptError
	switch {
	case errors.Is(err, errBadEntry):
		c = &record.CorruptError{
			Path: s.opt.path("ledger", fmt.Sprintf("%08x.ldg", offset/ledger.FileEntries)),
			Pos:  record.FileHeaderSize + int64(offset%ledger.FileEntries)*ledger.EntrySize, Err: err,
		}
	case !errors.As(err, &c):
		owner := e.Client
		if g := s.table.get(e.Segment); g != nil {
			owner = g.client
		}
		c = &record.CorruptError{Path: segment.Path(s.segments, owner, e.Segment), Pos: int64(e.Pos), Err: err}
	}
	missing := errors.Is(err, fs.ErrNotExist)
	if !s.reported.first(c.Path, c.Pos, missing) {
		return
	}
	if missing {
		s.log.Error("segment is missing, its records are lost", "file", c.Path, "offset", offset, "client", s.ClientName(e.Client))
		return
	}
	s.log.Error("record damaged, skipped", "file", c.Path, "pos", c.Pos, "offset", offset, "err", c.Err)
}

// missUnknown counts a record whose entry in the ledger is damaged, unless the index knows that its topic is not wanted: to tell of too much is
// better than to keep silent.
func (q *read) missUnknown(offset uint64) {
	if q.dropped == nil || offset < q.droppedFrom || offset < q.s.First() {
		return
	}
	if topic := q.s.index.topicOf(offset); topic == 0 || q.want(offset, topic) {
		q.miss(offset)
	}
}

// blockTopics are the topics of the offsets of one block.
type blockTopics struct {
	mu   sync.Mutex // comes before index.mu, and is held over reading a block
	base uint64
	of   []uint32 // by offset - base
}

// topicOf returns the topic of a record, 0 if the index has none of it: the block has no index yet, or it was made when the ledger was damaged
// already. It is for what happens once in a disk's life: it reads all of a block's index, and remembers the last.
func (x *index) topicOf(offset uint64) uint32 {
	base := offset / x.size * x.size
	if o := x.newest(); o.base == base && offset-base < uint64(len(o.topics)) {
		return o.topics[offset-base]
	}
	t := &x.blockTopics
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil || t.base != base {
		b := x.block(base / x.size)
		if b == nil {
			return 0
		}
		t.base, t.of = base, make([]uint32, x.size)
		for i := range b.dir {
			offs, err := x.postings(b, []int{i}, base)
			if err != nil {
				t.of = nil
				x.bad(base/x.size, err)
				return 0
			}
			for _, off := range offs {
				if off-base < x.size {
					t.of[off-base] = b.dir[i].topic
				}
			}
		}
	}
	return t.of[offset-base]
}

// reportBytes is how much of a file makes one line of the log at most, however many records in it are damaged: a lost
// file would flood the log. "store verify" names them all.
const reportBytes = 64 << 10

// reported remembers which damage was logged, so that many readers of one bad record make one line.
type reported struct {
	mu   sync.Mutex
	seen map[place]struct{}
}

// place is a stretch of a file.
type place struct {
	path  string
	block int64
}

func (d *reported) first(path string, pos int64, whole bool) bool {
	p := place{path, pos / reportBytes}
	if whole {
		p.block = math.MaxInt64
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.seen[p]; ok {
		return false
	}
	if d.seen == nil || len(d.seen) >= 4096 {
		d.seen = make(map[place]struct{})
	}
	d.seen[p] = struct{}{}
	return true
}
