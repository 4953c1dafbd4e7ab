package store

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/edgemq/edgemq/store/segment"
	"github.com/edgemq/edgemq/store/state"
	"github.com/edgemq/edgemq/store/vfs"
)

const (
	// flushBatch is how many bytes of groups are moved at once: enough for one write a client to be a large one.
	flushBatch = 8 << 20
	// flushEvery is how long a record waits for company before it is moved.
	flushEvery = time.Second
	// maxWriters bounds the segment files that are open for writing; Options.MaxFiles may ask for fewer.
	maxWriters = 256
	// usageBound bounds the clients whose use is remembered, twice over (see usages).
	usageBound = 16 << 10
)

// flusher copies committed records from the tail to segments and ledger. Its goroutine alone changes what is below,
// and makes the checkpoints.
//
// Nothing it writes is synced before a checkpoint, and recovery begins from the lengths that the checkpoint saved: whatever a crash
// leaves behind them is written again from the journal, with the same bytes or, since numbers of new segments are given
// anew, with others. So readers are never shown more than flushedUntil, and a write that failed is planned again from scratch.
type flusher struct {
	s    *Store
	wake chan struct{}

	cur    *Group             // newest group that was moved
	own    map[uint32]*active // client → its open segment; segment.Shared → the shared one
	usage  usages
	nextID uint32 // lowest number never given to a segment
	time   int64  // of the newest record moved

	dirty    map[uint32]*active     // segment → written or sealed since the last checkpoint
	dirs     map[uint32]struct{}    // clients in whose directory a name is new
	tallied  map[uint32]*TopicLimit // whose tally has changed since
	writers  []*active              // those with an open file
	round    uint64                 // counts batches, to tell which writers are idle
	retrying bool                   // the disk was full last time, or there was no descriptor
	scarce   time.Time              // since when there is no descriptor, zero while there are
	plan     plan
	seen     seen // what active.topics have

	saved        state.Checkpoint // the last one
	checkpointed time.Time        // when it began
}

// active is a segment that is being written.
type active struct {
	*seg
	w      *segment.Writer // nil while the file is closed
	topics []uint32        // as in Meta; may be ahead of it
	used   uint64          // round
	// unsynced says that there may be bytes that are not on disk.
	unsynced bool
}

// flushLoop moves groups until committed is closed, then all that is left, and makes a last checkpoint.
func (s *Store) flushLoop(committed <-chan struct{}) error {
	tick := time.NewTicker(flushEvery / 2)
	defer tick.Stop()
	for {
		all := false
		select {
		case <-s.flusher.wake:
		case <-tick.C:
			all = true
		case <-s.failed:
			return s.failure()
		case <-committed:
			return s.flushRest()
		}
		if s.flusher.retrying && !all {
			continue // the disk is full: try at the tick's pace
		}
		err := s.flushSome(all)
		if err == nil && s.checkpointDue() {
			err = s.checkpoint(false)
		}
		if err := s.flushed(err); err != nil {
			return err
		}
	}
}

// flushed deals with the outcome of a flush or a checkpoint. A full disk is waited out: what is to be flushed is in the
// journal and in memory.
func (s *Store) flushed(err error) error {
	f := &s.flusher
	switch {
	case err == nil:
		if f.retrying {
			f.retrying = false
			s.clearFull(fullFlush)
		}
		if !f.scarce.IsZero() {
			s.log.Info("there are file descriptors again, messages are moved to their segments", "after", time.Since(f.scarce))
			f.scarce = time.Time{}
		}
		return nil
	case vfs.Scarce(err):
		f.retrying = true
		f.starve(err)
		return nil
	case isFull(err) && !errors.Is(err, errUnsynced):
		f.retrying = true
		s.setFull(fullFlush, err)
		return nil
	}
	return s.fail(err)
}

// scarcePatience is how long the flusher waits for descriptors before durable messages are refused. A moment is no reason to: the journal takes
// them, and who publishes waits if it cannot take more.
const scarcePatience = 5 * time.Second

// starve deals with there being no file descriptor: as with a full disk nothing is lost, since all of it is in the journal. What the store has open without need is
// closed, so that the next try has a chance even if the process has more open than it may by now.
func (f *flusher) starve(err error) {
	s := f.s
	s.count.starved.Add(1)
	for _, a := range f.writers {
		if err := a.close(); err != nil {
			s.log.Warn("close segment", "segment", a.id, "err", err)
		}
	}
	f.writers = f.writers[:0]
	s.handles.shed()
	switch {
	case f.scarce.IsZero():
		f.scarce = time.Now()
		s.log.Warn("no file descriptors left, messages stay in the journal until there are: raise the limit (ulimit -n, LimitNOFILE)", "err", err)
	case time.Since(f.scarce) >= scarcePatience:
		s.setFull(fullFlush, err)
	}
}

