package store

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/segment"
)

// clients is the dictionary of client numbers. It lives in the state, since millions of clients may come once and
// never again; a bounded part of it is cached.
//
// In record.BucketClients the key 'n' + name has the number (u32, big-endian), and 'i' + number has a byte, 1 for a
// persistent client, and the name.
type clients struct {
	mu       sync.Mutex
	ids      generations[string, client]
	names    generations[uint32, string]
	pending  map[string]client   // given a number that is not committed, so not in the state
	unnamed  map[uint32]string   // the same, by number
	leaving  map[uint32]struct{} // numbers that are to be given up, but for those that are asked for meanwhile; nil at other times
	left     map[uint32]string   // given up a moment ago, with their names
	upgraded []uint32            // became persistent since the flusher last asked

	given    atomic.Uint64 // counts the numbers given, and what became persistent
	assign   sync.Mutex    // held by who gives a number, or gives some up, across its Append
	next     uint32
	reserved uint32 // the state says that numbers up to here may be in use
}

type client struct {
	id         uint32
	persistent bool
}

const (
	// reserveClients is how many numbers are taken at once, so that not every new client changes the counter.
	reserveClients = 1024
	// clientCacheBytes bounds each of the caches, twice over (see generations).
	clientCacheBytes = 1 << 20
)

var nextClientKey = []byte("next-client")

func clientNameKey(name string) []byte { return append([]byte{'n'}, name...) }

func clientIDKey(id uint32) []byte { return binary.BigEndian.AppendUint32([]byte{'i'}, id) }

func (c *clients) init() {
	c.pending = make(map[string]client)
	c.unnamed = make(map[uint32]string)
	c.left = make(map[uint32]string)
}

// load finds the next number. Those that were reserved and not given are skipped.
func (c *clients) load(s *Store) error {
	v, ok, err := s.state.Get(record.BucketMeta, nextClientKey)
	if err != nil {
		return err
	}
	c.next = 1
	if ok && len(v) == 4 {
		c.next = binary.BigEndian.Uint32(v)
	}
	c.reserved = c.next
	return nil
}

// ClientID returns the number of a client, from 1, and gives it one at its first use. A persistent client (one
// whose session outlives its connection) gets segments of its own from its first message on. See Use for how long the number holds.
func (s *Store) ClientID(name string, persistent bool) (uint32, error) {
	c := &s.clients
	given := c.given.Load()
	k, ok, err := c.find(s, name)
	if err != nil {
		return 0, err
	}
	if ok && (k.persistent || !persistent) {
		return k.id, nil
	}
	c.assign.Lock()
	defer c.assign.Unlock()
	if c.given.Load() != given { // perhaps to this one
		if k, ok, err = c.find(s, name); err != nil {
			return 0, err
		}
		if ok && (k.persistent || !persistent) {
			return k.id, nil
		}
	}
	var muts []Mutation
	if !ok {
		if c.next >= segment.Shared-1 {
			return 0, fmt.Errorf("%w: of clients", ErrNumbers)
		}
		k.id = c.next
		if c.next >= c.reserved {
			muts = append(muts, record.Put(record.BucketMeta, nextClientKey, binary.BigEndian.AppendUint32(nil, c.next+reserveClients)))
		}
		muts = append(muts, record.Put(record.BucketClients, clientNameKey(name), binary.BigEndian.AppendUint32(nil, k.id)))
	}
	k.persistent = persistent
	muts = append(muts, record.Put(record.BucketClients, clientIDKey(k.id), append([]byte{flagByte(persistent)}, name...)))
	c.mu.Lock()
	c.pending[name], c.unnamed[k.id] = k, name
	c.mu.Unlock()
	c.given.Add(1)
	// It need not be on disk before something is that has the number in it, and that is an append which takes this along.
	if err := s.append(nil, muts, appendMode{rides: true}, &clientSaved{c, name, k}); err != nil {
		c.mu.Lock()
		delete(c.pending, name)
		delete(c.unnamed, k.id)
		c.mu.Unlock()
		return 0, fmt.Errorf("number for a new client: %w", err)
	}
	if k.id == c.next {
		if c.next >= c.reserved {
			c.reserved = c.next + reserveClients
		}
		c.next++
	}
	return k.id, nil
}

func flagByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// clientSaved moves a client from pending to the cache: the state has it now.
type clientSaved struct {
	c    *clients
	name string
	k    client
}

