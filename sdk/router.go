package sdk

import (
	"context"
	"hash/fnv"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Partition is one of the places a topic's messages go to.
type Partition struct {
	Broker string // its address
	Topic  string // as published to
	Index  int    // among the partitions of the topic at this broker
	// Available is false for a broker that failed or was slow a short while ago. There is always one that is true.
	Available bool
}

// WritableQueue is where a partition's messages are written to: a broker, or memory in tests.
type WritableQueue interface {
	// Partition says which one it is.
	Partition() Partition
	// Write returns when the message is safe.
	Write(ctx context.Context, m *EnhancedMessage) (Result, error)
}

// asyncQueue is a WritableQueue that can be told of many messages before it answers.
type asyncQueue interface {
	WriteAsync(ctx context.Context, m *EnhancedMessage, oneway bool, done func(*Promise)) (*Promise, error)
}

// EnhancedMessage is a message with what sending adds to it: its sender never had to set these.
type EnhancedMessage struct {
	*Message
	ID    string    // the MessageId header, the sender's own if it has one; the same for every try
	Epoch uint64    // the Epoch header, unless the sender set it; 0 is none
	Trace string    // the TraceId header, unless the sender set it
	Born  time.Time // the BornTimestamp header, unless the sender set it
}

// Topology knows where the messages to a topic or queue can go. The order of what it returns must not change.
type Topology interface {
	Queues(m *Message) ([]WritableQueue, error)
}

// TopologyFunc is a Topology.
type TopologyFunc func(m *Message) ([]WritableQueue, error)

// Queues calls f.
func (f TopologyFunc) Queues(m *Message) ([]WritableQueue, error) { return f(m) }

// Router chooses the partition for a message. It returns an index into partitions; any other number is an error
// of the Send. A router that also has a method Sticky(*Message) bool says by it that the message must go there
// or nowhere, as order would be lost: it is not sent to another broker then.
type Router interface {
	Route(m *Message, partitions []Partition) int
}

// RouterFunc is a Router.
type RouterFunc func(m *Message, partitions []Partition) int

// Route calls f.
func (f RouterFunc) Route(m *Message, partitions []Partition) int { return f(m, partitions) }

// RoundRobin takes the available partitions in turn.
func RoundRobin() Router { return &roundRobin{} }

type roundRobin struct{ n atomic.Uint64 }

func (r *roundRobin) Route(_ *Message, ps []Partition) int {
	start := int((r.n.Add(1) - 1) % uint64(max(len(ps), 1)))
	for i := range ps {
		if at := (start + i) % len(ps); ps[at].Available {
			return at
		}
	}
	return start
}

// KeyHash sends the messages of one ShardingKey to one partition, available or not, and those without a key in
// turn. Another number of partitions is another partition for most keys: ConsistentHash moves few.
func KeyHash() Router { return &keyHash{} }

type keyHash struct{ rest roundRobin }

func (r *keyHash) Route(m *Message, ps []Partition) int {
	key := shardingKey(m)
	if key == "" {
		return r.rest.Route(m, ps)
	}
	return int(hash(key) % uint64(max(len(ps), 1)))
}

// Sticky is true for messages with a key.
func (r *keyHash) Sticky(m *Message) bool { return shardingKey(m) != "" }

// ConsistentHash is KeyHash on a ring: when a partition is added or taken away, only about its share of the keys moves.
func ConsistentHash() Router { return &consistentHash{} }

type consistentHash struct {
	rest roundRobin
	mu   sync.Mutex
	of   []Partition
	ring ring
}

func (r *consistentHash) Route(m *Message, ps []Partition) int {
	key := shardingKey(m)
	if key == "" || len(ps) == 0 {
		return r.rest.Route(m, ps)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	same := func(a, b Partition) bool { return a.Broker == b.Broker && a.Topic == b.Topic && a.Index == b.Index }
	if !slices.EqualFunc(r.of, ps, same) {
		r.of, r.ring = slices.Clone(ps), nil
		for i, p := range ps {
			r.ring.add(p.Broker+"/"+p.Topic+"/"+strconv.Itoa(p.Index), i)
		}
		r.ring.sort()
	}
	return r.ring.find(key)
}

// Sticky is true for messages with a key.
func (r *consistentHash) Sticky(m *Message) bool { return shardingKey(m) != "" }

func shardingKey(m *Message) string { return m.headers.Get(HeaderShardingKey).String() }

func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	x := h.Sum64()
	x ^= x >> 33 // FNV alone spreads short, similar keys badly over a ring
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// ring is a hash ring; each owner is on it many times.
type ring []struct {
	at    uint64
	owner int
}

const ringPoints = 160

func (r *ring) add(name string, owner int) {
	for i := range ringPoints {
		*r = append(*r, struct {
			at    uint64
			owner int
		}{hash(name + "#" + strconv.Itoa(i)), owner})
	}
}

func (r ring) sort() {
	slices.SortFunc(r, func(a, b struct {
		at    uint64
		owner int
	},
	) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return a.owner - b.owner
	})
}

func (r ring) find(key string) int {
	h := hash(key)
	lo, hi := 0, len(r)
	for lo < hi {
		if mid := (lo + hi) / 2; r[mid].at < h {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return r[lo%len(r)].owner
}

// MemoryQueue is a WritableQueue for tests: it keeps what it is given, or fails.
type MemoryQueue struct {
	At  Partition // what Partition returns
	Err error     // what Write returns, if not nil

	mu       sync.Mutex
	messages []*EnhancedMessage
}

// Partition returns q.At.
func (q *MemoryQueue) Partition() Partition { return q.At }

// Write keeps a copy of the message, or returns q.Err.
func (q *MemoryQueue) Write(_ context.Context, m *EnhancedMessage) (Result, error) {
	if q.Err != nil {
		return Result{}, q.Err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.messages = append(q.messages, &EnhancedMessage{Message: m.Clone(), ID: m.ID, Born: m.Born})
	return Result{MessageID: m.ID, Broker: q.At.Broker, Partition: q.At, Offset: uint64(len(q.messages)), StoreTime: time.Now()}, nil
}

// Messages returns what was written.
func (q *MemoryQueue) Messages() []*EnhancedMessage {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.messages)
}
