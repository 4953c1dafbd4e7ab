package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/segment"
)

// retainEvery is how often retention and the free space are looked at.
const retainEvery = 2 * time.Second

// retainLoop deletes what is too old or too much, and watches the disk.
//
// A segment goes in this order, so that no crash leaves the state pointing at nothing and no recovery writes into it:
//
//  1. It is sealed, and a checkpoint has saved that: replay never adds to it again.
//  2. A mutation that takes it out of the table is committed and synced, whatever Options.Sync says.
//  3. It leaves the table in memory: readers skip its records from here on. Those that have it open finish.
//  4. The file is unlinked. A crash before that leaves a file that no table knows; the sweep after the next start takes it.
func (s *Store) retainLoop(ctx context.Context) {
	tick := time.NewTicker(s.retainEvery)
	defer tick.Stop()
	s.sweep()
	for {
		s.checkSpace()
		if err := s.retain(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("retention", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-s.failed:
			return
		}
	}
}

// retain makes one pass.
func (s *Store) retain(ctx context.Context) error {
	victims, unsaved := s.expired(s.opt.Now())
	if unsaved {
		poke(s.checkpointNow) // so that the next pass may have them
		poke(s.flusher.wake)
	}
	const atOnce = 256
	for chunk := range slices.Chunk(victims, atOnce) {
		if err := s.remove(ctx, chunk); err != nil {
			return fmt.Errorf("delete segments: %w", err)
		}
	}
	return nil
}

// expired returns what may be deleted now; unsaved says that more could be after a checkpoint.
func (s *Store) expired(now time.Time) (victims []*seg, unsaved bool) {
	if s.opt.RetainAge == 0 && s.opt.RetainBytes == 0 && s.opt.MaxAge == nil && s.limits.table() == nil {
		return nil, false
	}
	protects := s.protects()
	ages, doubtful := s.ages(), s.doubtful(now)
	all, bytes := s.table.snapshot() // a copy, since MaxAge is not ours: no lock is held while it runs
	var sealed, open []segState
	for _, g := range all {
		switch {
		case !g.meta.Sealed:
			unsaved = unsaved || s.mustSeal(&g.meta, ages, now)
			if g.meta.Records > 0 && g.meta.Last < protects(g.meta.Topics) {
				open = append(open, g)
			}
			if s.spent(&g.meta) && g.meta.Bytes > s.opt.SegmentBytes/8 {
				g.sealSoon.Store(true)
				unsaved = true
			}
		case s.spent(&g.meta):
			bytes -= g.meta.Bytes
			if unsaved = unsaved || !g.saved; g.saved {
				victims = append(victims, g.seg)
			}
		case g.meta.Last < protects(g.meta.Topics):
			sealed = append(sealed, g)
		}
	}
	slices.SortFunc(sealed, func(a, b segState) int { return cmp.Compare(a.meta.Last, b.meta.Last) })
	for _, g := range sealed {
		limit := ages(g.meta.Topics)
		old := limit > 0 && !doubtful && now.UnixMicro()-s.timeline.real(g.meta.Last, g.meta.LastTime) >= limit.Microseconds()
		if !old && (s.opt.RetainBytes == 0 || bytes <= s.opt.RetainBytes) {
			continue
		}
		bytes -= g.meta.Bytes
		if !g.saved {
			unsaved = true
			continue
		}
		victims = append(victims, g.seg)
	}
	if s.opt.RetainBytes > 0 && bytes > s.opt.RetainBytes {
		// Many clients can have much in segments that are still open: those who were silent longest are to be sealed.
		slices.SortFunc(open, func(a, b segState) int { return cmp.Compare(a.meta.Last, b.meta.Last) })
		for _, g := range open {
			if bytes <= s.opt.RetainBytes {
				break
			}
			bytes -= g.meta.Bytes
			g.sealSoon.Store(true)
			unsaved = true
		}
	}
	return victims, unsaved
}

// spent tells whether nothing in a segment can be read any more: its topics' limits have dropped all of it.
func (s *Store) spent(m *segment.Meta) bool {
	known := s.limits.table()
	for _, topic := range m.Topics {
		if l := known.get(topic); l == nil || l.floor.Load() <= m.Last {
			return false
		}
	}
	return m.Records > 0 && len(m.Topics) > 0
}

// protects returns a function that gives the offset from which on somebody needs what is in a segment with those topics.
func (s *Store) protects() func(topics []uint32) uint64 {
	protect := uint64(math.MaxUint64)
	if s.opt.Protect != nil {
		protect = s.opt.Protect()
	}
	known := s.limits.table()
	return func(topics []uint32) uint64 {
		for _, topic := range topics {
			if l := known.get(topic); l == nil || l.policy == nil || !l.policy.Unprotected {
				return protect
			}
		}
		if len(topics) == 0 {
			return protect // whatever it has
		}
		return math.MaxUint64
	}
}

// giveUp drops what topics with limits have in segments that are to be deleted, so that it is counted, and consumers are told.
func (s *Store) giveUp(victims []*seg) {
	known := s.limits.table()
	for _, g := range victims {
		s.table.mu.RLock()
		topics, last := g.meta.Topics, g.meta.Last
		s.table.mu.RUnlock()
		if len(topics) == 1 && topics[0] == manyTopics {
			topics = topics[:0:0]
			for id := range known.all() {
				topics = append(topics, id)
			}
		}
		for _, topic := range topics {
			if l := known.get(topic); l != nil && l.policy != nil && l.floor.Load() <= last {
				l.dropBelow(last+1, &s.count.topicRetained, true)
			}
		}
	}
}

// ages returns a function that gives the age limit of a segment with those topics, the longest of theirs; 0 is no limit. It
// remembers what it asked, so use it for one pass.
func (s *Store) ages() func(topics []uint32) time.Duration {
	if s.opt.MaxAge == nil {
		return func([]uint32) time.Duration { return s.opt.RetainAge }
	}
	known := make(map[uint32]time.Duration)
	one := func(topic uint32) time.Duration {
		age, ok := known[topic]
		if !ok {
			switch age = s.opt.MaxAge(s.TopicName(topic)); {
			case age == 0:
				age = s.opt.RetainAge
			case age < 0:
				age = 0
			}
			known[topic] = age
		}
		return age
	}
	return func(topics []uint32) time.Duration {
		if len(topics) == 1 && topics[0] == manyTopics {
			topics = s.topics.all()
		}
		longest := s.opt.RetainAge
		for i, t := range topics {
			age := one(t)
			if age == 0 {
				return 0
			}
			if i == 0 {
				longest = age
			}
			longest = max(longest, age)
		}
		return longest
	}
}

// mustSeal says whether an open segment has been open for so long that it is in the way of retention: only what is
// sealed can be deleted. So records live up to an eighth longer than their limit.
func (s *Store) mustSeal(m *segment.Meta, ages func(topics []uint32) time.Duration, now time.Time) bool {
	age := ages(m.Topics) / 8
	return age > 0 && m.Records > 0 && now.UnixMicro()-s.timeline.real(m.Base, m.FirstTime) >= age.Microseconds()
}

// remove deletes segments.
func (s *Store) remove(ctx context.Context, victims []*seg) error {
	s.giveUp(victims)
	muts := s.limits.takeUnsaved()
	for _, g := range victims {
		muts = append(muts, record.Delete(record.BucketSegments, segmentKey(g.id)))
	}
	done := make(answered, 1)
	if err := s.append(nil, muts, appendMode{durable: true, force: true}, done); err != nil {
		return err
	}
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	var errs []error
	var records, bytes uint64
	for _, g := range victims {
		records, bytes = records+g.meta.Records, bytes+uint64(g.meta.Bytes)
		s.table.remove(g.id)
		s.handles.forget(g.id)
		s.cache.purge(g.id)
		path := segment.Path(s.segments, g.client, g.id)
		if err := s.fs.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		s.count.deletedSegments.Add(1)
		s.log.Debug("segment deleted", "segment", g.id, "client", g.client, "records", g.meta.Records)
	}
	s.log.Info("retention deleted segments", "segments", len(victims), "records", records, "bytes", bytes)
	s.count.deletedRecords.Add(records)
	s.moveFirst()
	s.checkSpace()
	return errors.Join(errs...)
}

// answered is a Completion to wait for.
type answered chan error

// Committed implements Completion.
func (a answered) Committed(_ uint64, err error) { a <- err }

// moveFirst moves First up to what is still there. The border is read before the table: a segment that comes
// between begins behind it.
func (s *Store) moveFirst() {
	first := s.table.first(s.tail.flushedUntil.Load())
	for {
		old := s.first.Load()
		if first <= old || s.first.CompareAndSwap(old, first) {
			return
		}
	}
}

// sweep removes segment files that no table knows: what a crash left of a checkpoint or a deletion. Only numbers given
// before this start are looked at, since the flusher may be making others.
func (s *Store) sweep() {
	dirs, err := s.fs.ReadDir(s.segments)
	if err != nil {
		s.log.Warn("sweep segments", "err", err)
		return
	}
	for _, dir := range dirs {
		s.sweepDir(filepath.Join(s.segments, dir.Name()))
	}
}

func (s *Store) sweepDir(dir string) {
	files, err := s.fs.ReadDir(dir)
	if err != nil {
		s.log.Warn("sweep segments", "file", dir, "err", err)
		return
	}
	for _, file := range files {
		var id uint32
		if n, err := fmt.Sscanf(file.Name(), "%08x.seg", &id); n != 1 || err != nil || id >= s.sweepBelow {
			continue // not ours, or new
		}
		path := filepath.Join(dir, file.Name())
		if g := s.table.get(id); g != nil && segment.Path(s.segments, g.client, id) == path {
			continue
		}
		if err := s.fs.Remove(path); err != nil {
			s.log.Warn("remove leftover segment", "file", path, "err", err)
			continue
		}
		s.log.Info("leftover segment removed", "file", path)
	}
}
