package store

import (
	"cmp"
	"container/heap"
	"errors"
	"io/fs"
	"iter"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/edgemq/edgemq/store/journal"
	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/segment"
)

// source is a place that has records in order of offset: a segment, or the journal. Nothing of it is in memory before its first offset comes near.
type source struct {
	at        uint64 // the offset of head; until it has begun, one that none of its records is below
	journaled bool
	records   iter.Seq[Record]
	next      func() (Record, bool) // nil: it has not begun
	stop      func()
	head      Record
}

// sources is a heap, the source with the lowest offset first.
type sources []*source

// Len implements heap.Interface.
func (q sources) Len() int { return len(q) }

// Less implements heap.Interface. Those that have not begun come first: they may have the same offset.
func (q sources) Less(i, j int) bool {
	rank := func(s *source) int {
		switch {
		case s.next == nil:
			return 0
		case s.journaled:
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(q[i].at, q[j].at), cmp.Compare(rank(q[i]), rank(q[j]))) < 0
}

// Swap implements heap.Interface.
func (q sources) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *sources) Push(x any) { *q = append(*q, x.(*source)) }

// Pop implements heap.Interface.
func (q *sources) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

// salvageMemory is what segments may hold of what they read, together. A record is held whatever its size.
const salvageMemory = 64 << 20

// findSources lists the segments there are, and the journal.
func (v *salvage) findSources() error {
	root := v.opt.path("segments")
	dirs, err := v.fs.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var all []*segment.Surveyor
	for _, dir := range dirs {
		client, err := strconv.ParseUint(dir.Name(), 16, 32)
		if dir.Name() == "shared" {
			client, err = uint64(segment.Shared), nil
		}
		if err != nil || filepath.Base(segment.Dir(root, uint32(client))) != dir.Name() {
			continue
		}
		files, err := v.fs.ReadDir(filepath.Join(root, dir.Name()))
		if err != nil {
			return err
		}
		for _, file := range files {
			id, err := strconv.ParseUint(strings.TrimSuffix(file.Name(), ".seg"), 16, 32)
			if err != nil || v.deleted[uint32(id)] {
				continue
			}
			if y, err := v.survey(uint32(client), uint32(id)); err != nil {
				return err
			} else if y != nil {
				all = append(all, y)
			}
		}
	}
	for _, y := range all {
		y.Chunk = min(max(salvageMemory/int64(len(all)), 4<<10), 256<<10)
	}
	heap.Init(&v.sources)
	heap.Push(&v.sources, &source{journaled: true, records: v.journaled})
	return nil
}

// survey adds a segment, unless it is a leftover.
func (v *salvage) survey(client, id uint32) (*segment.Surveyor, error) {
	path := segment.Path(v.opt.path("segments"), client, id)
	meta, known := v.table[id]
	if !known && v.whole {
		return nil, nil // of a checkpoint that was not finished: its records are in the journal
	}
	y := &segment.Surveyor{FS: v.fs, Path: path, Length: -1, Headless: true, Closed: true}
	s := &source{}
	if known {
		y.Length, s.at = meta.Bytes, meta.Base
	} else if r, err := segment.OpenRead(v.fs, path); err == nil {
		s.at = r.Header().Base
		if err := r.Close(); err != nil {
			return nil, err
		}
	} else if !isDamage(err) {
		return nil, err
	}
	v.segs[id] = true
	v.out.Files++
	v.out.Bytes += size(v.fs, path)
	end := size(v.fs, path)
	s.records = func(yield func(Record) bool) {
		last := uint64(0)
		y.Likely = func(offset uint64, of uint32) bool {
			return offset > last && (!known || offset <= meta.Last) && (of == client || client == segment.Shared)
		}
		err := y.Run(func(_ int64, r Record) bool {
			if r.Offset <= last || !known && r.Offset < s.at {
				return true // a leftover behind the valid length
			}
			last = r.Offset
			return yield(r)
		}, func(pos, length int64, err error) {
			if known || pos+length < end { // else it is what a crash leaves; the ledger knows if there was more
				v.out.damaged(path, pos, length, err)
			}
		})
		switch {
		case err == nil:
		case isDamage(err):
			v.out.blame(path, err)
		default:
			v.failed = errors.Join(v.failed, err)
		}
	}
	v.sources = append(v.sources, s)
	return y, nil
}

