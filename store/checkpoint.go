package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/segment"
	"github.com/edgemq/edgemq/store/state"
	"github.com/edgemq/edgemq/store/vfs"
)

// errUnsynced marks a failed fsync, after which nothing may be tried again: the kernel may have dropped the pages, and
// the next fsync would report success.
var errUnsynced = errors.New("sync before checkpoint")

// maxPending bounds the memory of what state holds until a checkpoint, at pendingKey bytes a key beside the key and its value.
const (
	maxPending = 16 << 20
	pendingKey = 160
)

// checkpointDue says whether the journal has grown or aged enough.
func (s *Store) checkpointDue() bool {
	if s.journalBytes() >= s.opt.CheckpointBytes {
		return true
	}
	select {
	case <-s.checkpointNow:
		return true
	default:
	}
	if st := s.state.Stats(); st.PendingBytes+pendingKey*int64(st.Pending) > maxPending {
		return true
	}
	if s.journalBytes() == 0 && len(s.flusher.dirty) == 0 && len(s.flusher.tallied) == 0 {
		return false
	}
	return time.Since(s.flusher.checkpointed) >= s.opt.CheckpointInterval
}

// checkpoint makes all that was committed up to now durable outside the journal.
//
// What the disk holds at each step, and what a crash leaves:
//
//  1. Freeze, at a boundary between two groups: state.db has the old checkpoint.
//  2. Records up to the boundary are written: segments and ledger are longer than the old checkpoint says. A crash
//     here and in 3 replays the journal from the old position, over the same bytes. New segments are in no table: replay
//     makes them anew, and what it does not reuse is swept away.
//  3. Everything dirty is synced, names too.
//  4. state.Save, one transaction: old checkpoint or new.
//  5. Names that are new go to the copy beside state.db. A crash before that has the next start write it anew.
//  6. Journal files before the boundary of the checkpoint before this one are released: should the meta page of state.db that was just
//     written be damaged one day, bbolt goes back to the other, with the checkpoint before, and replay needs what came since. A
//     crash before that leaves files that replay skips.
//  7. Ledger files below First, as it was then, are dropped. A crash before that leaves files to drop next time.
func (s *Store) checkpoint(force bool) error {
	f := &s.flusher
	start := time.Now()
	f.sealOld(s.opt.Now())

	s.boundary.Lock()
	keys := s.state.Freeze()
	pos, until, journaled := s.position, s.tail.newest(), s.journaled.Load()
	s.boundary.Unlock()
	pos.File = min(pos.File, s.durableFile.Load())

	for f.cur != until {
		if err := s.flushUntil(f.collect(until)); err != nil {
			return err
		}
	}
	if !force && keys == 0 && len(f.dirty) == 0 && len(f.tallied) == 0 && f.saved.Next == until.End() && journaled == s.released.Load() {
		f.checkpointed = start
		return nil
	}
	if err := f.sync(); vfs.Scarce(err) {
		return fmt.Errorf("sync before checkpoint: %w", err) // what could not be opened was not tried, and is still noted as unsynced
	} else if err != nil {
		return fmt.Errorf("%w: %w", errUnsynced, err)
	}
	cp := state.Checkpoint{
		JournalFile: pos.File, JournalGroup: pos.Group,
		First: s.table.first(until.End()), Next: until.End(), Time: f.time, Saved: s.opt.Now().UnixMicro(),
	}
	extra := make([]Mutation, 0, len(f.dirty)+len(f.tallied)+1)
	for _, a := range f.dirty {
		extra = append(extra, s.table.put(a.seg))
	}
	for _, l := range f.tallied {
		extra = append(extra, l.tally())
	}
	extra = append(extra, record.Put(record.BucketMeta, nextSegmentKey, segmentKey(f.nextID)))
	named := append(s.state.Frozen(record.BucketTopics), s.state.Frozen(record.BucketClients)...)
	if err := s.state.Save(cp, extra); err != nil {
		return fmt.Errorf("save checkpoint: %w", err)
	}
	s.names.save(named)
	before := f.saved
	f.saved = cp
	s.saved(cp, before, journaled)
	if err := s.ledger.DropBefore(before.First); err != nil {
		s.log.Warn("drop old ledger files", "offset", before.First, "err", err) // tried again at the next checkpoint
	}
	took := time.Since(start)
	f.checkpointed = start
	s.count.checkpoints.Add(1)
	s.count.checkpointLatency.Store(int64(took))
	s.log.Debug("checkpoint", "offset", cp.Next, "changes", len(extra), "keys", keys, "took", took)
	return nil
}

