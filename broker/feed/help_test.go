package feed

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// node is a store with a hub, running.
type node struct {
	t      testing.TB
	store  *store.Store
	hub    *Hub
	queues *Queues
	change []func(*store.Options)

	stopHub, stopStore context.CancelFunc
	hubDone, storeDone chan error
	over               bool
}

// open opens a store on a disk (nil: in dir on the real one) and a hub with these bounds, and runs neither.
func open(t testing.TB, fs vfs.FS, dir string, max bounds, change ...func(*store.Options)) *node {
	t.Helper()
	n := &node{t: t, change: change}
	o := store.Options{
		Dir: dir, FS: fs, JournalFileBytes: 256 << 10, CheckpointBytes: 512 << 10, SegmentBytes: 64 << 10,
		SharedBelow: 4 << 10, TailBytes: 16 << 10, CacheBytes: 1 << 20, MinFree: 1,
		ProtectTopic: func(topic string) uint64 { return n.hub.ProtectTopic(topic) },
	}
	for _, c := range change {
		c(&o)
	}
	s, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	n.store, n.hub = s, NewHub(s, slog.New(slog.DiscardHandler))
	if max != (bounds{}) {
		n.hub.max = max
	}
	if n.queues, err = OpenQueues(n.hub, true); err != nil {
		t.Fatal(err)
	}
	return n
}

// run runs store and hub until the test ends or stops them.
func (n *node) run() *node {
	n.runStore()
	n.runHub()
	return n
}

func (n *node) runStore() {
	var ctx context.Context
	ctx, n.stopStore = context.WithCancel(context.Background())
	n.storeDone = make(chan error, 1)
	go func() { n.storeDone <- n.store.Run(ctx) }()
}

func (n *node) runHub() {
	var ctx context.Context
	ctx, n.stopHub = context.WithCancel(context.Background())
	n.hubDone = make(chan error, 1)
	go func() { n.hubDone <- n.hub.Run(ctx) }()
	n.t.Cleanup(func() {
		if !n.over {
			n.stop()
		}
	})
}

// start is open and run in a directory of its own.
func start(t testing.TB, max bounds) *node {
	t.Helper()
	return open(t, nil, t.TempDir(), max).run()
}

// end stops hub and store in the broker's order and returns what they say.
func (n *node) end() error {
	n.over = true
	n.stopHub()
	err := <-n.hubDone
	n.stopStore()
	return errors.Join(err, <-n.storeDone, n.store.Close())
}

func (n *node) stop() {
	n.t.Helper()
	if err := n.end(); err != nil {
		n.t.Errorf("stop: %v", err)
	}
}

// put publishes at QoS 1 and waits for the answer.
func (n *node) put(client, topic string, payloads ...string) (base uint64) {
	n.t.Helper()
	return n.putMsgs(client, topic, store.Message{Flags: record.Flags(0).WithQoS(1)}, payloads...)
}

// putMsgs publishes messages like m.
func (n *node) putMsgs(client, topic string, m store.Message, payloads ...string) (base uint64) {
	n.t.Helper()
	var err error
	if m.Client, err = n.store.ClientID(client, false); err != nil {
		n.t.Fatal(err)
	}
	if m.Topic, err = n.store.TopicID(topic); err != nil {
		n.t.Fatal(err)
	}
	var msgs []store.Message
	for _, p := range payloads {
		m.Payload = []byte(p)
		msgs = append(msgs, m)
	}
	done := make(answers, 1)
	if err := n.store.Append(msgs, nil, true, done); err != nil {
		n.t.Fatal(err)
	}
	a := <-done
	if a.err != nil {
		n.t.Fatal(a.err)
	}
	return a.base
}

type answer struct {
	base uint64
	err  error
}

type answers chan answer

func (c answers) Committed(base uint64, err error) { c <- answer{base, err} }

// feed opens a feed and subscribes it to filters from now on.
func (n *node) feed(id string, o Options, filters ...string) *Feed {
	n.t.Helper()
	f, err := n.hub.Open(id, o)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, flt := range filters {
		f.Subscribe(Filter{Filter: flt, From: Now, QoS: 2})
	}
	return f
}

// await waits for a condition that some other goroutine will bring about.
func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// taker is a member that takes when it is told to. It is its own Waker.
type taker struct {
	t testing.TB
	*Member
	awake chan struct{}
}

func (n *node) join(f *Feed) *taker {
	k := &taker{t: n.t, awake: make(chan struct{}, 1)}
	k.Member = f.Join(k, 2)
	return k
}

// Wake implements Waker.
func (k *taker) Wake() {
	select {
	case k.awake <- struct{}{}:
	default:
	}
}

// take takes n items, waiting for them.
func (k *taker) take(n int) []Item {
	k.t.Helper()
	var items []Item
	for timeout := time.After(patience); ; {
		if items = k.Take(items, n-len(items), 1<<20); len(items) == n {
			return items
		}
		select {
		case <-k.awake:
		case <-timeout:
			k.t.Fatalf("%d items came of %d: %q", len(items), n, texts(items))
		}
	}
}

// want takes items with these payloads, in this order, and settles them.
func (k *taker) want(payloads ...string) {
	k.t.Helper()
	items := k.take(len(payloads))
	for i, it := range items {
		if string(it.Payload) != payloads[i] {
			k.t.Fatalf("got %q, want %q", texts(items), payloads)
		}
	}
	k.settle(items...)
}

func (k *taker) settle(items ...Item) {
	for _, it := range items {
		k.Settle(it.Seq)
	}
}

// idle fails if there is anything to take once the feed has seen all that is committed.
func (k *taker) idle() {
	k.t.Helper()
	f := k.feed
	await(k.t, "the feed to be live", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.live && f.hub.pos.Load() >= f.hub.log.Committed()
	})
	if items := k.Take(nil, 10, 1<<20); len(items) > 0 {
		k.t.Fatalf("got %q, want nothing", texts(items))
	}
}

func texts(items []Item) []string {
	var s []string
	for _, it := range items {
		s = append(s, string(it.Payload))
	}
	return s
}

// save saves a feed's cursor and waits until it is durable.
func (n *node) save(f *Feed) {
	n.t.Helper()
	done := make(answers, 1)
	if err := n.hub.Save(nil, done, f); err != nil {
		n.t.Fatal(err)
	}
	if a := <-done; a.err != nil {
		n.t.Fatal(a.err)
	}
}

// putBoth stores a message of each topic, in one group.
func (n *node) putBoth(client string, topics ...string) {
	n.t.Helper()
	var msgs []store.Message
	for _, name := range topics {
		id, err := n.store.TopicID(name)
		if err != nil {
			n.t.Fatal(err)
		}
		from, err := n.store.ClientID(client, false)
		if err != nil {
			n.t.Fatal(err)
		}
		msgs = append(msgs, store.Message{Topic: id, Client: from, Flags: record.Flags(0).WithQoS(1), Payload: []byte(name)})
	}
	done := make(answers, 1)
	if err := n.store.Append(msgs, nil, true, done); err != nil {
		n.t.Fatal(err)
	}
	if a := <-done; a.err != nil {
		n.t.Fatal(a.err)
	}
}

// get returns a value of the state.
func (n *node) get(b record.Bucket, key string) []byte {
	n.t.Helper()
	v, _, err := n.store.Get(b, []byte(key))
	if err != nil {
		n.t.Fatal(err)
	}
	return v
}
