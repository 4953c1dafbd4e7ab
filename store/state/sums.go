package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/edgemq/edgemq/store/record"
)

// bbolt has a checksum for its two meta pages and for nothing else. So a value is stored with one behind it, over the bucket's name, the key and
// the value; and for each bucket the number of its keys and the sum of their checksums is kept, which tells if a key is
// missing, or is there as it was before. A start reads all of it.

var sumsKey = []byte("sums")

// plainKeys of "meta" have no checksum behind them: they must be read before it is known whether there are any, or have their own.
func plainKey(bucket string, key []byte) bool {
	return bucket == string(metaName) && (bytes.Equal(key, formatKey) || bytes.Equal(key, checkpointKey) || bytes.Equal(key, sumsKey))
}

const sumSize = 4

// seal returns a value as it is stored.
func seal(bucket string, key, value []byte) []byte {
	b := make([]byte, 0, len(value)+sumSize)
	b = append(b, value...)
	return binary.LittleEndian.AppendUint32(b, sumOf(bucket, key, value))
}

func sumOf(bucket string, key, value []byte) uint32 {
	crc := crc32.Update(0, castagnoli, []byte(bucket))
	crc = crc32.Update(crc, castagnoli, binary.LittleEndian.AppendUint32(nil, uint32(len(key))))
	crc = crc32.Update(crc, castagnoli, key)
	return crc32.Update(crc, castagnoli, value)
}

// stored is the checksum behind a value.
func stored(b []byte) uint32 {
	if len(b) < sumSize {
		return 0
	}
	return binary.LittleEndian.Uint32(b[len(b)-sumSize:])
}

// unseal returns the value of what is stored, false if it is damaged.
func unseal(bucket string, key, b []byte) ([]byte, bool) {
	if plainKey(bucket, key) {
		return b, true
	}
	if len(b) < sumSize {
		return nil, false
	}
	value := b[: len(b)-sumSize : len(b)-sumSize]
	return value, sumOf(bucket, key, value) == stored(b)
}

// sum is what is known of a bucket as a whole.
type sum struct{ keys, crcs uint64 }

type sums map[string]sum

// replace counts a value in place of another, nil for none.
func (s sums) replace(bucket string, old, b []byte) {
	x := s[bucket]
	if old != nil {
		x.keys--
		x.crcs -= uint64(stored(old))
	}
	if b != nil {
		x.keys++
		x.crcs += uint64(stored(b))
	}
	s[bucket] = x
}

// append encodes, for each bucket, length of name u8, name, keys u64, crcs u64; and a crc over all of it.
func (s sums) append(dst []byte) []byte {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		dst = append(dst, byte(len(name)))
		dst = append(dst, name...)
		dst = binary.LittleEndian.AppendUint64(dst, s[name].keys)
		dst = binary.LittleEndian.AppendUint64(dst, s[name].crcs)
	}
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst, castagnoli))
}

var errSums = errors.New("damaged sums of buckets")

func parseSums(b []byte) (sums, error) {
	if len(b) < sumSize || crc32.Checksum(b[:len(b)-sumSize], castagnoli) != stored(b) {
		return nil, errSums
	}
	s := sums{}
	for b = b[:len(b)-sumSize]; len(b) > 0; {
		n := int(b[0])
		if len(b) < 1+n+16 {
			return nil, errSums
		}
		s[string(b[1:1+n])] = sum{binary.LittleEndian.Uint64(b[1+n:]), binary.LittleEndian.Uint64(b[1+n+8:])}
		b = b[1+n+16:]
	}
	return s, nil
}

// Damaged is a value whose checksum is wrong.
type Damaged struct {
	Bucket Bucket // 0 if this build knows none of that name
	Name   string // the bucket's
	Key    []byte
}

// Error implements error.
func (d *Damaged) Error() string {
	return fmt.Sprintf("bucket %s, key %q: checksum does not match", d.Name, d.Key)
}

// Damaged returns the values that were damaged when the state was opened, and have not been deleted since. To read one is an error.
func (d *DB) Damaged() []Damaged { return d.damaged }

