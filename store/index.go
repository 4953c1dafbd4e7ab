package store

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// indexEvery is how often the index looks for what it has not seen.
const indexEvery = time.Second

// indexRest is how long the index rests after each stretch of work, as a multiple of the work: what it does is never
// urgent, and publishers want the processor.
const indexRest = 4

// While more than busy records a second are committed the index waits, unless it is maxIndexLag blocks behind.
const (
	busy        = 100_000
	maxIndexLag = 32
)

// maxIndexCache bounds the memory of directories.
const maxIndexCache = 16 << 20

// index finds records without reading everything: which offsets a topic has, and which a key (Options.Keys).
//
// The log is cut into blocks of as many offsets as a ledger file has. A full block's index is a file, data/index/<block>.idx, made
// once and never changed (see indexfile.go); the block that is not full yet is a few arrays in memory, made anew at a start. Only what
// a checkpoint covers is indexed, since a power cut may give offsets above it to other records. Everything here is made from
// ledger and segments, so a damaged or missing file is made again, and nothing is ever synced. What is not indexed yet is read
// entry by entry, as if there were no index.
type index struct {
	s     *Store
	size  uint64        // offsets a block
	until atomic.Uint64 // first offset that is neither in a file nor in open

	work    sync.Mutex      // held by who makes the index
	without map[uint64]bool // blocks that get none, since entries of theirs are damaged; guarded by work

	blockTopics blockTopics

	mu    sync.RWMutex
	have  map[uint64]bool // blocks with a file that is good as far as we know
	open  openBlock
	cache map[uint64]*indexBlock
	bytes int64
	clock atomic.Uint64
}

// openBlock is what is known of the newest block. The slices only grow, so that who has copied them under mu may read on.
type openBlock struct {
	base   uint64
	topics []uint32 // by offset - base; 0 for an offset without a record
	sizes  []uint32
	// clients are the publishers of records, in order, but for those that had the record before as well.
	clients []uint32
	keys    []indexKey
	bad     []uint64 // offsets whose entry is damaged, ascending: nobody knows their topics, so everybody has to look at them
}

// indexKey is one key of a record.
type indexKey struct {
	hash uint64
	rel  uint32 // offset in the block
}

func (x *index) init(s *Store, size uint64) {
	x.s, x.size = s, size
	x.have, x.without, x.cache = map[uint64]bool{}, map[uint64]bool{}, map[uint64]*indexBlock{}
}

func (x *index) dir() string { return x.s.opt.path("index") }

func (x *index) path(block uint64) string {
	return x.s.opt.path("index", fmt.Sprintf("%08x.idx", block))
}

// indexLoop makes the index until ctx ends.
func (s *Store) indexLoop(ctx context.Context) {
	x := &s.index
	tick := time.NewTicker(indexEvery)
	defer tick.Stop()
	ready, warned := false, false
	for records := s.count.records.Load(); ; {
		before := records
		records = s.count.records.Load()
		if records-before < uint64(busy*indexEvery/time.Second) || s.checkpointedNext.Load()-x.until.Load() > maxIndexLag*x.size {
			var err error
			if !ready {
				err = x.list()
				ready = err == nil
			}
			if err == nil {
				err = x.catchUp(ctx)
			}
			if err != nil && ctx.Err() == nil && !warned {
				s.log.Warn("indexing failed, trying again; queries take longer meanwhile", "err", err)
			}
			warned = err != nil
		}
		select {
		case <-ctx.Done():
			return
		case <-s.failed:
			return
		case <-tick.C:
		}
	}
}

// list finds the files there are.
func (x *index) list() error {
	if err := x.s.fs.MkdirAll(x.dir(), 0o700); err != nil {
		return err
	}
	names, err := x.s.fs.ReadDir(x.dir())
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, name := range names {
		var block uint64
		if n, err := fmt.Sscanf(name.Name(), "%x.idx", &block); n == 1 && err == nil && x.path(block) == x.s.opt.path("index", name.Name()) {
			x.have[block] = true
		}
	}
	return nil
}

