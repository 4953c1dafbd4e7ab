package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/sparse"
)

// topics is the dictionary of topic numbers, all of it in memory.
//
// Lookup is on the path of every publish, so it takes no lock: clean is an immutable map, dirty a newer one
// under the mutex. A lookup that clean cannot answer asks dirty, and when that has happened often enough dirty becomes clean, as
// in sync.Map (which would need a string allocated for each lookup).
//
// Numbers that nothing refers to any more are given up, and never used again; free.go says how.
type topics struct {
	clean atomic.Pointer[map[string]uint32]
	names sparse.Table[atomic.Pointer[string]] // by number; changed under mu
	known atomic.Int64                         // how many have a number

	mu     sync.Mutex
	dirty  map[string]uint32 // nil: nothing newer than clean
	misses int

	// leaving are numbers that are to be given up, but for those that are asked for meanwhile; nil at other times. Changed, the map too, under mu.
	leaving atomic.Pointer[map[uint32]struct{}]
	left    map[uint32]struct{} // given up a moment ago, and still in names; under mu

	assign sync.Mutex // held by who gives a number, or gives some up, across its Append
	next   uint32     // lowest number that was never given; under assign
}

func (t *topics) init() {
	t.clean.Store(&map[string]uint32{})
	t.left = make(map[uint32]struct{})
	t.next = 1
}

// topicKey is the key of a topic in record.BucketTopics.
func topicKey(id uint32) []byte { return binary.BigEndian.AppendUint32(nil, id) }

// nextTopicKey holds the lowest number that no topic had when the last one was given up: a number is never used twice.
var nextTopicKey = []byte("next-topic")

