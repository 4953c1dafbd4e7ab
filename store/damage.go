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