// flushRest is the clean end.
func (s *Store) flushRest() error {
	if err := s.failure(); err != nil {
		return err
	}
	s.state.Apply(s.limits.takeUnsaved()) // nobody appends any more
	err := s.checkpoint(false)
	if isFull(err) && !errors.Is(err, errUnsynced) || vfs.Scarce(err) {
		s.log.Warn("stopped on a full disk, or without file descriptors; the next start replays the journal", "err", err)
		return nil
	}
	if err != nil {
		return s.fail(err)
	}
	return nil
}

// flushSome moves whole batches; with all, what is left too.
func (s *Store) flushSome(all bool) error {
	f := &s.flusher
	for {
		behind := s.tail.pushed.Load() - s.tail.flushed.Load()
		if behind == 0 || behind < flushBatch && !all {
			return nil
		}
		if err := s.flushUntil(f.collect(nil)); err != nil {
			return err
		}
	}
}

// collect returns the groups of the next batch, none after until.
func (f *flusher) collect(until *Group) []*Group {
	var groups []*Group
	size := int64(0)
	for g := f.cur; g != until && size < flushBatch; {
		if g = g.next.Load(); g == nil {
			break
		}
		groups = append(groups, g)
		size += g.bytes
	}
	return groups
}

// flushUntil moves the groups, which follow f.cur in the tail, and lets the tail forget.
func (s *Store) flushUntil(groups []*Group) error {
	if len(groups) == 0 {
		return nil
	}
	if err := s.flusher.move(groups); err != nil {
		return err
	}
	last := groups[len(groups)-1]
	s.flusher.cur = last
	s.tail.flushedUntil.Store(last.End()) // from here on readers look on disk for what is no longer in the tail
	s.tail.flushed.Store(last.end)
	s.tail.trim(s.opt.TailBytes)
	if s.waiting.Load() > 0 {
		poke(s.progress)
	}
	s.checkSpace()
	return nil
}

// move writes the groups' records to segments and ledger.
func (f *flusher) move(groups []*Group) error {
	f.round++
	for _, id := range f.s.clients.takeUpgraded() {
		f.usage.get(id, f.s).own = true
	}
	for {
		f.makePlan(groups)
		err := f.write()
		if err == nil {
			f.adopt()
			return nil
		}
		f.rollback()
		var bad *brokenSegment
		if !errors.As(err, &bad) {
			return err
		}
		f.abandon(bad)
	}
}

// brokenSegment is a segment that cannot be gone on with: its header is damaged, or it is shorter than the checkpoint says, or
// it is gone.
type brokenSegment struct {
	a   *active
	err error
}

func (b *brokenSegment) Error() string { return b.err.Error() }

func (b *brokenSegment) Unwrap() error { return b.err }

// abandon seals a broken segment, so that its client goes on in a new one. What can be read of it still is.
func (f *flusher) abandon(b *brokenSegment) {
	f.s.log.Error("segment damaged, going on in a new one", "segment", b.a.id, "client", b.a.client, "err", b.err)
	f.s.count.damaged.Add(1)
	f.s.table.update(b.a.seg, func(m *segment.Meta) { m.Sealed = true })
	f.dirty[b.a.id] = b.a
	delete(f.own, b.a.client)
}

// gatherBelow is the average length of a slot's runs below which they are copied together before they are written. Longer
// ones go to the disk from where they are.
const gatherBelow = 1 << 10

// write puts the plan on disk: one write for each segment, then the ledger. One, since a file system takes a large write at
// half the cost of many that begin and end within its pages.
func (f *flusher) write() error {
	p := &f.plan
	p.layOut()
	for _, r := range p.runs {
		if sl := &p.slots[r.slot]; sl.vector {
			p.vectors[sl.start+sl.filled] = r.buf
			sl.filled++
		} else {
			copy(p.scratch[sl.start+r.pos:], r.buf)
		}
	}
	for i := range p.slots {
		sl := &p.slots[i]
		if sl.size == 0 {
			continue
		}
		if err := f.openWriter(sl); err != nil {
			return err
		}
		var pos int64
		var err error
		if sl.vector {
			pos, err = sl.a.w.AppendV(p.vectors[sl.start : sl.start+sl.filled])
		} else {
			pos, err = sl.a.w.Append(p.scratch[sl.start : sl.start+sl.size])
		}
		if err == nil && pos != sl.pos {
			err = fmt.Errorf("store: segment %s is %d bytes long, not %d", sl.a.w.Path(), pos, sl.pos)
		}
		if err != nil {
			return err
		}
		sl.a.w.Writeback() // or a checkpoint would wait for all of it at once, and hold up the flusher, and that the committer
	}
	if err := f.s.ledger.Append(p.entries); err != nil {
		return fmt.Errorf("append to ledger: %w", err)
	}
	return nil
}

