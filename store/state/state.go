// Package state keeps small durable state by key in bbolt. What is newer than the last checkpoint is
// held in memory, and is in the journal.
//
// state.db has one bbolt bucket for each record.Bucket, by its name; each value has a checksum behind it. In "meta" the key "format" holds
// the version of the whole (u16), "checkpoint" the last Checkpoint, and "sums" what there is in each bucket; all three are kept by this package.
// docs/FORMAT.md has the full rules.
package state

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"sync"

	bolt "go.etcd.io/bbolt"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// Bucket names one table; see the constants in package record.
type Bucket = record.Bucket

// ErrVersion means that the state is sound but newer than this build.
var ErrVersion = record.ErrVersion

// CorruptError says where the state stopped making sense. Pos is 0: bbolt does not tell.
type CorruptError = record.CorruptError

// DB is an open state. Get, Range and Apply are safe for concurrent use; Freeze and Save belong to
// one goroutine. Close it when all others have ended.
type DB struct {
	fsys     vfs.FS
	path     string
	bolt     *bolt.DB // nil: read-only, and there is no file
	readOnly bool
	plain    bool      // version 1, read only: no checksums
	sums     sums      // of what was saved last; of who calls Save, who changes it with mu held
	damaged  []Damaged // likewise
	fallback bool      // a meta page was damaged, perhaps torn

	repairing bool
	accepted  error // what was wrong with sums, while repairing

	mu         sync.RWMutex
	active     overlay // applied since the last Freeze
	frozen     overlay // to be saved; newer than bbolt, older than active
	checkpoint *Checkpoint
	broken     error // bbolt panicked in a write transaction and may hold its locks
}

// overlay is a set of changes. The changes in it are replaced, never modified, while it is frozen.
type overlay struct {
	buckets map[Bucket]map[string]*change
	keys    int
	bytes   int64
}

type change struct{ value []byte } // nil: deleted

// set makes a change. It copies value, not key if that is there already: cursors are set again and again.
func (o *overlay) set(b Bucket, key, value []byte) {
	value = bytes.Clone(value)
	if c := o.buckets[b][string(key)]; c != nil {
		o.bytes += int64(len(value) - len(c.value))
		c.value = value
		return
	}
	o.put(b, string(key), &change{value})
}

func (o *overlay) put(b Bucket, key string, c *change) {
	if o.buckets == nil {
		o.buckets = make(map[Bucket]map[string]*change)
	}
	keys := o.buckets[b]
	if keys == nil {
		keys = make(map[string]*change)
		o.buckets[b] = keys
	}
	if old := keys[key]; old != nil {
		o.bytes -= int64(len(old.value))
	} else {
		o.keys++
		o.bytes += int64(len(key))
	}
	o.bytes += int64(len(c.value))
	keys[key] = c
}

// Get returns the value of a key. The caller must not change it; it stays valid.
func (d *DB) Get(b Bucket, key []byte) (value []byte, ok bool, err error) {
	d.mu.RLock()
	for _, o := range []*overlay{&d.active, &d.frozen} {
		if c := o.buckets[b][string(key)]; c != nil {
			value = c.value
			d.mu.RUnlock()
			return value, value != nil, nil
		}
	}
	d.mu.RUnlock()
	// If a Save moves the key from the overlay to bbolt just now, then bbolt has it.
	err = d.view(func(tx *bolt.Tx) error {
		if t := tx.Bucket([]byte(b.String())); t != nil {
			if v := t.Get(key); v != nil {
				if value, ok = d.value(b, key, v); !ok {
					return d.corrupt(b, key)
				}
				value = bytes.Clone(value)
			}
		}
		return nil
	})
	return value, ok, err
}

// value returns the value of what bbolt has, false if it is damaged.
func (d *DB) value(b Bucket, key, v []byte) ([]byte, bool) {
	if d.plain {
		return v, true
	}
	return unseal(b.String(), key, v)
}

// pair is a key with its value; nil means deleted.
type pair struct{ key, value []byte }

// snapshot returns the changes to keys with a prefix, in order.
func (d *DB) snapshot(b Bucket, prefix []byte) []pair {
	d.mu.RLock()
	defer d.mu.RUnlock()
	newest := make(map[string][]byte)
	for _, o := range []*overlay{&d.frozen, &d.active} {
		for k, c := range o.buckets[b] {
			if strings.HasPrefix(k, string(prefix)) {
				newest[k] = c.value
			}
		}
	}
	pairs := make([]pair, 0, len(newest))
	for _, k := range slices.Sorted(maps.Keys(newest)) {
		pairs = append(pairs, pair{[]byte(k), newest[k]})
	}
	return pairs
}

