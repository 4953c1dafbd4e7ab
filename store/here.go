package store

import (
	"errors"
	"time"

	"github.com/edgemq/edgemq/store/journal"
)

const (
	// quickSync is how long a sync may take for a caller to wait for it. On a slower disk waking a goroutine costs nothing that shows.
	quickSync = time.Millisecond
	// smallHere is the most that a caller commits.
	smallHere = 64 << 10
	// lookedAt is the most records that a caller hands to followers.
	lookedAt = 16
)

var errPanic = errors.New("a panic while committing")

// AppendHere is Append of something small that must be durable, for a caller that may wait for the disk. If nobody is committing, the last
// group held no more than one append either, and the disk is quick, the caller commits: a message that comes alone then wakes
// no goroutine on its way to the disk and back, and with two processors that is a quarter of its time and a third of its work.
//
// here tells whether the caller has committed; if not, all is as after Append. If so, before was called once, before the completions: it can
// see to it that what they give rise to is left to the caller, too. here may be true with an error that came after the append, which done has been told.
func (s *Store) AppendHere(msgs []Message, muts []Mutation, done Completion, before func()) (here bool, err error) {
	if s.full.Load() != 0 && len(msgs) > 0 {
		return false, ErrFull
	}
	first, err := s.put(msgs, muts, appendMode{durable: true}, done)
	if first {
		if here = s.commitHere(before); !here {
			poke(s.open.wake)
		}
	}
	return here, err
}

// commitHere commits the open group on the caller's goroutine, unless that may take more than a write and a sync.
func (s *Store) commitHere(before func()) bool {
	c := &s.committer
	if !c.quick.Load() || !c.alone.Load() || s.full.Load() != 0 || s.crowded() || !c.mu.TryLock() {
		return false
	}
	if before == nil {
		before = func() {}
	}
	whole := false
	defer func() {
		if !whole { // the caller's goroutine may survive a panic; nobody knows what became of the group
			_ = s.fail(errPanic)
		}
		c.mu.Unlock()
	}()
	size := s.open.bytes()
	here := size <= smallHere && s.fileUsed.Load()+size+2*journal.BlockSize <= s.opt.JournalFileBytes // no other file has to be prepared
	if here {
		var err error
		if here, err = s.commitOpen(before); err != nil { // nothing is open if the committer was quicker
			// The store has failed, or is told to stop while there is no room. As with the committer's goroutine nothing may come
			// after what is not there, or there would be a gap in the offsets.
			_ = s.failRest(err)
			poke(s.open.wake)
		}
	}
	whole = true
	return here
}
