package store

import (
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/store/journal"
)

const (
	// maxUnflushed bounds what the flusher may be behind, and so the memory of the tail.
	maxUnflushed = 48 << 20
	// maxUnfollowed bounds what a follower may be behind.
	maxUnfollowed = 48 << 20
	// retryFull is how long to wait before a full disk is tried again.
	retryFull = 200 * time.Millisecond
)

// committer turns many Appends into few fsyncs. Whoever holds its mutex alone writes the journal: the committer's goroutine, or an AppendHere.
//
// What the disk holds at each instant, and what a crash leaves:
//
//  1. The group is open: nothing. Nobody has been told anything.
//  2. journal.Append is writing: a torn group, which recovery cuts off, or the whole group.
//  3. Written, not synced: kill -9 keeps it, a power cut keeps all, parts or nothing. A part fails its checksum and is
//     cut off. The whole group may come back though nobody was told: for a publisher that resends, at least once.
//  4. Synced: there for good. Only now is the group visible: state applied, tail, completions, followers, in this order, so that who
//     is told of an append finds it. Nothing is delivered that a crash could take back (unless it was QoS 0).
//
// If 2 or 3 fails the disk holds we do not know what. The kernel may have dropped the dirty pages and would report the
// next fsync as a success, so there is no next one: the store fails, and a restart reads what is really there.
type committer struct {
	mu    sync.Mutex  // held while committing; what is below is guarded by it, but for lazy
	alone atomic.Bool // the last group held one append at most
	quick atomic.Bool // the last sync took less than quickSync

	stop     <-chan struct{} // of commitLoop
	spare    *batch
	unsynced time.Time // when the oldest write that is not synced was made; zero if there is none
	lazy     *time.Timer
	at       journal.Position // behind the newest group written
}

// commitLoop runs until stop is closed and the open group is empty, or the store has failed.
func (s *Store) commitLoop(stop <-chan struct{}) error {
	c := &s.committer
	c.lazy = time.NewTimer(time.Hour)
	defer c.lazy.Stop()
	c.mu.Lock()
	c.spare, c.stop = newBatch(), stop
	c.mu.Unlock()
	for {
		// Backpressure comes before the group is taken, so that it fills meanwhile and then blocks Append.
		if err := s.awaitRoom(stop); err != nil {
			return s.failRest(err)
		}
		// Who is ready to append does so first. Go runs who was woken last before those who wait: if the network brought the publishes of
		// many at once, we were woken by the first of them, and one fsync can serve them all. A group that is large already had better go.
		if s.open.bytes() < handOver {
			runtime.Gosched()
		}
		c.mu.Lock()
		some, err := s.commitOpen(nil)
		c.mu.Unlock()
		if err != nil {
			return s.failRest(err)
		}
		if some {
			continue // never wait for more once there is something
		}
		select {
		case <-s.open.wake:
		case <-c.lazy.C:
			c.mu.Lock()
			err := s.syncLazily(time.Now())
			c.mu.Unlock()
			if err != nil {
				return s.failRest(err)
			}
		case <-s.failed:
			return s.failRest(s.failure())
		case <-stop:
			s.open.shut(ErrClosed) // after this nothing is added to the group
			if s.open.bytes() == 0 {
				c.mu.Lock()
				defer c.mu.Unlock()
				return s.syncNow()
			}
		}
	}
}

// bytes is the size of the open group, 0 if there is nothing in it that is to be committed.
func (a *appender) bytes() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open.appends == 0 {
		return 0
	}
	return int64(a.open.size())
}

// commitOpen commits the open group, if there is something in it, and runs its completions; before, if not nil, is called before them. Like all that
// follows it wants committer.mu held.
func (s *Store) commitOpen(before func()) (some bool, err error) {
	c := &s.committer
	b := s.open.take(c.spare)
	if b == nil {
		return false, nil
	}
	c.spare = b // for the next one
	c.alone.Store(b.appends == 1)
	start := time.Now()
	g, err := s.commit(b, start)
	if before != nil {
		before()
	}
	b.answer(err)
	if err != nil {
		return true, err
	}
	s.tail.tell(g, before != nil)
	if s.tail.pushed.Load()-s.tail.flushed.Load() >= flushBatch || s.journalBytes() >= s.opt.CheckpointBytes {
		poke(s.flusher.wake)
	}
	s.count.commitLatency.observe(time.Since(start))
	return true, nil
}

// commit makes one group durable and visible. On an error nothing of it is visible.
func (s *Store) commit(b *batch, start time.Time) (*Group, error) {
	sum, summed := b.sum()
	b.grow(len(b.muts) + journal.BlockSize) // with room for the journal's padding
	b.buf = append(b.buf, b.muts...)
	buf := b.buf
	head := journal.GroupHeader{
		Base: b.base, Count: len(b.entries), RecordsLen: len(buf) - len(b.muts) - journal.HeaderSize,
		Sum: sum, Summed: summed,
	}
	pos, err := s.journal.Append(buf, head)
	waited := false
	for errors.Is(err, journal.ErrNoRoom) {
		waited = true
		// Nothing was written, so this is not a failed write: wait for room. Nobody has been told anything.
		s.setFull(fullJournal, err)
		if err := s.awaitSpace(s.committer.stop); err != nil {
			return nil, err
		}
		pos, err = s.journal.Append(buf, head)
	}
	if err != nil {
		return nil, s.fail(fmt.Errorf("write group: %w", err))
	}
	if waited {
		s.clearFull(fullJournal)
	}
	if at := s.committer.at; pos.File != at.File {
		s.durableFile.Store(at.File) // the journal syncs a file before it goes on to the next
	}
	s.committer.at = pos
	if c := &s.committer; c.unsynced.IsZero() {
		c.unsynced = start
	}
	if b.force || b.durable && s.opt.Sync == SyncAlways {
		if err := s.syncNow(); err != nil {
			return nil, err
		}
	} else if err := s.syncLazily(start); err != nil {
		return nil, err
	}
	return s.publish(b, pos), nil
}