// journaled are the records in the journal.
func (v *salvage) journaled(yield func(Record) bool) {
	errEnough := errors.New("enough")
	last := uint64(0)
	err := v.replay(func(g journal.Group) error {
		for b := g.Records; len(b) > 0; {
			r, n, err := record.Parse(b)
			if err != nil {
				return err
			}
			b = b[n:]
			if r.Offset <= last || r.Flags.Has(record.FlagTransient) {
				continue
			}
			last = r.Offset
			if !yield(r) {
				return errEnough
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		v.failed = errors.Join(v.failed, err)
	}
}

// advance takes the next record of a source, and the source out of the heap if there is none. It is the first of the heap.
func (v *salvage) advance(s *source) {
	if s.next == nil {
		s.next, s.stop = iter.Pull(s.records)
	}
	var ok bool
	if s.head, ok = s.next(); !ok {
		s.stop()
		heap.Remove(&v.sources, 0)
		return
	}
	s.at = s.head.Offset
	heap.Fix(&v.sources, 0)
}

// each calls fn with every message, in order of offset. Where there are several of an offset, the journal's counts, then the one that the ledger
// knows: after a crash there are leftovers of what was never acknowledged.
func (v *salvage) each(fn func(r *Record) error) error {
	defer func() {
		for _, s := range v.sources {
			if s.stop != nil {
				s.stop()
			}
		}
	}()
	for len(v.sources) > 0 && v.failed == nil {
		s := v.sources[0]
		if s.next != nil && s.head.Offset > v.prev && v.counts(s) {
			r := &s.head
			v.gap(r.Offset)
			v.prev = r.Offset
			if r.Offset >= v.floors[r.Topic] {
				v.count(r, s.journaled)
				if err := fn(r); err != nil {
					return err
				}
			}
		}
		v.advance(s)
	}
	if v.failed == nil && v.prev > 0 {
		v.gap(v.ledger.Next())
	}
	return v.failed
}

// counts says whether a source's record is the one of its offset.
func (v *salvage) counts(s *source) bool {
	if s.journaled {
		return true
	}
	e := v.entry(s.head.Offset)
	r := &s.head
	return e == nil || e.Segment != 0 && e.Topic == r.Topic && e.Client == r.Client && e.Time == r.Time &&
		int(e.Length) == record.Size(len(r.Props), len(r.Payload))
}

// entry is what the ledger says of an offset, nil if that is nothing.
func (v *salvage) entry(offset uint64) *ledger.Entry {
	if offset >= v.ledger.Next() {
		return nil
	}
	if from := offset - offset%maxChunk; v.from != from {
		n, err := v.ledger.Read(max(from, 1), v.window[max(from, 1)-from:])
		if err != nil {
			v.failed = errors.Join(v.failed, err)
			return nil
		}
		clear(v.window[max(from, 1)-from+uint64(n):])
		v.from = from
	}
	if e := &v.window[offset%maxChunk]; !e.Bad {
		return e
	}
	return nil
}

// gap counts what there should be between the last message and an offset.
func (v *salvage) gap(offset uint64) {
	if v.prev == 0 {
		return
	}
	unknown := uint64(0)
	for at := v.prev + 1; at < offset && v.failed == nil; at++ {
		switch e := v.entry(at); {
		case e == nil:
			unknown++
		case e.Segment != 0 && v.segs[e.Segment]:
			v.out.Missing++
		}
	}
	if offset != v.ledger.Next() { // behind the last message the ledger has nothing yet
		v.out.Unknown += unknown
	}
}
