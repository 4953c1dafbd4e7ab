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
	groups    []*Group    // never empty: the newest group stays
	followers []*Follower // never changed in place

	committed    atomic.Uint64 // offset
	bytes        atomic.Int64  // of groups
	pushed       atomic.Int64  // newest group's end: bytes since Open
	flushed      atomic.Int64  // end of the newest flushed group
	flushedUntil atomic.Uint64 // offset: all below is in segments and ledger
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

// tell tells every follower that there is a new group. If it can, it has those that keep up look at it at once.
func (t *tail) tell(g *Group, now bool) {
	t.mu.RLock()
	followers := t.followers
	t.mu.RUnlock()
	for _, r := range followers {
		if !now || !r.look(g) {
			poke(r.wake)
		}
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

// Follower is handed every group that is committed, in order, from when it was made: however late it runs, it misses none.
// Appends wait for one that is far behind.
type Follower struct {
	s    *Store
	fn   func(g *Group)
	try  func(g *Group) bool
	wake chan struct{}
	done atomic.Int64 // end of the last group it has dealt with

	mu   sync.Mutex // held while it deals with groups
	last *Group     // that it has dealt with; nil before the first
	next *Group     // the first, until then
}

// NewFollower returns a follower, which is to be Run: until then the groups stay in memory for it. It begins with the oldest group still
// there; Group.Base tells. The groups are handed to fn, which must not block for long, and must not wait for an append. A small one that a caller of
// AppendHere has committed is handed to try, unless that is nil, on the caller's goroutine: it is fn for when that would wait for
// nobody and not take long, or returns false.
func (s *Store) NewFollower(fn func(g *Group), try func(g *Group) bool) *Follower {
	t := &s.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &Follower{s: s, fn: fn, try: try, wake: make(chan struct{}, 1), next: t.groups[0]}
	r.done.Store(r.next.end - r.next.bytes)
	t.followers = append(slices.Clip(t.followers), r)
	return r
}

// Follow is Run of a new Follower.
func (s *Store) Follow(ctx context.Context, fn func(g *Group)) error {
	return s.NewFollower(fn, nil).Run(ctx)
}

// Run hands over the groups until ctx ends; it returns ctx's error. It can be called once.
func (r *Follower) Run(ctx context.Context) error {
	defer r.leave()
	for {
		r.mu.Lock()
		for g := r.following(); g != nil && ctx.Err() == nil; g = r.following() {
			if len(g.Entries) > 0 {
				r.fn(g)
			}
			r.dealt(g)
			if r.s.waiting.Load() > 0 {
				poke(r.s.progress)
			}
		}
		r.mu.Unlock()
		select {
		case <-r.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// following returns the first group that has not been dealt with, nil if there is none; mu is held.
func (r *Follower) following() *Group {
	if r.last == nil {
		return r.next
	}
	return r.last.next.Load()
}

// dealt notes that the next group has been dealt with; mu is held. The memory of those before it goes.
func (r *Follower) dealt(g *Group) {
	r.last, r.next = g, nil
	r.done.Store(g.end)
}

// look has the follower deal with g at once, if it is the next one, small, and nobody has to be waited for.
func (r *Follower) look(g *Group) bool {
	if r.try == nil || len(g.Entries) > lookedAt || !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	if r.following() != g || len(g.Entries) > 0 && !r.try(g) {
		return false
	}
	r.dealt(g)
	return true
}

// leave ends it: nobody waits for it any more.
func (r *Follower) leave() {
	t := &r.s.tail
	t.mu.Lock()
	t.followers = slices.DeleteFunc(slices.Clone(t.followers), func(o *Follower) bool { return o == r })
	t.mu.Unlock()
	poke(r.s.progress)
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
