package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
)

// Bucket names one table of durable state. Its number is on the disk: never reuse one.
type Bucket uint8

// The tables of durable state.
const (
	BucketMeta          Bucket = 1  // format version, checkpoint, counters
	BucketTopics        Bucket = 2  // topic number → name
	BucketClients       Bucket = 3  // client number → name
	BucketSessions      Bucket = 4  // client → session
	BucketSubscriptions Bucket = 5  // client, filter → options
	BucketQueues        Bucket = 6  // queue → settings
	BucketBindings      Bucket = 7  // queue, filter → bound from
	BucketCursors       Bucket = 8  // feed → cursor and settled set
	BucketRetained      Bucket = 9  // topic → the retained message
	BucketInflight      Bucket = 10 // client, packet id → state of a QoS 1 or 2 exchange
	BucketWills         Bucket = 11 // client → will
	BucketDelayed       Bucket = 12 // due time, offset → message to publish then
	BucketSegments      Bucket = 13 // segment number → segment.Meta
	BucketDedup         Bucket = 14 // client number → the highest epoch of a producer
	BucketShares        Bucket = 15 // shared subscription group → members
	BucketExclusive     Bucket = 16 // exclusive filter → holder
	BucketUsers         Bucket = 17 // user → password hash and rights set through the admin API
	BucketFloors        Bucket = 18 // topic number → below which offset its messages were dropped, and how many
	BucketTallies       Bucket = 19 // topic number → what a topic with a policy has in segments
	BucketHosts         Bucket = 20 // client number, offset → address it published from, from there on

	bucketEnd = 21
)

var bucketNames = [bucketEnd]string{
	"", "meta", "topics", "clients", "sessions", "subscriptions", "queues", "bindings", "cursors", "retained",
	"inflight", "wills", "delayed", "segments", "dedup", "shares", "exclusive", "users", "floors", "tallies", "hosts",
}

// Buckets returns every table that this build knows.
func Buckets() []Bucket {
	all := make([]Bucket, 0, bucketEnd-1)
	for b := Bucket(1); b < bucketEnd; b++ {
		all = append(all, b)
	}
	return all
}

// String returns the bucket's name, which is also its name in state.db.
func (b Bucket) String() string {
	if b > 0 && b < bucketEnd {
		return bucketNames[b]
	}
	return fmt.Sprintf("bucket-%d", uint8(b))
}

// MutationHeaderSize is the size of a mutation's fixed part.
const MutationHeaderSize = 12

// MaxKey bounds a key. It is bbolt's limit, and no key is empty.
const MaxKey = 32 << 10

// MaxValue bounds a value: a retained message of MQTT's largest size fits.
const MaxValue = MaxSize

const (
	opPut    = 1
	opDelete = 2
)

// Mutation is one change of durable state, as the journal carries it.
type Mutation struct {
	Bucket Bucket
	Key    []byte
	Value  []byte // nil deletes; empty and not nil is a value
}

// Put is the mutation that sets a key.
func Put(b Bucket, key, value []byte) Mutation {
	if value == nil {
		value = []byte{}
	}
	return Mutation{b, key, value}
}

// Delete is the mutation that removes a key.
func Delete(b Bucket, key []byte) Mutation { return Mutation{Bucket: b, Key: key} }

// Check says whether m can be stored.
func (m Mutation) Check() error {
	switch {
	case m.Bucket == 0:
		return fmt.Errorf("%w: mutation of no bucket", ErrMalformed)
	case len(m.Key) == 0 || len(m.Key) > MaxKey:
		return fmt.Errorf("%w: mutation of %v with a key of %d bytes", ErrMalformed, m.Bucket, len(m.Key))
	case len(m.Value) > MaxValue:
		return fmt.Errorf("%w: mutation of %v with a value of %d bytes", ErrMalformed, m.Bucket, len(m.Value))
	}
	return nil
}

// MutationSize returns the bytes that a mutation takes.
func MutationSize(key, value int) int { return MutationHeaderSize + key + value }

// AppendMutation encodes m at the end of dst. It panics on a mutation that Check refuses: what is
// journaled must be replayable.
func AppendMutation(dst []byte, m Mutation) []byte {
	if err := m.Check(); err != nil {
		panic(err)
	}
	at := len(dst)
	dst = slices.Grow(dst, MutationSize(len(m.Key), len(m.Value)))[:at+MutationHeaderSize]
	h := dst[at:]
	h[4], h[5] = byte(m.Bucket), opPut
	if m.Value == nil {
		h[5] = opDelete
	}
	binary.LittleEndian.PutUint16(h[6:], uint16(len(m.Key)))
	binary.LittleEndian.PutUint32(h[8:], uint32(len(m.Value)))
	dst = append(dst, m.Key...)
	dst = append(dst, m.Value...)
	binary.LittleEndian.PutUint32(dst[at:], crc32.Checksum(dst[at+4:], castagnoli))
	return dst
}

// ParseMutation decodes the mutation that b begins with and returns its length. Key and Value alias b.
func ParseMutation(b []byte) (m Mutation, n int, err error) {
	if len(b) < MutationHeaderSize {
		return Mutation{}, 0, ErrShort
	}
	key, value32 := int(binary.LittleEndian.Uint16(b[6:])), binary.LittleEndian.Uint32(b[8:])
	switch {
	case key == 0 && binary.LittleEndian.Uint64(b) == 0:
		return Mutation{}, 0, ErrEmpty
	case key == 0 || key > MaxKey || value32 > MaxValue:
		return Mutation{}, 0, ErrChecksum
	}
	value := int(value32)
	n = MutationSize(key, value)
	if len(b) < n {
		return Mutation{}, 0, ErrShort
	}
	b = b[:n:n]
	if binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) {
		return Mutation{}, 0, ErrChecksum
	}
	end := MutationHeaderSize + key
	m = Mutation{Bucket: Bucket(b[4]), Key: b[MutationHeaderSize:end:end], Value: b[end:]}
	switch {
	case m.Bucket == 0:
		return Mutation{}, 0, ErrMalformed
	case b[5] == opPut:
	case b[5] == opDelete && value == 0:
		m.Value = nil
	default:
		return Mutation{}, 0, ErrMalformed
	}
	return m, n, nil
}