// verify reads every value. An error means that more is wrong than some values.
func (d *DB) verify(tx *bolt.Tx) error {
	kept, err := parseSums(tx.Bucket(metaName).Get(sumsKey))
	found, hurt := sums{}, map[string]bool{}
	walk := tx.ForEach(func(name []byte, t *bolt.Bucket) error {
		bucket := string(name)
		return t.ForEach(func(k, v []byte) error {
			if v == nil || plainKey(bucket, k) {
				return nil
			}
			found.replace(bucket, nil, v)
			if _, ok := unseal(bucket, k, v); !ok {
				hurt[bucket] = true
				d.damaged = append(d.damaged, Damaged{bucketOf(bucket), bucket, bytes.Clone(k)})
			}
			return nil
		})
	})
	if walk != nil {
		return walk
	}
	if err == nil {
		err = kept.compare(found, hurt)
	}
	switch d.sums = kept; {
	case err != nil && d.repairing:
		d.sums, d.accepted = found, err
	case err != nil:
		return &CorruptError{Path: d.path, Err: err}
	}
	return nil
}

// compare says what there should be and is not. Of the buckets that are hurt the checksums say nothing.
func (s sums) compare(found sums, hurt map[string]bool) error {
	for _, bucket := range slices.Sorted(maps.Keys(s)) {
		if got, want := found[bucket], s[bucket]; got.keys != want.keys || got.crcs != want.crcs && !hurt[bucket] {
			return fmt.Errorf("bucket %s: keys are missing, or of another time: it has %d, it had %d", bucket, got.keys, want.keys)
		}
	}
	for bucket, got := range found {
		if _, ok := s[bucket]; !ok && got.keys > 0 {
			return fmt.Errorf("bucket %s: it has %d keys, it had none", bucket, got.keys)
		}
	}
	return nil
}

// bucketOf is the inverse of Bucket.String, 0 if there is no such bucket.
func bucketOf(name string) Bucket {
	for b := Bucket(1); b != 0; b++ {
		if b.String() == name {
			return b
		}
	}
	return 0
}

// recount counts buckets that had damaged values anew: what is wrong with them is gone by now, but in buckets that no change could name,
// where it goes here.
func (s sums) recount(tx *bolt.Tx, damaged []Damaged) error {
	for _, x := range damaged {
		bucket := x.Name
		if x.Bucket == 0 {
			if err := tx.Bucket([]byte(bucket)).Delete(x.Key); err != nil {
				return fmt.Errorf("delete a damaged value of bucket %s: %w", bucket, err)
			}
		}
		delete(s, bucket)
		err := tx.Bucket([]byte(bucket)).ForEach(func(k, v []byte) error {
			if v != nil && !plainKey(bucket, k) {
				s.replace(bucket, nil, v)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// upgrade gives the values of version 1 their checksums.
func (d *DB) upgrade() error {
	s := sums{}
	err := d.fsys.Commit(d.path, func() error {
		return guard(d.path, func() error {
			return d.bolt.Update(func(tx *bolt.Tx) error {
				var names []string
				if err := tx.ForEach(func(name []byte, _ *bolt.Bucket) error {
					names = append(names, string(name))
					return nil
				}); err != nil {
					return err
				}
				for _, name := range names {
					if err := s.sealBucket(name, tx.Bucket([]byte(name))); err != nil {
						return err
					}
				}
				meta := tx.Bucket(metaName)
				return errors.Join(meta.Put(sumsKey, s.append(nil)), meta.Put(formatKey, binary.LittleEndian.AppendUint16(nil, version)))
			})
		})
	})
	d.sums, d.plain = s, false
	return err
}

func (s sums) sealBucket(name string, t *bolt.Bucket) error {
	var all []pair // a bucket must not be changed while it is walked
	if err := t.ForEach(func(k, v []byte) error {
		if v != nil && !plainKey(name, k) {
			all = append(all, pair{bytes.Clone(k), seal(name, k, v)})
		}
		return nil
	}); err != nil {
		return err
	}
	for _, p := range all {
		if err := t.Put(p.key, p.value); err != nil {
			return err
		}
		s.replace(name, nil, p.value)
	}
	return nil
}

// corrupt is the error of reading a damaged value.
func (d *DB) corrupt(b Bucket, key []byte) error {
	return &record.CorruptError{Path: d.path, Err: &Damaged{b, b.String(), bytes.Clone(key)}}
}
