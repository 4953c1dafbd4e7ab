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

	assign sync.Mutex // held by who gives a number, or gives some up, across its Append
	next   uint32     // lowest number that was never given; under assign
}

func (t *topics) init() {
	t.clean.Store(&map[string]uint32{})
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

// drop is remove and forget at once, in recovery.
func (t *topics) drop(ids []uint32) {
	if len(ids) > 0 {
		t.remove(ids)
		t.forget(ids)
	}
}

// remove takes numbers out of the dictionary by name. Who has one of them still finds its name, until forget.
func (t *topics) remove(ids []uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rest, n := t.dirty, 0
	if rest == nil || len(*t.clean.Load()) > 0 { // else nobody has looked anything up: recovery, which has many groups to go through
		rest = maps.Clone(t.newest())
	}
	for _, id := range ids {
		at := t.names.At(id)
		if at == nil || at.Load() == nil {
			continue // repeated by the journal
		}
		n++
		if name := *at.Load(); rest[name] == id {
			delete(rest, name)
		}
	}
	if t.known.Add(-int64(n)); len(*t.clean.Load()) == 0 {
		t.dirty = rest
		return
	}
	t.clean.Store(&rest)
	t.dirty, t.misses = nil, 0
}

// forget takes away the names of numbers that were removed.
func (t *topics) forget(ids []uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		if at := t.names.At(id); at != nil {
			at.Store(nil)
		}
	}
	t.names.Trim(func(at *atomic.Pointer[string]) bool { return at.Load() == nil })
}

// all returns the numbers that have a name.
func (t *topics) all() []uint32 {
	ids := make([]uint32, 0, t.known.Load())
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
