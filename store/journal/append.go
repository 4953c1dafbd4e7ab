package journal

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/edgemq/edgemq/store/vfs"
)

// keepFree is how many slots are kept for recycling. More, left over from a time when checkpoints
// came late, are given back to the disk.
const keepFree = 6

// Groups of at most smallGroup bytes, and those whose records are of largeRecord bytes or more on average, are written past the system's cache,
// which spares work. (sync1, paced, big: 10 to 30 % of all processor time.) With many small records it is the other way round: whoever
// encodes the next group waits for each line of a buffer that the drive, or the host of a virtual machine, has just read. (ingest: 9 % more.)
const (
	smallGroup  = 32 << 10
	largeRecord = 8 << 10
)

// Append writes one group with a single write and does not sync. buf begins with HeaderSize bytes
// that Append fills in, then g.RecordsLen bytes of records, then mutations. It is padded with zeros
// to BlockSize, within its capacity if that suffices. It returns the position behind the group.
// After an error other than ErrNoRoom and ErrTooLarge the journal takes nothing more.
func (j *Journal) Append(buf []byte, g GroupHeader) (Position, error) {
	if err := j.usable(); err != nil {
		return Position{}, err
	}
	size := int64(len(buf))
	if padded(size) > int64(j.MaxGroup()) {
		return Position{}, fmt.Errorf("%w: %d bytes", ErrTooLarge, size)
	}
	if size < HeaderSize || g.RecordsLen < 0 || int64(g.RecordsLen) > size-HeaderSize || g.Summed < 0 || g.Summed > g.RecordsLen || g.Count < 0 || uint64(g.Count) > math.MaxUint32 {
		panic("journal: Append of a buffer that does not match its header")
	}
	j.recent.Store((7*j.recent.Load() + size) / 8)
	if j.pos+padded(size) > j.cur.size || j.better(j.pos+padded(size)) {
		if err := j.advance(); err != nil {
			return Position{}, err
		}
	}
	h := groupHeader{
		life: j.cur.life, group: j.group + 1, synced: j.synced, base: g.Base,
		records: uint32(g.RecordsLen), mutations: uint32(size - HeaderSize - int64(g.RecordsLen)), count: uint32(g.Count),
	}
	h.put(buf, g.Sum, g.Summed)
	write := j.cur.file.WriteAt
	if size <= smallGroup || g.RecordsLen >= g.Count*largeRecord {
		write = func(b []byte, pos int64) (int, error) { return vfs.WriteDirect(j.cur.file, b, pos) }
	}
	if _, err := write(pad(buf), j.pos); err != nil {
		// Some of it may be on the disk. Another group in the same place could be torn with it.
		return Position{}, j.fail(fmt.Errorf("append to journal: %w", err))
	}
	j.pos += padded(size)
	j.group++
	return j.publish(), nil
}

// pad fills up the last block with zeros, so that nothing of an earlier life stays in it.
func pad(buf []byte) []byte {
	n, end := len(buf), int(padded(int64(len(buf))))
	buf = slices.Grow(buf, end-n)[:end]
	clear(buf[n:])
	return buf
}

// Sync makes all that was appended durable.
func (j *Journal) Sync() error {
	if err := j.usable(); err != nil {
		return err
	}
	if j.synced == j.group {
		return nil
	}
	if err := j.cur.file.Datasync(); err != nil {
		// The kernel may have dropped our pages, and the next fdatasync would still report success.
		return j.fail(fmt.Errorf("sync journal: %w", err))
	}
	j.synced = j.group
	return nil
}

// advance goes on to the next file. The old one is synced first, so the files before the current
// one are always durable, and Sync has one file to care for.
func (j *Journal) advance() error {
	if err := j.Sync(); err != nil {
		return err
	}
	j.prepareMu.Lock()
	defer j.prepareMu.Unlock()
	if err := j.prepare(); err != nil {
		return err
	}
	j.cur.written = max(j.cur.written, j.pos)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.use(j.next, BlockSize)
	j.next = nil
	return nil
}

// use makes s the current file. j.mu is held.
func (j *Journal) use(s *slot, pos int64) {
	j.cur, j.pos = s, pos
	j.live = append(j.live, s)
}

// Release lets files that lie wholly before a position be recycled. The caller has made sure that
// no replay will begin before it.
func (j *Journal) Release(before Position) {
	j.mu.Lock()
	j.live = slices.DeleteFunc(j.live, func(s *slot) bool {
		old := s.seq < before.File && s != j.cur
		if old {
			j.free = append(j.free, s)
		}
		return old
	})
	j.trim()
	extra := j.removed
	j.mu.Unlock()
	j.remove(extra)
}

// trim picks the free slots that are not worth keeping. j.mu is held.
func (j *Journal) trim() {
	keep := j.free[:0]
	for _, s := range j.free {
		if s.size == j.opts.FileBytes && len(keep) < keepFree {
			keep = append(keep, s)
		} else {
			j.removed = append(j.removed, s)
		}
	}
	j.free = keep
}

// remove deletes slots that trim has picked. One that a power cut brings back is an old life, and free.
func (j *Journal) remove(slots []*slot) {
	// The highest first: the header of a file says which came before it, and that one would seem to be missing.
	// Sorted is a copy: unusedNumber looks at j.removed meanwhile.
	for _, s := range slices.SortedFunc(slices.Values(slots), func(a, b *slot) int { return cmp.Compare(b.seq, a.seq) }) {
		if err := errors.Join(s.file.Close(), j.opts.FS.Remove(s.path)); err != nil {
			j.opts.Logger.Warn("cannot remove a journal file that is not needed", "path", s.path, "err", err)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.removed = nil // nobody adds to it meanwhile: that too is up to Release
}

// publish makes the position known to others than the committer.
func (j *Journal) publish() Position {
	p := Position{j.cur.seq, j.group + 1}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.position = p
	return p
}

// usable says whether the journal takes appends.
func (j *Journal) usable() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.opts.ReadOnly:
		return ErrReadOnly
	case j.failed != nil:
		return fmt.Errorf("%w: %w", ErrFailed, j.failed)
	case j.closed || j.cur == nil:
		return errors.New("journal: not open for appends")
	}
	return nil
}

// fail stops the journal for good.
func (j *Journal) fail(err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil {
		j.failed = err
	}
	return err
}
