package store

import (
	"context"
	"sync/atomic"
	"time"
)

// uses knows whether anybody works with numbers that were looked up before a certain moment: two counters in turn, as with sleepable RCU in Linux.
// Who begins counts in the one whose turn it is; await changes the turn and waits until the other one has run out.
type uses struct {
	turn atomic.Uint64
	_    [56]byte
	n    [2]struct {
		atomic.Int64
		_ [56]byte // a cache line for each
	}
}

// Use is a piece of work with numbers of topics and clients. The zero Use is none.
type Use struct{ n *atomic.Int64 }

// Use begins a piece of work with numbers: those that TopicID and ClientID return until Done are not given up before Done,
// so that what is appended with them until then has a name for ever. It may wait for the disk, but not for a peer. What numbers
// were looked up in an earlier Use still hold as long as Renumbered stays the same.
func (s *Store) Use() Use {
	u := &s.uses
	for {
		turn := u.turn.Load()
		n := &u.n[turn&1].Int64
		n.Add(1)
		if u.turn.Load() == turn { // so whoever changes the turn from now on sees that we count
			return Use{n}
		}
		n.Add(-1)
	}
}

// Done ends it.
func (u Use) Done() {
	if u.n != nil {
		u.n.Add(-1)
	}
}

// Renumbered changes before numbers are given up. Who keeps numbers from one Use to the next looks at it at the beginning of each.
func (s *Store) Renumbered() uint64 { return s.renumbered.Load() }

// usePoll is how often await looks.
const usePoll = 2 * time.Millisecond

// await waits until every Use has ended that began before it was called, at most for a while. One goroutine at a time calls it.
func (u *uses) await(ctx context.Context, most time.Duration) bool {
	over := time.NewTimer(most)
	defer over.Stop()
	tick := time.NewTicker(usePoll)
	defer tick.Stop()
	wait := func(n *atomic.Int64) bool {
		for n.Load() != 0 {
			select {
			case <-tick.C:
			case <-over.C:
				return false
			case <-ctx.Done():
				return false
			}
		}
		return true
	}
	turn := u.turn.Load()
	// A call before this one may have given up waiting for those whose turn it is next.
	if !wait(&u.n[(turn+1)&1].Int64) {
		return false
	}
	u.turn.Store(turn + 1)
	return wait(&u.n[turn&1].Int64)
}
