package store

import "github.com/edgemq/edgemq/store/segment"

// Holdings tell which clients may have records where.
type Holdings struct {
	Deleted uint64 // segments that retention has deleted since the start: while this stays, nothing becomes less
	Until   uint64 // what lies from here on is not known
	by      map[uint32][]extent
}

// extent is where a segment has records, both ends included.
type extent struct{ from, to uint64 }

// Holdings looks at all segments as they are now.
func (s *Store) Holdings() *Holdings {
	h := &Holdings{Deleted: s.count.deletedSegments.Load(), Until: s.tail.flushedUntil.Load(), by: map[uint32][]extent{}}
	all, _ := s.table.snapshot() // in this order: what is flushed is in the table
	for _, g := range all {
		if g.meta.Records > 0 {
			h.by[g.client] = append(h.by[g.client], extent{g.meta.Base, g.meta.Last})
		}
	}
	return h
}

// Any tells whether there may be a record of a client with from <= offset < to.
func (h *Holdings) Any(client uint32, from, to uint64) bool {
	if from >= to {
		return false
	}
	if to > h.Until {
		return true
	}
	for _, of := range [...]uint32{client, segment.Shared} {
		for _, e := range h.by[of] {
			if e.from < to && e.to >= from {
				return true
			}
		}
	}
	return false
}