// publish makes a committed group visible.
func (s *Store) publish(b *batch, pos journal.Position) *Group {
	g := &Group{Base: b.base}
	written := (len(b.buf) + journal.BlockSize - 1) &^ (journal.BlockSize - 1)
	var memory int
	g.buf, memory = b.handRecords()
	g.Entries = append(g.Entries, b.entries...)
	g.bytes = int64(memory + cap(g.Entries)*entryBytes + groupBytes)

	s.reveal(g, b.list, pos, int64(written))
	if known := s.limits.table(); known != nil {
		known.supersede(g) // now that the newer is there
	}

	c := &s.count
	c.groups.Add(1)
	c.groupSizes[min(bits.Len(uint(len(b.entries))), len(c.groupSizes)-1)].Add(1)
	c.appends.Add(uint64(b.appends))
	c.records.Add(uint64(len(b.entries)))
	c.mutations.Add(uint64(len(b.list)))
	c.bytes.Add(uint64(written))
	return g
}

// reveal shows a group and what it changes. A checkpoint must not fall between state and tail; and if a reader that commits panics here, the
// flusher must not wait for it for ever, or the store could not end.
func (s *Store) reveal(g *Group, muts []Mutation, pos journal.Position, written int64) {
	s.boundary.Lock()
	defer s.boundary.Unlock()
	if len(muts) > 0 {
		s.state.Apply(muts)
	}
	if pos.File != s.position.File {
		s.fileUsed.Store(journal.BlockSize)
		poke(s.prepare)
	}
	s.fileUsed.Add(written)
	s.journaled.Add(written)
	s.open.taken.Store(0) // it is counted as written now
	s.position = pos
	s.tail.push(g)
}

// answer runs the completions.
func (b *batch) answer(err error) {
	for _, p := range b.dones {
		p.done.Committed(p.base, err)
	}
}

// syncNow makes all that was written durable.
func (s *Store) syncNow() error {
	c := &s.committer
	if c.unsynced.IsZero() {
		return nil
	}
	start := time.Now()
	if err := s.journal.Sync(); err != nil {
		return s.fail(fmt.Errorf("sync journal: %w", err))
	}
	s.durableFile.Store(c.at.File)
	took := time.Since(start)
	c.quick.Store(took < quickSync)
	s.count.syncLatency.observe(took)
	s.count.syncs.Add(1)
	c.unsynced = time.Time{}
	return nil
}

// syncLazily syncs what nobody waits for once it is older than Options.SyncInterval, and sees to it that it is called again.
func (s *Store) syncLazily(now time.Time) error {
	c := &s.committer
	if c.unsynced.IsZero() || s.opt.Sync == SyncNone {
		return nil
	}
	age := now.Sub(c.unsynced)
	if age >= s.opt.SyncInterval {
		return s.syncNow()
	}
	if age <= 0 { // the first one
		c.lazy.Reset(s.opt.SyncInterval)
	}
	return nil
}

// awaitRoom waits while the flusher, a checkpoint or a follower is too far behind: memory and journal are bounded.
func (s *Store) awaitRoom(stop <-chan struct{}) error {
	if !s.crowded() {
		return nil
	}
	s.waiting.Add(1) // before looking again, so that who makes room in between pokes us
	defer s.waiting.Add(-1)
	for s.crowded() {
		poke(s.flusher.wake)
		if s.full.Load() != 0 {
			// The flusher waits for the disk, which may take for ever: be ready to stop without it. What is
			// committed is in the journal.
			if err := s.awaitSpace(stop); err != nil {
				return err
			}
			continue
		}
		select {
		case <-s.progress:
		case <-s.failed:
			return s.failure()
		}
	}
	return nil
}

func (s *Store) crowded() bool {
	t := &s.tail
	return t.pushed.Load()-t.flushed.Load() > maxUnflushed || s.journalBytes() > s.maxJournal || t.unfollowed() > maxUnfollowed
}

// awaitSpace waits a little for disk space; it gives up when the store is told to stop.
func (s *Store) awaitSpace(stop <-chan struct{}) error {
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	retry := time.NewTimer(retryFull)
	defer retry.Stop()
	select {
	case <-s.progress:
	case <-retry.C:
	case <-s.failed:
		return s.failure()
	case <-stop:
		return ErrFull
	}
	return nil
}

// journalBytes is what the journal holds that no checkpoint covers.
func (s *Store) journalBytes() int64 { return s.journaled.Load() - s.released.Load() }

// fail stops the store for good. It returns the error that appends get from now on.
func (s *Store) fail(cause error) error {
	s.failOnce.Do(func() {
		err := fmt.Errorf("%w: %w", ErrFailed, cause)
		s.failErr.Store(&err)
		s.open.shut(err)
		close(s.failed)
		if !errors.Is(cause, errKilled) {
			s.log.Error("store failed, no more appends until a restart", "err", cause)
		}
	})
	return s.failure()
}

// failure returns why the store failed, nil if it has not.
func (s *Store) failure() error {
	if p := s.failErr.Load(); p != nil {
		return *p
	}
	return nil
}

// failRest answers everything that is still in the open group, and takes nothing more.
func (s *Store) failRest(err error) error {
	s.open.shut(err)
	if b := s.open.take(newBatch()); b != nil {
		b.answer(err)
	}
	return err
}