func (t *topics) lookup(name []byte) (uint32, bool) {
	if id, ok := (*t.clean.Load())[string(name)]; ok {
		return id, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	id, ok := t.newest()[string(name)] // dirty may have become clean just now
	if t.dirty != nil {
		if t.misses++; t.misses >= len(t.dirty) {
			dirty := t.dirty
			t.clean.Store(&dirty)
			t.dirty, t.misses = nil, 0
		}
	}
	return id, ok
}

// newest returns the map that has everything; mu is held.
func (t *topics) newest() map[string]uint32 {
	if t.dirty != nil {
		return t.dirty
	}
	return *t.clean.Load()
}

// find is lookup for who is going to use the number: it is not given up then. The caller has a Use.
func (t *topics) find(name []byte) (uint32, bool) {
	// In this order: who sees none leave here has a Use from before they were to leave, or comes after they have left.
	leaving := t.leaving.Load()
	id, ok := t.lookup(name)
	if leaving == nil || !ok {
		return id, ok
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if id, ok = t.newest()[string(name)]; ok {
		if leaving = t.leaving.Load(); leaving != nil {
			delete(*leaving, id)
		}
	}
	return id, ok
}

// set records a number, in any order: the journal may be replayed over a newer state.
func (t *topics) set(id uint32, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dirty == nil {
		clean := *t.clean.Load()
		t.dirty = make(map[string]uint32, len(clean)+1)
		maps.Copy(t.dirty, clean)
	}
	t.dirty[name] = id
	at := t.names.Make(id)
	if at.Load() == nil {
		t.known.Add(1)
	}
	at.Store(&name)
	t.next = max(t.next, id+1)
}

// load finds the next number, after replay: those that were given last may have been given up.
func (t *topics) load(s *Store) error {
	v, ok, err := s.state.Get(record.BucketMeta, nextTopicKey)
	if ok && len(v) == 4 {
		t.next = max(t.next, binary.BigEndian.Uint32(v))
	}
	return err
}

// drop takes numbers out of the dictionary in recovery, when nobody looks anything up.
func (t *topics) drop(ids []uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		at := t.names.At(id)
		if at == nil || at.Load() == nil {
			continue // repeated by the journal
		}
		if name := *at.Load(); t.dirty[name] == id {
			delete(t.dirty, name)
		}
		at.Store(nil)
		t.known.Add(-1)
	}
}

// unmarked returns some topics that are not marked.
func (t *topics) unmarked(used numberSet) (ids []uint32) {
	t.mu.Lock()
	left := maps.Clone(t.left)
	t.mu.Unlock()
	for id, at := range t.names.All() {
		if at.Load() == nil || used.has(id) {
			continue
		}
		if _, ok := left[id]; ok {
			continue
		}
		if ids = append(ids, id); len(ids) == freeAtOnce {
			break
		}
	}
	return ids
}

// leave has numbers be ready to be given up.
func (t *topics) leave(ids []uint32) {
	leaving := make(map[uint32]struct{}, len(ids))
	for _, id := range ids {
		leaving[id] = struct{}{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaving.Store(&leaving)
}

// stay ends what leave began.
func (t *topics) stay() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaving.Store(nil)
}

// remove takes those of the numbers that nobody has asked for since leave out of the dictionary by name, and returns them. Who has one of them
// still finds its name, until forget. assign is held, so that nothing is added meanwhile.
func (t *topics) remove(ids []uint32) (gone []uint32) {
	t.mu.Lock()
	newest := t.newest()
	t.mu.Unlock()
	rest := maps.Clone(newest) // may be large, so no publish waits for it
	t.mu.Lock()
	defer t.mu.Unlock()
	leaving := *t.leaving.Load()
	for _, id := range ids {
		if _, ok := leaving[id]; !ok {
			continue
		}
		delete(leaving, id)
		if name := *t.names.At(id).Load(); rest[name] == id { // not one that was given up before, when that could not be saved
			delete(rest, name)
		}
		t.left[id] = struct{}{}
		gone = append(gone, id)
	}
	t.clean.Store(&rest)
	t.dirty, t.misses = nil, 0
	t.known.Add(-int64(len(gone)))
	return gone
}

// forget takes away the names of numbers that were removed.
func (t *topics) forget(ids []uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		if at := t.names.At(id); at != nil {
			at.Store(nil)
		}
		delete(t.left, id)
	}
	t.names.Trim(func(at *atomic.Pointer[string]) bool { return at.Load() == nil })
}

// all returns the numbers that have a name.
func (t *topics) all() []uint32 {
	ids := make([]uint32, 0, max(0, t.known.Load()))
	for id, at := range t.names.All() {
		if at.Load() != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// ErrNumbers means that all numbers that topics or clients can have were given. They have 32 bits, and none is used twice.
var ErrNumbers = errors.New("store: all numbers have been used")

// TopicID returns the number of a topic, from 1, and gives it one at its first use. See Use for how long it holds.
func (s *Store) TopicID(name string) (uint32, error) {
	if id, ok := s.topics.find([]byte(name)); ok {
		return id, nil
	}
	s.topics.assign.Lock()
	defer s.topics.assign.Unlock()
	if id, ok := s.topics.find([]byte(name)); ok {
		return id, nil
	}
	id := s.topics.next
	if id >= manyTopics-1 {
		return 0, fmt.Errorf("%w: of topics", ErrNumbers)
	}
	// The number is in a group no later than the first record that uses it, so no crash can keep the record and lose the name.
	muts := []Mutation{record.Put(record.BucketTopics, topicKey(id), []byte(name))}
	if l := s.limits.add(id, name); l != nil { // before anybody finds the number
		muts = append(muts, l.tally())
	}
	if err := s.Append(nil, muts, false, nil); err != nil {
		return 0, fmt.Errorf("number for a new topic: %w", err)
	}
	s.topics.set(id, name)
	return id, nil
}

// TopicName returns the name of a topic, "" if id is unknown.
func (s *Store) TopicName(id uint32) string {
	if at := s.topics.names.At(id); at != nil {
		if name := at.Load(); name != nil {
			return *name
		}
	}
	return ""
}

// Topics returns how many topics have a number.
func (s *Store) Topics() uint32 { return uint32(s.topics.known.Load()) }

// LookupTopic returns the number of a topic if it has one, for looking: nothing keeps it from being given up. It does not allocate.
func (s *Store) LookupTopic(name []byte) (uint32, bool) { return s.topics.lookup(name) }