// saved lets the rest of the store know of a checkpoint, and of the one before.
func (s *Store) saved(cp, before state.Checkpoint, journaled int64) {
	f := &s.flusher
	s.table.mu.Lock()
	for id, a := range f.dirty {
		a.saved = a.meta.Sealed
		delete(f.dirty, id)
	}
	s.table.mu.Unlock()
	clear(f.tallied)
	s.journal.Release(journalPosition(before))
	s.released.Store(journaled)
	s.moveFirst()
	s.checkpointedNext.Store(cp.Next)
	s.count.checkpointAt.Store(cp.Saved)
	poke(s.prepare)
	poke(s.progress)
}

// sync makes segments and ledger durable, bytes and names.
func (f *flusher) sync() error {
	root, fs := f.s.segments, f.s.fs
	unsynced := make([]*active, 0, len(f.dirty))
	for _, a := range f.dirty {
		if a.unsynced { // others are only sealed
			unsynced = append(unsynced, a)
		}
	}
	err := f.atOnce(len(unsynced), func(i int) error { return f.syncSegment(unsynced[i]) })
	if err != nil {
		return err
	}
	f.writers = slices.DeleteFunc(f.writers, func(a *active) bool { return a.w == nil })
	dirs := slices.Collect(maps.Keys(f.dirs))
	if err := f.atOnce(len(dirs), func(i int) error { return fs.SyncDir(segment.Dir(root, dirs[i])) }); err != nil {
		return err
	}
	if len(f.dirs) > 0 {
		if err := fs.SyncDir(root); err != nil {
			return err
		}
	}
	clear(f.dirs)
	return f.s.ledger.Sync()
}

// syncSegment makes the bytes of a segment durable.
func (f *flusher) syncSegment(a *active) error {
	w, reopened := a.w, false
	if w == nil {
		var err error
		if w, err = segment.OpenWrite(f.s.fs, f.s.segments, a.client, a.id, a.meta.Bytes); err != nil {
			return err
		}
		reopened = true
	}
	err := w.Sync()
	if reopened {
		err = errors.Join(err, w.Close())
	} else if a.meta.Sealed {
		err = errors.Join(err, a.close())
	}
	if err == nil {
		a.unsynced = false
	}
	return err
}

const (
	maxSyncs  = 16 // fsyncs at once; more gain little
	fewFiles  = 8  // what one goroutine syncs by itself
	syncFiles = 16 // a share of MaxFiles: one in so many
)

// atOnce calls fn for 0 to n-1, some at the same time where there are many, and returns the first error. A journaling file system
// commits its own journal for an fsync, and once for all that wait for it: 5000 files took a tenth of the time it took one by one.
// With thousands of clients the journal filled up meanwhile, and publishers stood for ten seconds.
func (f *flusher) atOnce(n int, fn func(i int) error) error {
	workers := max(1, min(maxSyncs, n/fewFiles, f.s.opt.MaxFiles/syncFiles))
	var next atomic.Int64
	errs := make([]error, workers)
	work := func(w int) {
		for i := int(next.Add(1)) - 1; i < n && errs[w] == nil; i = int(next.Add(1)) - 1 {
			if errs[w] = fn(i); errs[w] != nil {
				next.Store(int64(n))
			}
		}
	}
	var wg sync.WaitGroup
	for w := 1; w < workers; w++ {
		wg.Go(func() { work(w) })
	}
	work(0)
	wg.Wait()
	return errors.Join(errs...)
}

// sealOld seals open segments that are in the way of retention.
func (f *flusher) sealOld(now time.Time) {
	ages := f.s.ages()
	for key, a := range f.own {
		if a.sealSoon.Load() || f.s.mustSeal(&a.meta, ages, now) {
			f.s.table.update(a.seg, func(m *segment.Meta) { m.Sealed = true })
			f.dirty[a.id] = a
			delete(f.own, key)
		}
	}
}