// catchUp indexes what the last checkpoint covers, and forgets what is deleted.
func (x *index) catchUp(ctx context.Context) error {
	x.work.Lock()
	defer x.work.Unlock()
	first, next := x.s.First(), x.s.checkpointedNext.Load()
	if err := x.drop(first / x.size); err != nil {
		return err
	}
	for block := first / x.size; block < next/x.size; block++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !x.has(block) && !x.without[block] {
			if err := x.build(ctx, block); err != nil {
				return fmt.Errorf("block %d: %w", block, err)
			}
		}
		x.until.Store(max(x.until.Load(), (block+1)*x.size))
	}
	return x.extend(ctx, next)
}

func (x *index) has(block uint64) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.have[block]
}

// drop removes the files of blocks before the given one.
func (x *index) drop(before uint64) error {
	for block := range x.without {
		if block < before {
			delete(x.without, block)
		}
	}
	x.mu.Lock()
	var gone []uint64
	for block := range x.have {
		// A block from the future is of another life of this directory (a backup was put in its place).
		if block < before || block >= x.s.checkpointedNext.Load()/x.size {
			gone = append(gone, block)
		}
	}
	for _, block := range gone {
		x.forget(block)
	}
	x.mu.Unlock()
	var errs []error
	for _, block := range gone {
		if err := x.s.fs.Remove(x.path(block)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// forget says that a block has no file; mu is held.
func (x *index) forget(block uint64) {
	delete(x.have, block)
	if b := x.cache[block]; b != nil {
		x.bytes -= b.memory()
		delete(x.cache, block)
	}
}

// build makes the file of a full block.
func (x *index) build(ctx context.Context, block uint64) error {
	o := openBlock{base: block * x.size}
	x.mu.RLock()
	if x.open.base == o.base {
		o = x.open
	}
	x.mu.RUnlock()
	if err := x.scan(ctx, &o, o.base+x.size); err != nil {
		return err
	}
	if len(o.bad) > 0 { // the ledger has to be read, so that nobody passes by them
		x.without[block] = true
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.open.base == o.base {
			x.open = openBlock{}
		}
		return nil
	}
	print, err := x.fingerprint(block)
	if err != nil {
		return err
	}
	if err := writeIndex(x.s.fs, x.path(block), &o, print); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.have[block] = true
	if x.open.base == o.base {
		x.open = openBlock{}
	}
	return nil
}

// extend takes the entries up to next into the open block.
func (x *index) extend(ctx context.Context, next uint64) error {
	base := next / x.size * x.size
	x.mu.RLock()
	o := x.open
	x.mu.RUnlock()
	if o.base != base || o.topics == nil {
		o = openBlock{base: base, topics: []uint32{}}
	}
	for at := base + uint64(len(o.topics)); at < next; at = base + uint64(len(o.topics)) {
		err := x.scan(ctx, &o, min(next, at+16*maxChunk))
		x.mu.Lock()
		x.open = o
		x.mu.Unlock()
		x.until.Store(base + uint64(len(o.topics)))
		if err != nil {
			return err
		}
	}
	return nil
}

// scan reads entries into o up to the offset end.
func (x *index) scan(ctx context.Context, o *openBlock, end uint64) error {
	q := &read{s: x.s}
	c := chunks.Get().(*chunk)
	defer chunks.Put(c)
	defer c.releaseBlocks(&x.s.cache)
	for at := o.base + uint64(len(o.topics)); at < end; at = o.base + uint64(len(o.topics)) {
		start := time.Now()
		n, err := x.s.ledger.Read(at, c.entries[:min(maxChunk, end-at)])
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("store: ledger ends at offset %d, %d was expected", at, end)
		}
		c.picks = c.picks[:0]
		for i := range c.entries[:n] {
			if e := &c.entries[i]; e.Segment != 0 && e.Flags.Has(record.FlagKeyed) {
				c.picks = append(c.picks, pick{at + uint64(i), e})
			}
		}
		if q.dst = q.dst[:0]; len(c.picks) > 0 {
			if err := q.fetch(c); err != nil {
				return err
			}
		}
		for _, r := range q.dst {
			x.s.opt.Keys(r.Props, func(kind byte, value []byte) bool {
				o.keys = append(o.keys, indexKey{hashKey(kind, value), uint32(r.Offset - o.base)})
				return true
			})
		}
		clear(q.dst)
		for i := range c.entries[:n] {
			e := &c.entries[i]
			topic := e.Topic
			if e.Segment == 0 {
				topic = 0
			} else if k := len(o.clients); k == 0 || o.clients[k-1] != e.Client {
				o.clients = append(o.clients, e.Client)
			}
			if off := at + uint64(i); e.Bad && off >= x.s.First() { // below, it is deleted
				o.bad = append(o.bad, off)
			}
			o.topics, o.sizes = append(o.topics, topic), append(o.sizes, e.Length)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(indexRest * time.Since(start)):
		}
	}
	return nil
}

// fingerprint tells a block's records from others that had the same offsets once.
func (x *index) fingerprint(block uint64) (uint32, error) {
	var e [1]ledger.Entry
	if n, err := x.s.ledger.Read((block+1)*x.size-1, e[:]); err != nil || n != 1 {
		return 0, errors.Join(fmt.Errorf("store: no ledger entry at the end of block %d", block), err)
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(e[0].Time))
	for _, v := range []uint32{e[0].Topic, e[0].Client, e[0].Segment, e[0].Pos, e[0].Length} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return uint32(hashKey(0, b)), nil
}

// hashKey is 64-bit FNV-1a over a kind and a value, its bits mixed. It is part of the file format.
func hashKey(kind byte, value []byte) uint64 {
	h := (uint64(14695981039346656037) ^ uint64(kind)) * 1099511628211
	for _, c := range value {
		h = (h ^ uint64(c)) * 1099511628211
	}
	h ^= h >> 32
	h *= 0xBF58476D1CE4E5B9
	return h ^ h>>29
}

// block returns the directory of a block that has a file, nil if it has none (yet).
func (x *index) block(block uint64) *indexBlock {
	now := x.clock.Add(1)
	x.mu.RLock()
	b, have := x.cache[block], x.have[block]
	x.mu.RUnlock()
	if b != nil {
		b.used.Store(now)
		return b
	}
	if !have {
		return nil
	}
	b, err := readIndex(x.s.fs, x.path(block), block*x.size, x.size)
	if err == nil {
		var print uint32
		if print, err = x.fingerprint(block); err == nil && print != b.print {
			err = errors.New("it belongs to other records")
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if vfs.Scarce(err) {
		return nil // it may be sound
	}
	if err != nil {
		if x.have[block] && x.s.running.Load() {
			x.s.log.Warn("index file cannot be used, making it again", "file", x.path(block), "err", err)
		}
		x.forget(block)
		return nil
	}
	b.used.Store(now)
	if x.cache[block] == nil {
		x.cache[block] = b
		x.bytes += b.memory()
		x.evict(block)
	}
	return b
}

// evict makes room in the cache for one block's sake; mu is held.
func (x *index) evict(keep uint64) {
	if x.bytes <= maxIndexCache {
		return
	}
	oldest := slices.SortedFunc(maps.Keys(x.cache), func(a, b uint64) int {
		return cmp.Compare(x.cache[a].used.Load(), x.cache[b].used.Load())
	})
	for _, block := range oldest {
		if x.bytes <= maxIndexCache/4*3 {
			return
		}
		if block != keep {
			x.bytes -= x.cache[block].memory()
			delete(x.cache, block)
		}
	}
}

// bad takes a block's file out of use: a part of it that is read when it is needed was damaged.
func (x *index) bad(block uint64, err error) {
	if vfs.Scarce(err) {
		return // it may be sound
	}
	x.s.log.Warn("index file damaged, making it again", "file", x.path(block), "err", err)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forget(block)
}

// newest returns the open block as it is now.
func (x *index) newest() openBlock {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.open
}
