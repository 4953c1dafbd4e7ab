package feed

import (
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
)

// key is what several members must not split: the messages of one publisher, or of one @ShardingKey. They go to one
// member, in order. When another member is to have them from now on, they are held back until what is
// already sent has been settled, so that no message overtakes an earlier one of its key.
type key struct {
	hash    uint64
	m       *Member
	sent    int  // with m and not settled
	waiting int  // in m's todo
	blocked int  // refused items of an ordered queue that hold back the others
	held    seqs // waiting, and with no member yet
	moving  bool // to whichever member pick says when sent is 0
}

// ordered tells whether one item of a key is with a member at a time.
func (f *Feed) ordered() bool { return f.policy.Ordered }

// keyOf returns the key of a record in a shared feed.
func keyOf(s *slot) uint64 {
	if len(s.Props) > 0 {
		if v, ok := packet.FindUser(s.Props, wire.ShardingKey); ok {
			return fnv(v) | 1<<63
		}
	}
	return uint64(s.Client)
}

// fnv is the 64-bit FNV-1a hash.
func fnv(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// pick chooses a member for a key by rendezvous hashing: when a member comes or goes, only the keys that it gains
// or loses move. f.mu is held.
func (f *Feed) pick(hash uint64) *Member {
	if f.policy.Exclusive && len(f.members) > 0 {
		return f.members[0]
	}
	var best *Member
	var top uint64
	for _, m := range f.members {
		x := hash*0x9E3779B97F4A7C15 ^ m.serial*0xC2B2AE3D27D4EB4F
		x ^= x >> 29
		x *= 0xBF58476D1CE4E5B9
		x ^= x >> 32
		if best == nil || x > top {
			best, top = m, x
		}
	}
	return best
}

// assign gives a waiting slot to its member; f.mu is held.
func (f *Feed) assign(s *slot) {
	if !f.shared {
		if len(f.members) > 0 {
			s.m = f.members[0]
			s.m.todo.push(s.Seq)
		}
		return
	}
	k := s.key
	if k == nil {
		h := keyOf(s)
		if k = f.keys[h]; k == nil {
			k = &key{hash: h, m: f.pick(h)}
			f.keys[h] = k
		}
		s.key = k
	}
	if k.moving || k.blocked > 0 || f.ordered() && k.sent+k.waiting > 0 {
		k.held.push(s.Seq)
		return
	}
	k.waiting++
	s.m = k.m
	k.m.todo.push(s.Seq)
}

// release is called when a key has one item less with its member: it ends a move, gives the member what was held
// back, or forgets the key. f.mu is held.
func (f *Feed) release(k *key) {
	if k.sent > 0 || k.blocked > 0 {
		return
	}
	if k.moving {
		k.moving, k.m = false, f.pick(k.hash)
	}
	if k.m == nil {
		return
	}
	for k.held.len() > 0 && !(f.ordered() && k.waiting > 0) {
		seq := k.held.pop()
		if !f.win.has(seq) {
			continue
		}
		if s := f.win.at(seq); s.key == k && s.state == waiting && s.m == nil {
			s.m = k.m
			k.waiting++
			k.m.todo.push(seq)
		}
	}
	if k.waiting > 0 {
		k.m.w.Wake()
		return
	}
	delete(f.keys, k.hash)
}

// rebalance assigns all waiting slots anew, after members or slots have changed hands. f.mu is held.
func (f *Feed) rebalance() {
	for _, m := range f.members {
		m.todo.clear()
	}
	for h, k := range f.keys {
		k.waiting, k.moving = 0, false
		k.held.clear()
		switch to := f.pick(h); {
		case k.sent == 0:
			k.m = to
		case k.m != to:
			k.moving = true
		}
	}
	for seq := f.win.head; seq < f.win.tail; seq++ {
		if s := f.win.at(seq); s.state == waiting {
			s.m = nil
			f.assign(s)
		}
	}
	f.wake()
}

// relieve is called when the feed reads no further because enough waits: members with nothing to take get keys of those
// that have something, as far as none of a key's items is with its member. So a member that takes its time, or nothing at
// all, keeps only the keys of what it has. f.mu is held.
func (f *Feed) relieve() {
	if !f.shared || f.policy.Exclusive || len(f.members) < 2 || f.waiting == 0 {
		return
	}
	var idle []*Member
	for _, m := range f.members {
		if m.todo.len() == 0 && m.sent == 0 { // with something in hand its window may be full
			idle = append(idle, m)
		}
	}
	if len(idle) == 0 {
		return
	}
	moved := map[*key]struct{}{}
	for _, k := range f.keys {
		if k.waiting > 0 && k.sent == 0 && k.blocked == 0 && !k.moving && k.m.todo.len() > 0 {
			k.m = idle[len(moved)%len(idle)]
			k.waiting = 0
			k.held.clear()
			moved[k] = struct{}{}
		}
	}
	if len(moved) == 0 {
		return
	}
	for seq := f.win.head; seq < f.win.tail; seq++ {
		s := f.win.at(seq)
		if _, ok := moved[s.key]; ok && s.state == waiting {
			s.m = nil
			f.assign(s)
		}
	}
	f.wake()
}
