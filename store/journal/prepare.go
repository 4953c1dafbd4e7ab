package journal

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/edgemq/edgemq/store/vfs"
)

// A new file is filled with zeros, since an fdatasync takes longer where a block was never written: the file system's own
// journal has to say that it is now. That is for small groups. Where they are large on average, the zeros would be another full write of
// what comes in, at the same time, and cost more than they spare; so the file's blocks are only reserved. Once groups are small
// again the next file is filled, and then gone on to whatever room there is in the one before.
const (
	largeAverage = 512 << 10
	smallAverage = 128 << 10
)

// Prepare makes the next file ready ahead of need. It returns at once if it is. What is best for the next file depends on how
// large groups are, so it wants to be called now and then.
func (j *Journal) Prepare() error {
	if err := j.usable(); err != nil {
		return err
	}
	for more := true; more; { // lets go of the lock in between, so that advance need not wait for all of it
		var err error
		if more, err = j.prepareStep(); err != nil {
			return err
		}
	}
	return nil
}

// prepareStep makes the next file, or fills some of it with zeros; more says that there is more to do.
func (j *Journal) prepareStep() (more bool, err error) {
	j.prepareMu.Lock()
	defer j.prepareMu.Unlock()
	if err := j.prepare(); err != nil {
		return false, err
	}
	j.mu.Lock()
	s, closed := j.next, j.closed
	j.mu.Unlock()
	if s == nil || closed || s.written == s.size || j.recent.Load() > smallAverage {
		return false, nil
	}
	// Nothing in it is needed yet, and it does not become the current file while prepareMu is held.
	n := min(prepareStep, s.size-s.written)
	err = vfs.Zero(s.file, s.written, n)
	if noRoom(err) { // reserved is not enough here for blocks to be written; it does unfilled as well, and may be tried again
		return false, nil
	}
	if err == nil {
		err = s.file.Datasync()
	}
	if err != nil {
		return false, j.fail(fmt.Errorf("fill journal file with zeros: %w", err))
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s.written += n
	return s.written < s.size, nil
}

// better tells whether a small group that would end at end had better go to the next file: its blocks have been written, those of this one
// have not.
func (j *Journal) better(end int64) bool {
	if end <= j.cur.written || j.cur.written == j.cur.size || j.recent.Load() > smallAverage {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next != nil && j.next.written == j.next.size
}

// prepare sets j.next. j.prepareMu is held.
func (j *Journal) prepare() error {
	j.mu.Lock()
	if j.next != nil || j.closed {
		j.mu.Unlock()
		return nil
	}
	var s *slot
	if n := len(j.free); n > 0 {
		s, j.free = j.free[n-1], j.free[:n-1]
	}
	number, of := j.unusedNumber(), life{j.nextSeq, newSalt()}
	var prev uint64
	if n := len(j.live); n > 0 {
		prev = j.live[n-1].seq
	}
	j.nextSeq++
	j.mu.Unlock()

	var err error
	if s == nil {
		s, err = j.create(number)
	}
	if err == nil {
		err = s.writeHeader(of, prev)
	}
	if err != nil {
		err = fmt.Errorf("prepare the next journal file: %w", err)
		if noRoom(err) || vfs.Scarce(err) {
			err = fmt.Errorf("%w: %w", ErrNoRoom, err)
		} else {
			j.fail(err)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case err == nil:
		j.next = s
	case s != nil:
		j.free = append(j.free, s)
	}
	return err
}

// unusedNumber finds a number for a new slot. j.mu is held, and j.prepareMu, so there is no other being made.
func (j *Journal) unusedNumber() int {
	taken := make(map[int]bool)
	for _, s := range slices.Concat(j.live, j.free, j.removed) {
		taken[s.number] = true
	}
	n := 1
	for taken[n] {
		n++
	}
	return n
}

// noRoom tells a full disk from a broken one.
func noRoom(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
