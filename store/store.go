package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/store/journal"
	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/state"
	"github.com/edgemq/edgemq/store/vfs"
)

// Record is a stored message. Its Props and Payload are valid for ever and must not be changed.
type Record = record.Record

// Mutation is one change of durable state; a nil Value deletes.
type Mutation = record.Mutation

// Store is an open data directory. Its methods are safe for concurrent use.
type Store struct {
	opt      Options
	log      *slog.Logger
	fs       vfs.FS
	segments string // the directory of segments
	lock     io.Closer
	state    *state.DB
	journal  *journal.Journal
	ledger   *ledger.Ledger

	open      appender
	committer committer
	tail      tail
	flusher   flusher
	table     table
	topics    topics
	clients   clients
	names     names
	cache     cache
	index     index
	limits    limits
	uses      uses
	freer     freer
	handles   handles
	count     counters
	reported  reported
	timeline  timeline

	maxGroup   int
	maxJournal int64

	// boundary is held while a group becomes visible and while a checkpoint notes where it is.
	boundary  sync.Mutex
	position  journal.Position // behind the newest visible group; under boundary
	journaled atomic.Int64     // bytes of journal written since Open
	released  atomic.Int64     // of those, covered by a checkpoint
	fileUsed  atomic.Int64     // bytes of the journal's current file, from Open on

	// durableFile is the newest journal file of which something has been synced. A checkpoint names no newer one: a power
	// cut could take that back, header and all, and recovery would miss it.
	durableFile atomic.Uint64

	first            atomic.Uint64
	sweepBelow       uint32        // lowest segment number that was free at Open
	retainEvery      time.Duration // shorter in tests
	renumbered       atomic.Uint64 // changes before numbers are given up
	checkpointedNext atomic.Uint64

	waiting  atomic.Int32  // how many wait for progress: the committer's goroutine, a reader that commits
	progress chan struct{} // made by flusher, checkpoint, followers
	prepare  chan struct{} // the journal may need a next file
	// checkpointNow asks the flusher for a checkpoint.
	checkpointNow chan struct{}

	full     atomic.Uint32 // why: fullLow …
	failed   chan struct{} // closed when the store fails
	failOnce sync.Once
	failErr  atomic.Pointer[error]
	running  atomic.Bool
}

// errKilled is the failure that tests use to stop a store as a crash would.
var errKilled = errors.New("killed")

// Run commits, flushes and deletes until ctx ends or the store fails. When it returns nil everything that
// was appended is committed, flushed and checkpointed.
func (s *Store) Run(ctx context.Context) error {
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("store: Run called twice")
	}
	s.log.Info("store open", "dir", s.opt.Dir, "sync", s.opt.Sync.String(), "first", s.First(), "next", s.Next())
	helpers, stopHelpers := context.WithCancel(context.WithoutCancel(ctx))
	defer stopHelpers()
	var wg sync.WaitGroup
	committed := make(chan struct{}) // closed when the committer has ended
	var commitErr, flushErr error
	wg.Go(func() {
		defer close(committed)
		commitErr = s.commitLoop(ctx.Done())
	})
	wg.Go(func() {
		flushErr = s.flushLoop(committed)
		stopHelpers() // the last checkpoint may have waited for what they do
	})
	wg.Go(func() { s.prepareLoop(helpers) })
	wg.Go(func() { s.retainLoop(helpers) })
	wg.Go(func() { s.indexLoop(helpers) })
	wg.Go(func() { s.limitLoop(helpers) })
	wg.Go(func() { s.freeLoop(helpers) })
	wg.Wait()
	if err := s.failure(); err != nil {
		return err
	}
	if errors.Is(commitErr, ErrFull) {
		s.log.Warn("stopped while the disk was full; appends without an answer are not stored")
		commitErr = nil
	}
	return errors.Join(commitErr, flushErr)
}

// Close releases the directory. Call it after Run has returned.
func (s *Store) Close() error {
	if s.open.alarm != nil {
		s.open.alarm.Stop()
	}
	s.open.shut(ErrClosed)
	s.failRest(ErrClosed)
	var errs []error
	for _, a := range s.flusher.writers {
		errs = append(errs, a.close())
	}
	errs = append(errs, s.handles.close())
	return errors.Join(append(errs, s.release())...)
}

// release closes what Open opened, in reverse.
func (s *Store) release() error {
	var errs []error
	s.names.close()
	if s.journal != nil {
		errs = append(errs, s.journal.Close())
	}
	if s.ledger != nil {
		errs = append(errs, s.ledger.Close())
	}
	if s.state != nil {
		errs = append(errs, s.state.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// Next returns the offset that the next appended message will get.
func (s *Store) Next() uint64 { return s.open.next.Load() }

// Committed returns the first offset that is not yet committed.
func (s *Store) Committed() uint64 { return s.tail.committed.Load() }

// Now is the time by Options.Now, which messages are stored with: what is compared with their times, or outlives the process, is taken from here.
func (s *Store) Now() time.Time { return s.opt.Now() }

// First returns the oldest offset that is kept.
func (s *Store) First() uint64 { return s.first.Load() }

// Get returns one value of the committed state.
func (s *Store) Get(b record.Bucket, key []byte) (value []byte, ok bool, err error) {
	return s.state.Get(b, key)
}

// Range calls fn for the committed keys of a bucket that begin with prefix, in key order, until it returns false.
func (s *Store) Range(b record.Bucket, prefix []byte, fn func(k, v []byte) bool) error {
	return s.state.Range(b, prefix, fn)
}

// SearchTime returns the first offset whose record arrived at or after the time (µs since 1970); Committed if none did.
func (s *Store) SearchTime(micros int64) uint64 {
	// Real times never run backwards, so one question tells which side of the border to search. The tail goes first:
	// meanwhile records move from it to the ledger, not the other way.
	if offset, ok := s.tail.search(micros, s.timeline.real); ok {
		return offset
	}
	return max(s.ledger.Search(micros, s.timeline.real), s.First())
}

// path is where something in the data directory is.
func (o *Options) path(names ...string) string {
	return filepath.Join(append([]string{o.Dir}, names...)...)
}

// bounds fills in what depends on the journal.
func (s *Store) bounds() {
	s.maxGroup = s.journal.MaxGroup()
	s.maxJournal = max(2*s.opt.CheckpointBytes, s.opt.CheckpointBytes+int64(s.maxGroup)) + 2*s.opt.JournalFileBytes
}

// MaxFileBytes is the most that Options.JournalFileBytes and SegmentBytes may be.
const MaxFileBytes = 2 << 30

// check refuses what could not work.
func (o *Options) check() error {
	switch {
	case o.Dir == "":
		return errors.New("store: no data directory given")
	case o.SegmentBytes < 4<<10 || o.SegmentBytes > MaxFileBytes:
		return fmt.Errorf("store: segments of %d bytes: from 4 KiB to 2 GiB are possible", o.SegmentBytes)
	case o.JournalFileBytes < 64<<10 || o.JournalFileBytes > MaxFileBytes:
		return fmt.Errorf("store: journal files of %d bytes: from 64 KiB to 2 GiB are possible", o.JournalFileBytes)
	case o.SyncInterval < time.Millisecond:
		return fmt.Errorf("store: sync interval %v is shorter than 1 ms", o.SyncInterval)
	}
	return nil
}
