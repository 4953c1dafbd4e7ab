package store

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/edgemq/edgemq/store/record"
)

// Group is what one commit made durable: immutable, and valid for as long as somebody holds it.
type Group struct {
	Base    uint64  // offset of Entries[0]
	Entries []Entry // one a record; may be empty

	buf   []byte // the records, back to back
	bytes int64  // memory it takes
	end   int64  // memory of all groups since Open up to and with this one
	next  atomic.Pointer[Group]
}

// Entry is what a dispatcher needs of a record to choose. Group.Record has the rest.
type Entry struct {
	Time                  int64 // µs since 1970
	Topic, Client, Expiry uint32
	pos, size             uint32 // in Group.buf
	props                 uint32 // their length; here, so that Record need not look at the record
	PacketID              uint16
	Flags                 record.Flags
}

// entryBytes is what an Entry takes in memory, groupBytes what a Group takes beside its slices.
const (
	entryBytes = 40
	groupBytes = 128
)

// Size returns the bytes of the record's encoding.
func (e *Entry) Size() int { return int(e.size) }

// stored returns the bytes that the record takes on disk.
func (e *Entry) stored() uint32 {
	if e.Flags.Has(record.FlagTransient) {
		return 0
	}
	return e.size
}

// End returns the offset after the last record.
func (g *Group) End() uint64 { return g.Base + uint64(len(g.Entries)) }

// Record returns the record of Entries[i]. Its Props and Payload alias the whole group's memory and are valid for ever; who
// keeps a few of them for long should copy those.
func (g *Group) Record(i int) Record {
	e := &g.Entries[i]
	b := g.buf[e.pos : e.pos+e.size : e.pos+e.size]
	p := record.HeaderSize + e.props
	r := Record{
		Offset: g.Base + uint64(i), Time: e.Time, Topic: e.Topic, Client: e.Client, Expiry: e.Expiry,
		PacketID: e.PacketID, Flags: e.Flags,
		Payload: b[p:],
	}
	if p > record.HeaderSize {
		r.Props = b[record.HeaderSize:p:p]
	}
	return r
}

// tail is the list of the newest groups: all that are not flushed, and some more for readers that keep up.
//
// It exists twice. The slice is for who looks for an offset, and is cut at its front by trim. The next pointers are for
// who walks; a walker that holds a group keeps all later ones in memory, so a walk must not rest (Reader) or must hold up
// the committer (followers, the flusher).
type tail struct {
	mu        sync.RWMutex
	groups    []*Group // never empty: the newest group stays
	followers []*follower

	committed    atomic.Uint64 // offset
	bytes        atomic.Int64  // of groups
	pushed       atomic.Int64  // newest group's end: bytes since Open
	flushed      atomic.Int64  // end of the newest flushed group
	flushedUntil atomic.Uint64 // offset: all below is in segments and ledger
}

// follower is one Follow. done is the end of the last group it has dealt with.
type follower struct {
	wake chan struct{}
	done atomic.Int64
}

// init starts the tail with an empty group, so that there is always one to walk from.
func (t *tail) init(next uint64) {
	t.groups = []*Group{{Base: next}}
	t.committed.Store(next)
	t.flushedUntil.Store(next)
}

// push publishes a group. Only the committer calls it.
func (t *tail) push(g *Group) {
	t.mu.Lock()
	last := t.groups[len(t.groups)-1]
	g.end = last.end + g.bytes
	t.groups = append(t.groups, g)
	t.bytes.Add(g.bytes)
	t.pushed.Store(g.end)
	t.committed.Store(g.End())
	t.mu.Unlock()
	last.next.Store(g)
}

// wakeFollowers tells every follower that there may be a new group.
func (t *tail) wakeFollowers() {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, f := range t.followers {
		poke(f.wake)
	}
}

// unfollowed returns the bytes that the slowest follower has yet to see.
func (t *tail) unfollowed() int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	pushed, behind := t.pushed.Load(), int64(0)
	for _, f := range t.followers {
		behind = max(behind, pushed-f.done.Load())
	}
	return behind
}