// Range calls fn with every key that has the prefix, in order, until fn returns false. fn may call
// into d. A change made meanwhile may or may not be seen. k and v stay valid and must not be changed.
func (d *DB) Range(b Bucket, prefix []byte, fn func(k, v []byte) bool) error {
	// The overlay first: what a Save moves to bbolt in between is then seen twice, not never.
	over := d.snapshot(b, prefix)
	for after, more := []byte(nil), true; more; {
		var page []pair
		var err error
		// Page by page, so that no bbolt transaction is open while fn runs: one would keep Save from growing the file.
		if page, more, err = d.page(b, prefix, after); err != nil {
			return err
		}
		for _, p := range page {
			for len(over) > 0 && bytes.Compare(over[0].key, p.key) < 0 {
				if over[0].value != nil && !fn(over[0].key, over[0].value) {
					return nil
				}
				over = over[1:]
			}
			if len(over) > 0 && bytes.Equal(over[0].key, p.key) {
				p.value = over[0].value
				over = over[1:]
			} else if v, ok := d.value(b, p.key, p.value); ok {
				p.value = v
			} else {
				return d.corrupt(b, p.key)
			}
			if p.value != nil && !fn(p.key, p.value) {
				return nil
			}
			after = p.key
		}
	}
	for _, p := range over {
		if p.value != nil && !fn(p.key, p.value) {
			return nil
		}
	}
	return nil
}

const (
	pageKeys  = 256
	pageBytes = 1 << 20
)

// page reads the next keys with a prefix from bbolt, those after a key unless that is nil, with what is stored of them.
func (d *DB) page(b Bucket, prefix, after []byte) (pairs []pair, more bool, err error) {
	err = d.view(func(tx *bolt.Tx) error {
		t := tx.Bucket([]byte(b.String()))
		if t == nil {
			return nil
		}
		c, start := t.Cursor(), prefix
		if after != nil {
			start = after
		}
		k, v := c.Seek(start)
		if after != nil && bytes.Equal(k, after) {
			k, v = c.Next()
		}
		for size := 0; k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
			if len(pairs) == pageKeys || size > pageBytes {
				more = true
				return nil
			}
			if v == nil {
				continue // a bucket in the bucket: not ours
			}
			pairs = append(pairs, pair{bytes.Clone(k), bytes.Clone(v)})
			size += len(k) + len(v)
		}
		return nil
	})
	return pairs, more, err
}

// Apply makes changes, the newest wins. It copies what it keeps.
func (d *DB) Apply(ms []record.Mutation) {
	if len(ms) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range ms {
		d.active.set(m.Bucket, m.Key, m.Value)
	}
}

// Freeze marks all that was applied so far as what the next Save writes, and returns the number of
// keys. Reads still see it. Call it at a group boundary, the one that the checkpoint will name.
func (d *DB) Freeze() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.frozen.keys == 0 {
		d.frozen = d.active
	} else { // a Save has failed
		for b, keys := range d.active.buckets {
			for k, c := range keys {
				d.frozen.put(b, k, c)
			}
		}
	}
	d.active = overlay{}
	return d.frozen.keys
}

// Frozen returns the changes in a bucket that the next Save writes, in the order of the keys. They must not be changed.
func (d *DB) Frozen(b Bucket) []record.Mutation {
	d.mu.RLock()
	defer d.mu.RUnlock()
	keys := d.frozen.buckets[b]
	list := make([]record.Mutation, 0, len(keys))
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		list = append(list, record.Mutation{Bucket: b, Key: []byte(k), Value: keys[k].value})
	}
	return list
}

// Mark tells the saved contents of a bucket from those at another time, as good as a checksum does. It is for who calls Save.
func (d *DB) Mark(b Bucket) (keys, crcs uint64) {
	x := d.sums[b.String()]
	return x.keys, x.crcs
}

// Checkpoint returns the last one saved, false if there is none.
func (d *DB) Checkpoint() (Checkpoint, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.checkpoint == nil {
		return Checkpoint{}, false
	}
	return *d.checkpoint, true
}

// Fallback tells whether one of the two meta pages was damaged when the state was opened, so that the other one counts: a write of it that a power
// cut tore is nothing to worry about.
func (d *DB) Fallback() bool { return d.fallback }

// Keys returns how many keys a bucket had when the state was last saved.
func (d *DB) Keys(b Bucket) uint64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.sums[b.String()].keys
}

// Stats is how much the state holds.
type Stats struct {
	Pending      int   // keys changed since the last Save
	PendingBytes int64 // of those keys and values
	FileBytes    int64
}

// Stats tells how much the state holds.
func (d *DB) Stats() Stats {
	d.mu.RLock()
	s := Stats{Pending: d.active.keys + d.frozen.keys, PendingBytes: d.active.bytes + d.frozen.bytes}
	d.mu.RUnlock()
	if info, err := d.fsys.Stat(d.path); err == nil {
		s.FileBytes = info.Size()
	}
	return s
}