// Committed implements Completion.
func (d *clientSaved) Committed(_ uint64, err error) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	if d.c.pending[d.name] == d.k { // not an upgrade that came after
		delete(d.c.pending, d.name)
		delete(d.c.unnamed, d.k.id)
	}
	if err != nil {
		return
	}
	d.c.ids.put(d.name, d.k, len(d.name))
	d.c.names.put(d.k.id, d.name, len(d.name))
	if d.k.persistent {
		d.c.upgraded = append(d.c.upgraded, d.k.id)
	}
}

// find looks a client up in cache, pending and state, for who is going to use the number: it is not given up then. The caller has a Use.
func (c *clients) find(s *Store, name string) (client, bool, error) {
	c.mu.Lock()
	k, ok := c.pending[name]
	if !ok {
		k, ok = c.ids.get(name)
	}
	delete(c.leaving, k.id)
	c.mu.Unlock()
	if ok {
		return k, true, nil
	}
	key := clientNameKey(name)
	if len(key) > record.MaxKey {
		return client{}, false, fmt.Errorf("%w: client name of %d bytes", ErrTooLarge, len(name))
	}
	v, ok, err := s.state.Get(record.BucketClients, key)
	if err != nil || !ok || len(v) != 4 {
		return client{}, false, err
	}
	k.id = binary.BigEndian.Uint32(v)
	v, ok, err = s.state.Get(record.BucketClients, clientIDKey(k.id))
	if err != nil {
		return client{}, false, err
	}
	k.persistent = ok && len(v) > 0 && v[0] == 1
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pending[name]; ok {
		return p, true, nil // upgraded meanwhile
	}
	if newer, ok := c.ids.get(name); ok {
		k = newer
	} else if _, left := c.left[k.id]; left {
		return client{}, false, nil // what was read is of before
	} else {
		c.ids.put(name, k, len(name))
	}
	delete(c.leaving, k.id)
	return k, true, nil
}

// ClientName returns the name of a client, "" if id is unknown.
func (s *Store) ClientName(id uint32) string {
	c := &s.clients
	c.mu.Lock()
	name, ok := c.unnamed[id]
	if !ok {
		name, ok = c.left[id]
	}
	if !ok {
		name, ok = c.names.get(id)
	}
	c.mu.Unlock()
	if ok {
		return name
	}
	v, ok, err := s.state.Get(record.BucketClients, clientIDKey(id))
	if err != nil || !ok || len(v) == 0 {
		return ""
	}
	name = string(v[1:])
	c.mu.Lock()
	c.names.put(id, name, len(name))
	c.mu.Unlock()
	return name
}

// leave has numbers, with their names, be ready to be given up.
func (c *clients) leave(ids map[uint32]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving = make(map[uint32]struct{}, len(ids))
	for id := range ids {
		c.leaving[id] = struct{}{}
	}
}

// remove takes those of the numbers that nobody has asked for since leave out of the dictionary and returns them. assign is held.
func (c *clients) remove(ids map[uint32]string) (gone []uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, name := range ids {
		if _, ok := c.leaving[id]; !ok {
			continue
		}
		if _, ok := c.left[id]; ok {
			continue // the state has it still
		}
		delete(c.leaving, id)
		c.left[id] = name
		c.ids.remove(name)
		c.names.remove(id)
		gone = append(gone, id)
	}
	return gone
}

// stay ends what leave began.
func (c *clients) stay() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving = nil
}

// forget takes away the names of numbers that were removed.
func (c *clients) forget(ids []uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		delete(c.left, id)
		c.names.remove(id)
	}
}

// persistent says whether a client has a persistent session, as far as is committed.
func (c *clients) persistent(s *Store, id uint32) bool {
	v, ok, err := s.state.Get(record.BucketClients, clientIDKey(id))
	return err == nil && ok && len(v) > 0 && v[0] == 1
}

func (c *clients) takeUpgraded() []uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := c.upgraded
	c.upgraded = nil
	return ids
}

// generations is a bounded cache: when young is full it becomes old, and what is not asked for until the next turn
// goes.
type generations[K comparable, V any] struct {
	young, old map[K]V
	bytes      int // of young
}

func (g *generations[K, V]) get(k K) (V, bool) {
	if v, ok := g.young[k]; ok {
		return v, true
	}
	v, ok := g.old[k]
	if ok {
		g.put(k, v, 0)
	}
	return v, ok
}

// put adds an entry whose key or value takes n bytes elsewhere.
func (g *generations[K, V]) put(k K, v V, n int) {
	if g.young == nil || g.bytes > clientCacheBytes {
		g.young, g.old, g.bytes = make(map[K]V), g.young, 0
	}
	g.young[k] = v
	g.bytes += n + 64
}

func (g *generations[K, V]) remove(k K) {
	delete(g.young, k)
	delete(g.old, k)
}
