package session

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/edgemq/edgemq/broker/packet"
)

// seed is that of the hashes of topics: nobody outside can tell which of them meet in one place.
var seed = maphash.MakeSeed()

// recent is what a link remembers of the topics it publishes to: pairs, and each topic has one pair where it may be, with the newer of two
// in front. It grows, up to maxRefs, as long as topics are in each other's way: most clients publish to a few.
type recent []memory

// memory is one topic of them; its hash is here so that a look at the place is enough to pass over another topic.
type memory struct {
	hash uint64
	ref  *topicRef
}

// maxRefs is how many topics a link remembers: a power of two.
const maxRefs = 512

func (m *memory) is(hash uint64, name []byte) bool {
	return m.hash == hash && m.ref != nil && m.ref.is(name)
}

// get returns what is known of a topic, nil if nothing is. It does not allocate.
func (r recent) get(hash uint64, name []byte) *topicRef {
	if len(r) == 0 {
		return nil
	}
	p := r.pair(hash)
	switch {
	case p[0].is(hash, name):
		return p[0].ref
	case p[1].is(hash, name):
		return p[1].ref
	}
	return nil
}

func (r recent) pair(hash uint64) *[2]memory {
	at := 2 * (hash & uint64(len(r)/2-1))
	return (*[2]memory)(r[at : at+2])
}

// put remembers a topic that get does not know.
func (r *recent) put(hash uint64, ref *topicRef) {
	if len(*r) == 0 {
		*r = make(recent, 2)
	}
	for len(*r) < maxRefs && r.pair(hash)[1].ref != nil {
		old := *r
		*r = make(recent, 2*len(old))
		for i := range old { // the older of a pair first
			if m := old[i^1]; m.ref != nil {
				p := r.pair(m.hash)
				p[0], p[1] = m, p[0]
			}
		}
	}
	p := r.pair(hash)
	p[0], p[1] = memory{hash, ref}, p[0]
}

const (
	// foreseen is how many packets Foresee looks at: the processor has about as many lines of memory on their way at once.
	foreseen = 32
	// fewRefs are the places of topics that stay in its innermost cache.
	fewRefs = 64
)

// Foresee looks at what the publishes that b begins with are going to need: where their topics are remembered. Each is a wait for memory, or
// two, and here they wait together, where Publish would wait for one after the other. It returns how many packets it has looked at, 0 if there is
// no whole one.
func (l *Link) Foresee(b []byte) (packets int) {
	if len(l.recent) < fewRefs {
		return foreseen
	}
	var hashes [foreseen]uint64
	n := 0
	for packets < foreseen {
		name, size := packet.PeekTopic(b)
		if size == 0 {
			break
		}
		packets++
		b = b[size:]
		if len(name) > 0 {
			hashes[n] = maphash.Bytes(seed, name)
			n++
		}
	}
	var refs [foreseen]*topicRef
	for i, hash := range hashes[:n] {
		refs[i] = l.recent.peek(hash)
	}
	if table := l.m.refs.table.Load(); table != nil {
		for i, hash := range hashes[:n] {
			if refs[i] == nil {
				refs[i] = hint(table.places, hash)
			}
		}
	}
	for _, ref := range refs[:n] {
		if ref != nil {
			l.touched ^= ref.short[0]
		}
	}
	return packets
}

// peek returns the topic of that hash, most likely, nil if there is none.
func (r recent) peek(hash uint64) *topicRef {
	p := r.pair(hash)
	switch hash {
	case p[0].hash:
		return p[0].ref
	case p[1].hash:
		return p[1].ref
	}
	return nil
}

// refs has what links know of plain topics, once for all links: it is the same for all, and never changes. A thousand links that
// publish to the same hundred topics would otherwise have a hundred thousand.
//
// A client that publishes to more topics than its link remembers asks here for each message, so get takes no lock: places are filled and never
// changed, and a table that is too small makes room for a larger one. So does one with numbers that may have been given up since (store.Renumbered).
type refs struct {
	table atomic.Pointer[refTable]
	mu    sync.Mutex
	n     int // topics in table; guarded by mu
}

// refTable is what is known as of a store.Renumbered.
type refTable struct {
	numbers uint64
	places  []shared // a power of two, at most half full
}

// shared is one place of the table. The hash is stored first: whoever finds ref finds it too.
type shared struct {
	hash atomic.Uint64
	ref  atomic.Pointer[topicRef]
}

// maxShared bounds their number. Beyond it they are found out again.
const maxShared = 1 << 17

// find returns the topic, or the free place where it would be.
func find(table []shared, hash uint64, name []byte) (*topicRef, *shared) {
	for at := hash; ; at++ {
		p := &table[at&uint64(len(table)-1)]
		ref := p.ref.Load()
		if ref == nil {
			return nil, p
		}
		if p.hash.Load() == hash && ref.is(name) {
			return ref, nil
		}
	}
}

// hint returns the first topic of that hash, most likely the only one, nil if there is none.
func hint(table []shared, hash uint64) *topicRef {
	for at := hash; ; at++ {
		p := &table[at&uint64(len(table)-1)]
		if ref := p.ref.Load(); ref == nil || p.hash.Load() == hash {
			return ref
		}
	}
}

// get returns what is known of a topic, nil if nothing is. It does not allocate.
func (r *refs) get(numbers, hash uint64, name []byte) *topicRef {
	table := r.table.Load()
	if table == nil || table.numbers != numbers {
		return nil
	}
	ref, _ := find(table.places, hash, name)
	return ref
}

// share returns the one for all links that know as much.
func (r *refs) share(numbers, hash uint64, ref *topicRef) *topicRef {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.table.Load()
	if old != nil && old.numbers > numbers {
		return ref
	}
	if old != nil && old.numbers < numbers {
		r.table.Store(nil)
	}
	table := r.roomy(numbers)
	first, free := find(table, hash, []byte(ref.wire))
	if first != nil {
		return first
	}
	free.hash.Store(hash)
	free.ref.Store(ref)
	r.n++
	return ref
}

// roomy returns the table, or a new one in its place if there is no room for another topic; mu is held.
func (r *refs) roomy(numbers uint64) []shared {
	old := r.table.Load()
	switch {
	case old == nil || r.n >= maxShared:
		r.table.Store(&refTable{numbers, make([]shared, 64)})
		r.n = 0
	case r.n >= len(old.places)/2:
		table := make([]shared, 4*len(old.places))
		for i := range old.places {
			if ref := old.places[i].ref.Load(); ref != nil {
				hash := old.places[i].hash.Load()
				_, free := find(table, hash, []byte(ref.wire))
				free.hash.Store(hash)
				free.ref.Store(ref)
			}
		}
		r.table.Store(&refTable{numbers, table})
	}
	return r.table.Load().places
}
