package store

import (
	"context"

	"github.com/edgemq/edgemq/store/record"
)

// Record is a stored message. Its Props and Payload are valid for ever and must not be changed.
type Record = record.Record

// Mutation is one change of durable state; a nil Value deletes.
type Mutation = record.Mutation

// Message is what Append stores.
type Message struct {
	Topic, Client  uint32 // see Store.TopicID and Store.ClientID
	Flags          record.Flags
	PacketID       uint16
	Expiry         uint32 // seconds from now; counts if Flags has FlagExpiry
	Props, Payload []byte
}

// Completion is told once what became of an append. base is the offset of its first message.
// It runs on the committer, so it must not block nor call Append.
type Completion interface {
	Committed(base uint64, err error)
}

// Store is an open data directory. Its methods are safe for concurrent use.
type Store struct{}

// Open locks the directory and recovers what it holds; the work is bounded by the journal, not by the backlog.
func Open(o Options) (*Store, error) { panic("todo") }

// Run commits, flushes and deletes until ctx ends or the store fails. When it returns nil everything that
// was appended is committed, flushed and checkpointed.
func (s *Store) Run(ctx context.Context) error { panic("todo") }

// Close releases the directory. Call it after Run has returned.
func (s *Store) Close() error { panic("todo") }

// Append puts msgs (at consecutive offsets) and muts into the open group as one unit: after a crash
// all of it is there or nothing. It copies what it is given and returns; done, if not nil, is called once when the
// group is as durable as Options.Sync says, or has failed. Append blocks only while the open group is full.
// With durable false nothing in it needs an fsync of its own (QoS 0, cursors); done comes after the write then.
// Errors at once, after which done is not called: ErrFull, ErrFailed, ErrClosed, ErrTooLarge.
func (s *Store) Append(msgs []Message, muts []Mutation, durable bool, done Completion) error {
	panic("todo")
}

// TopicID returns the number of a topic, from 1, and gives it one at its first use.
func (s *Store) TopicID(name string) (uint32, error) { panic("todo") }

// TopicName returns the name of a topic, "" if id is unknown.
func (s *Store) TopicName(id uint32) string { panic("todo") }

// Topics returns the highest topic number in use.
func (s *Store) Topics() uint32 { panic("todo") }

// LookupTopic is TopicID for a topic that may not exist. It does not allocate.
func (s *Store) LookupTopic(name []byte) (uint32, bool) { panic("todo") }

// ClientID returns the number of a client, from 1, and gives it one at its first use. A persistent client (one
// whose session outlives its connection) gets segments of its own from its first message on.
func (s *Store) ClientID(name string, persistent bool) (uint32, error) { panic("todo") }

// ClientName returns the name of a client, "" if id is unknown.
func (s *Store) ClientName(id uint32) string { panic("todo") }

// Next returns the offset that the next appended message will get. Offsets start at 1.
func (s *Store) Next() uint64 { panic("todo") }

// Committed returns the first offset that is not yet committed.
func (s *Store) Committed() uint64 { panic("todo") }

// First returns the oldest offset that is kept.
func (s *Store) First() uint64 { panic("todo") }

// Get returns one value of the committed state.
func (s *Store) Get(b record.Bucket, key []byte) (value []byte, ok bool, err error) { panic("todo") }

// Range calls fn for the committed keys of a bucket that begin with prefix, in key order, until it returns false.
func (s *Store) Range(b record.Bucket, prefix []byte, fn func(k, v []byte) bool) error {
	panic("todo")
}

// SearchTime returns the first offset whose record arrived at or after the time (µs since 1970); Committed if none did.
func (s *Store) SearchTime(micros int64) uint64 { panic("todo") }
