package store

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/edgemq/edgemq/store/record"
)

// topics is the dictionary of topic numbers, all of it in memory.
//
// Lookup is on the path of every publish, so it takes no lock: clean is an immutable map, dirty a newer one
// under the mutex. A lookup that clean cannot answer asks dirty, and when that has happened often enough dirty becomes clean, as
// in sync.Map (which would need a string allocated for each lookup).
type topics struct {
	clean atomic.Pointer[map[string]uint32]
	names atomic.Pointer[[]string] // by number - 1; grows only

	mu     sync.Mutex
	dirty  map[string]uint32 // nil: nothing newer than clean
	misses int

	assign sync.Mutex // held by who gives a number, across its Append
}

func (t *topics) init() {
	t.clean.Store(&map[string]uint32{})
	t.names.Store(&[]string{})
}

// topicKey is the key of a topic in record.BucketTopics.
func topicKey(id uint32) []byte { return binary.BigEndian.AppendUint32(nil, id) }

func (t *topics) lookup(name []byte) (uint32, bool) {
	if id, ok := (*t.clean.Load())[string(name)]; ok {
		return id, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dirty == nil {
		id, ok := (*t.clean.Load())[string(name)] // dirty may have become clean just now
		return id, ok
	}
	id, ok := t.dirty[string(name)]
	if t.misses++; t.misses >= len(t.dirty) {
		dirty := t.dirty
		t.clean.Store(&dirty)
		t.dirty, t.misses = nil, 0
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
		for k, v := range clean {
			t.dirty[k] = v
		}
	}
	t.dirty[name] = id
	names := *t.names.Load()
	// Readers see a slice header of the past; what it covers is never written again.
	for uint32(len(names)) < id {
		names = append(names, "")
	}
	if names[id-1] != name {
		if int(id) < len(names) {
			names = append([]string(nil), names...)
		}
		names[id-1] = name
	}
	t.names.Store(&names)
}

// TopicID returns the number of a topic, from 1, and gives it one at its first use.
func (s *Store) TopicID(name string) (uint32, error) {
	if id, ok := s.topics.lookup([]byte(name)); ok {
		return id, nil
	}
	s.topics.assign.Lock()
	defer s.topics.assign.Unlock()
	if id, ok := s.topics.lookup([]byte(name)); ok {
		return id, nil
	}
	id := uint32(len(*s.topics.names.Load())) + 1
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
	names := *s.topics.names.Load()
	if id == 0 || id > uint32(len(names)) {
		return ""
	}
	return names[id-1]
}

// Topics returns the highest topic number in use.
func (s *Store) Topics() uint32 { return uint32(len(*s.topics.names.Load())) }

// LookupTopic is TopicID for a topic that may not exist. It does not allocate.
func (s *Store) LookupTopic(name []byte) (uint32, bool) { return s.topics.lookup(name) }
