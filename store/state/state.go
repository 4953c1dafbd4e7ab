// Package state keeps small durable state by key in bbolt. What is newer than the last checkpoint is
// held in memory, and is in the journal.
//
// state.db has one bbolt bucket for each record.Bucket, by its name. In "meta" the key "format" holds
// the version of the whole (u16) and "checkpoint" the last Checkpoint. docs/FORMAT.md has the full rules.
package state

import (
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// Bucket names one table; see the constants in package record.
type Bucket = record.Bucket

// ErrVersion means that the state is sound but newer than this build.
var ErrVersion = record.ErrVersion

// CorruptError says where the state stopped making sense. Pos is 0: bbolt does not tell.
type CorruptError = record.CorruptError

// Checkpoint is what the files of the store hold for certain.
type Checkpoint struct {
	JournalFile, JournalGroup uint64 // where replay begins (journal.Position)
	First                     uint64 // lowest offset kept
	Next                      uint64 // all offsets below are in the ledger and the segments
	Time                      int64  // µs since 1970, of the last record below Next
	Saved                     int64  // µs since 1970, when it was made
}

// DB is an open state. Get, Range and Apply are safe for concurrent use; Freeze and Save belong to
// one goroutine. Close it when all others have ended.
type DB struct{}

// Open opens the state at path, and makes it if there is none.
func Open(fsys vfs.FS, path string) (*DB, error) { return nil, nil }

// OpenReadOnly opens the state of a stopped broker and changes nothing on the disk. Apply works, in memory.
func OpenReadOnly(fsys vfs.FS, path string) (*DB, error) { return nil, nil }

// Get returns the value of a key. The caller must not change it; it stays valid.
func (d *DB) Get(b Bucket, key []byte) (value []byte, ok bool, err error) { return nil, false, nil }

// Range calls fn with every key that has the prefix, in order, until fn returns false. fn may call
// into d. A change made meanwhile may or may not be seen. k and v stay valid and must not be changed.
func (d *DB) Range(b Bucket, prefix []byte, fn func(k, v []byte) bool) error { return nil }

// Apply makes changes, the newest wins. It copies what it keeps.
func (d *DB) Apply(ms []record.Mutation) {}

// Freeze marks all that was applied so far as what the next Save writes, and returns the number of
// keys. Reads still see it. Call it at a group boundary, the one that the checkpoint will name.
func (d *DB) Freeze() int { return 0 }

// Save writes what is frozen, then extra, and the checkpoint in one transaction. On failure nothing
// is lost, and Freeze and Save may be repeated.
func (d *DB) Save(cp Checkpoint, extra []record.Mutation) error { return nil }

// Checkpoint returns the last one saved, false if there is none.
func (d *DB) Checkpoint() (Checkpoint, bool) { return Checkpoint{}, false }

// Stats is how much the state holds.
type Stats struct {
	Pending      int   // keys changed since the last Save
	PendingBytes int64 // of those keys and values
	FileBytes    int64
}

// Stats tells how much the state holds.
func (d *DB) Stats() Stats { return Stats{} }

// Check reads the whole file and returns what is wrong with it. It takes long on a large one.
func (d *DB) Check() error { return nil }

// Close closes the file. What was not saved is in the journal.
func (d *DB) Close() error { return nil }