// openWriter sees to it that the slot's file is open. The file that was idle longest makes room.
//
// A file may be closed with pages that are not on disk yet; the checkpoint opens it again to sync it. The kernel reports
// a failed write-back to the next fsync of the file, by whichever descriptor.
func (f *flusher) openWriter(sl *slot) (err error) {
	a := sl.a
	a.used = f.round
	if a.w != nil {
		return nil
	}
	if len(f.writers) >= max(1, min(maxWriters, f.s.opt.MaxFiles/4)) {
		if err := f.closeOldest(); err != nil {
			return err
		}
	}
	err = f.openSlot(sl)
	for vfs.Scarce(err) && len(f.writers) > 0 {
		if err := f.closeOldest(); err != nil {
			return err
		}
		err = f.openSlot(sl)
	}
	if err == nil {
		f.writers = append(f.writers, a)
	}
	return err
}

// closeOldest closes the file that was idle longest.
func (f *flusher) closeOldest() error {
	oldest := 0
	for i, w := range f.writers {
		if w.used < f.writers[oldest].used {
			oldest = i
		}
	}
	a := f.writers[oldest]
	f.writers = slices.Delete(f.writers, oldest, oldest+1)
	return a.close()
}

// openSlot opens the slot's file, a new one or the one there is.
func (f *flusher) openSlot(sl *slot) (err error) {
	a, root := sl.a, f.s.segments
	if sl.fresh {
		h := segment.Header{ID: a.id, Client: a.client, Base: sl.base, Created: sl.from}
		if a.w, err = segment.Create(f.s.fs, root, h); err == nil {
			f.dirs[a.client] = struct{}{}
		}
	} else {
		a.w, err = segment.OpenWrite(f.s.fs, root, a.client, a.id, a.meta.Bytes)
		if isDamage(err) && !errors.Is(err, syscall.EIO) && !a.unsynced {
			return &brokenSegment{a, err}
		}
	}
	if err != nil {
		return fmt.Errorf("open segment to write: %w", err)
	}
	return nil
}

// close closes the segment's file, if it is open.
func (a *active) close() error {
	if a.w == nil {
		return nil
	}
	w := a.w
	a.w = nil
	return w.Close()
}

// rollback forgets a plan that could not be written. Writers are ahead of what counts, so they are closed.
func (f *flusher) rollback() {
	for i := range f.plan.slots {
		a := f.plan.slots[i].a
		if err := a.close(); err != nil {
			f.s.log.Warn("close segment after a failed write", "segment", a.id, "err", err)
		}
	}
	f.writers = slices.DeleteFunc(f.writers, func(a *active) bool { return a.w == nil })
	f.plan.clear()
	clear(f.seen[:]) // new segments of the plan are made anew, under the same numbers
}

// adopt makes a written plan count.
func (f *flusher) adopt() {
	p, t := &f.plan, &f.s.table
	for i := range p.slots {
		sl := &p.slots[i]
		if sl.fresh {
			m := sl.a.meta
			m.Base, m.FirstTime, m.Bytes = sl.base, sl.from, segment.HeaderSize
			sl.a.seg = t.add(m)
			f.own[sl.a.client] = sl.a
		}
		t.update(sl.a.seg, func(m *segment.Meta) {
			if sl.records > 0 {
				if m.Records == 0 {
					m.Base, m.FirstTime = sl.base, sl.from
				}
				m.Last, m.LastTime = sl.last, sl.to
			}
			m.Bytes = sl.pos + sl.size
			m.Records += sl.records
			m.Topics = sl.a.topics
			m.Sealed = m.Sealed || sl.full
		})
		f.dirty[sl.a.id] = sl.a
		sl.a.unsynced = sl.a.unsynced || sl.size > 0
		if sl.full && f.own[sl.a.client] == sl.a {
			delete(f.own, sl.a.client)
		}
	}
	f.nextID, f.time = p.nextID, p.time
	for l, t := range p.tallies {
		l.stored.add(t.Records, t.Bytes)
		l.newest = t.last
		f.tallied[l.id] = l
	}
	p.clear()
}
