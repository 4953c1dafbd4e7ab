package store

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/segment"
)

// maxTopics bounds the topics that a segment's Meta lists. A segment of more lists manyTopics alone.
const maxTopics = 1024

// manyTopics stands for any topic.
const manyTopics uint32 = math.MaxUint32

// seg is a segment that the store knows.
type seg struct {
	id, client uint32
	bytes      atomic.Int64 // what a reader may read: written in full, though perhaps not synced
	meta       segment.Meta // changed by the flusher under table.mu
	sealSoon   atomic.Bool  // retention needs it sealed
	saved      bool         // the checkpoint knows it as sealed: no recovery writes to it again. Under table.mu
}

// table is the set of segments. What the ledger refers to and is not here has been deleted.
type table struct {
	mu    sync.RWMutex
	segs  map[uint32]*seg
	bytes int64
}

func segmentKey(id uint32) []byte { return binary.BigEndian.AppendUint32(nil, id) }

// nextSegmentKey holds the lowest number that no segment ever had: a number is never used twice, or the ledger's entries
// of a deleted segment would point into another one.
var nextSegmentKey = []byte("next-segment")

func (t *table) get(id uint32) *seg {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.segs[id]
}

func (t *table) add(m segment.Meta) *seg {
	g := &seg{id: m.ID, client: m.Client, meta: m}
	g.bytes.Store(m.Bytes)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.segs[m.ID] = g
	t.bytes += m.Bytes
	return g
}

func (t *table) remove(id uint32) *seg {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.segs[id]
	if g != nil {
		delete(t.segs, id)
		t.bytes -= g.meta.Bytes
	}
	return g
}

// totals returns how many segments there are and their bytes.
func (t *table) totals() (int, int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.segs), t.bytes
}

// first returns the lowest offset in any segment, limit if there is none below.
func (t *table) first(limit uint64) uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, g := range t.segs {
		limit = min(limit, g.meta.Base)
	}
	return limit
}

// update changes a segment's Meta.
func (t *table) update(g *seg, change func(m *segment.Meta)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := g.meta.Bytes
	change(&g.meta)
	if t.segs[g.id] == g {
		t.bytes += g.meta.Bytes - before
	}
	g.bytes.Store(g.meta.Bytes)
}

// put is the mutation that saves the segment's Meta.
func (t *table) put(g *seg) Mutation {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return record.Put(record.BucketSegments, segmentKey(g.id), segment.AppendMeta(nil, g.meta))
}

// addTopic returns topics with one more, always a new slice if it changes: readers hold the old one.
func addTopic(topics []uint32, topic uint32) []uint32 {
	i, ok := slices.BinarySearch(topics, topic)
	if ok || len(topics) == 1 && topics[0] == manyTopics {
		return topics
	}
	if len(topics) >= maxTopics {
		return []uint32{manyTopics}
	}
	return slices.Insert(slices.Clone(topics), i, topic)
}

// segState is a copy of what changes in a segment.
type segState struct {
	*seg
	meta  segment.Meta
	saved bool
}

// snapshot returns all segments as they are now, and their bytes.
func (t *table) snapshot() ([]segState, int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := make([]segState, 0, len(t.segs))
	for _, g := range t.segs {
		all = append(all, segState{g, g.meta, g.saved})
	}
	return all, t.bytes
}

// sorted returns all segments by number.
func (t *table) sorted() []*seg {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.SortedFunc(maps.Values(t.segs), func(a, b *seg) int { return cmp.Compare(a.id, b.id) })
}