// trim forgets flushed groups until no more than keep bytes are left. Whoever holds a group still reads it, and who
// looks for an offset that is gone from here finds it on disk, since it was flushed before.
func (t *tail) trim(keep int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	flushed, n := t.flushed.Load(), 0
	for bytes := t.bytes.Load(); n < len(t.groups)-1 && t.groups[n].end <= flushed && bytes > keep; n++ {
		bytes = t.bytes.Add(-t.groups[n].bytes)
	}
	t.groups = slices.Delete(t.groups, 0, n) // clears what it leaves, so the memory goes
}

// find returns the group that holds the offset, the first later one if there is a gap, or nil if the offset is older than the
// tail; newest is true if it is not committed yet.
func (t *tail) find(offset uint64) (g *Group, newest bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if offset >= t.committed.Load() {
		return nil, true
	}
	if offset < t.groups[0].Base {
		return nil, false
	}
	i, _ := slices.BinarySearchFunc(t.groups, offset, endsBefore)
	return t.groups[i], false
}

// oldest returns the first offset that is in memory.
func (t *tail) oldest() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.groups[0].Base
}

// newest returns the last group.
func (t *tail) newest() *Group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.groups[len(t.groups)-1]
}

// follow registers a follower at the oldest group.
func (t *tail) follow() (*follower, *Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := &follower{wake: make(chan struct{}, 1)}
	first := t.groups[0]
	f.done.Store(first.end - first.bytes)
	t.followers = append(t.followers, f)
	return f, first
}

func (t *tail) unfollow(f *follower) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.followers = slices.DeleteFunc(t.followers, func(o *follower) bool { return o == f })
}

// Follower is handed every group that is committed, in order, from when it was made: however late it runs, it misses none.
// Appends wait for one that is far behind.
type Follower struct {
	s *Store
	f *follower
	g *Group // the oldest that it has not been handed
}

// NewFollower returns a follower, which is to be Run: until then the groups stay in memory for it. It begins with the oldest group still
// there; Group.Base tells.
func (s *Store) NewFollower() *Follower {
	f, g := s.tail.follow()
	return &Follower{s, f, g}
}

// Follow is Run of a new Follower.
func (s *Store) Follow(ctx context.Context, fn func(g *Group)) error {
	return s.NewFollower().Run(ctx, fn)
}

// Run hands the groups to fn until ctx ends; it returns ctx's error. fn must not block for long, and must not wait for an append.
// It can be called once.
func (r *Follower) Run(ctx context.Context, fn func(g *Group)) error {
	s, f, g := r.s, r.f, r.g
	r.g = nil // the memory of what is done with goes
	defer func() {
		s.tail.unfollow(f)
		poke(s.progress)
	}()
	for {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if len(g.Entries) > 0 {
			fn(g)
		}
		f.done.Store(g.end)
		if s.waiting.Load() {
			poke(s.progress)
		}
		next := g.next.Load()
		for next == nil {
			select {
			case <-f.wake:
			case <-ctx.Done():
				return ctx.Err()
			}
			next = g.next.Load()
		}
		g = next
	}
}

// poke wakes whoever waits on c, a channel of capacity 1, or lets it not go to sleep next time.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// search returns the first offset in memory with at least that time, false if there may be an older one on disk.
func (t *tail) search(micros int64, real func(offset uint64, time int64) int64) (uint64, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	groups := t.groups
	for len(groups) > 0 && len(groups[len(groups)-1].Entries) == 0 {
		groups = groups[:len(groups)-1]
	}
	for i, g := range groups { // the first group with entries says how far back memory goes
		if len(g.Entries) == 0 {
			continue
		}
		if real(g.Base, g.Entries[0].Time) >= micros {
			return 0, false
		}
		groups = groups[i:]
		break
	}
	if len(groups) == 0 {
		return 0, false
	}
	lo, hi := groups[0].Base, t.committed.Load() // the record at lo is older, the one at hi is not or does not exist
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		i, _ := slices.BinarySearchFunc(groups, mid, endsBefore)
		at := max(mid, groups[i].Base)
		if real(at, groups[i].Entries[at-groups[i].Base].Time) >= micros {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi, true
}

// endsBefore orders a group and an offset: which group is the first that ends after it.
func endsBefore(g *Group, offset uint64) int {
	if g.End() <= offset {
		return -1
	}
	return 1
}
