package store

import (
	"errors"
	"io"
	"sync"
)

// blockSize is the unit in which segments are read. Small, since a feed that reads what a thousand clients wrote in turns
// needs a block of each at the same time: with 128 KiB BenchmarkRead/all/interleaved read 19,000 records/s, with 16 KiB
// 1,200,000. The kernel reads ahead for who reads a file from end to end.
const blockSize = 16 << 10

type blockKey struct{ segment, index uint32 }

// block is a part of a segment in memory. Its buffer is used again for another block when nobody has it any more, so a
// record is copied out of it.
type block struct {
	key   blockKey
	mu    sync.Mutex // held while it is read from disk: who comes second waits for the first
	data  []byte     // what could be read; fixed once ready
	ready bool
	err   error
	refs  int  // users, and 1 while it is in the cache; under cache.mu
	used  bool // since the clock hand came by; under cache.mu
	at    int  // in cache.ring; under cache.mu
}

// cache holds blocks of segments, shared by all readers, so that readers that run together read the disk once. A
// clock hand chooses what goes.
type cache struct {
	mu           sync.Mutex
	limit        int // blocks
	blocks       map[blockKey]*block
	ring         []*block // those in the cache; hand walks it
	hand         int
	free         [][]byte
	buffers      int // in existence
	hits, misses uint64
}

func (c *cache) init(bytes int64) {
	c.limit = max(4, int(bytes/blockSize))
	c.blocks = make(map[blockKey]*block)
}

// get returns the block, of which the caller needs the first need bytes, reading it with fill if it is not here. Release it
// after use.
//
// The last block of a segment grows. One that was read when it was shorter is not served to who needs more: it leaves
// the cache and is read again.
func (c *cache) get(key blockKey, need int, fill func(p []byte) (int, error)) (*block, error) {
	for {
		b, hit := c.acquire(key)
		b.mu.Lock()
		if !b.ready {
			n, err := fill(b.data)
			b.data, b.ready = b.data[:n], true
			if !errors.Is(err, io.EOF) {
				b.err = err
			}
		}
		short, err := len(b.data) < need, b.err
		b.mu.Unlock()
		if err == nil && !short {
			return b, nil
		}
		c.drop(b)
		c.release(b)
		switch {
		case err != nil:
			return nil, err
		case !hit: // read just now, after the caller learned how much there is
			return nil, io.ErrUnexpectedEOF
		}
	}
}

// acquire returns the block of that key, new if there is none.
func (c *cache) acquire(key blockKey) (b *block, hit bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.blocks[key]; b != nil {
		b.refs++
		b.used = true
		c.hits++
		return b, true
	}
	c.misses++
	for len(c.ring) >= c.limit {
		c.evict()
	}
	b = &block{key: key, refs: 2, data: c.buffer(), at: len(c.ring)}
	c.blocks[key] = b
	c.ring = append(c.ring, b)
	return b, false
}

// evict takes one block out of the cache, the first that was not used since the hand came by.
func (c *cache) evict() {
	for {
		if c.hand >= len(c.ring) {
			c.hand = 0
		}
		b := c.ring[c.hand]
		if !b.used {
			c.forget(b)
			c.hand++ // the newest block has taken the place: it must not be the next to go
			return
		}
		b.used = false
		c.hand++
	}
}

// forget takes a block out of the cache.
func (c *cache) forget(b *block) {
	if c.blocks[b.key] != b {
		return // another has done it
	}
	delete(c.blocks, b.key)
	last := c.ring[len(c.ring)-1]
	last.at = b.at
	c.ring[b.at] = last
	c.ring[len(c.ring)-1] = nil
	c.ring = c.ring[:len(c.ring)-1]
	c.unref(b)
}

func (c *cache) drop(b *block) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(b)
}

func (c *cache) release(b *block) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unref(b)
}

func (c *cache) unref(b *block) {
	if b.refs--; b.refs > 0 {
		return
	}
	if c.buffers > c.limit {
		c.buffers-- // many readers had many blocks at once: let the memory go
	} else {
		c.free = append(c.free, b.data[:blockSize])
	}
	b.data = nil
}

func (c *cache) buffer() []byte {
	if n := len(c.free); n > 0 {
		p := c.free[n-1]
		c.free = c.free[:n-1]
		return p
	}
	c.buffers++
	return make([]byte, blockSize)
}

// purge drops the blocks of a deleted segment.
func (c *cache) purge(segment uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, b := range c.blocks {
		if key.segment == segment {
			c.forget(b)
		}
	}
}

func (c *cache) stats() (bytes int64, hits, misses uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(c.buffers) * blockSize, c.hits, c.misses
}
