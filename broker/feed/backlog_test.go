package feed

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// TestBacklog compares what a queue says waits in it with a model: every message of a topic that it draws from which was not settled.
func TestBacklog(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 9))
	n := start(t, bounds{records: 16, bytes: 1 << 20, span: 64})
	q, f := n.queue("q", "a/#")
	bound := map[string]bool{"a": true}
	topics := map[uint64]string{} // by offset
	settled := map[uint64]bool{}
	var k *taker
	for step := range 300 {
		switch op := rnd.IntN(8); {
		case op < 3:
			name := []string{"a", "b", "c"}[rnd.IntN(3)]
			batch := make([]string, 1+rnd.IntN(30))
			for i := range batch {
				batch[i] = fmt.Sprint(step, ".", i)
			}
			base := n.put("p", name+"/x", batch...)
			for i := range batch {
				topics[base+uint64(i)] = name
			}
		case op < 6 && k != nil:
			for _, it := range k.Take(nil, 1+rnd.IntN(20), 1<<20) {
				if rnd.IntN(4) > 0 {
					k.settle(it)
					settled[it.Offset] = true
				}
			}
		case op == 6 && k != nil:
			k.Leave()
			k = nil
		case op == 6:
			k = n.join(f)
		case op == 7 && step%10 == 0:
			name := []string{"b", "c"}[rnd.IntN(2)]
			if !bound[name] {
				n.bind(q, f, name+"/#")
				bound[name] = true
			}
		}
		want := int64(0)
		for off, name := range topics {
			if bound[name] && !settled[off] {
				want++
			}
		}
		var got Backlog
		await(t, fmt.Sprintf("step %d: a backlog of %d, bound to %v", step, want, bound), func() bool {
			var err error
			if got, err = f.Backlog(); err != nil {
				t.Fatal(err)
			}
			return got.Messages == want
		})
		if (want == 0) != got.Oldest.IsZero() || (want == 0) != (got.Bytes == 0) {
			t.Fatalf("step %d: %+v", step, got)
		}
	}
}

// TestBacklogOfWhatRests counts once, and then only what is new.
func TestBacklogOfWhatRests(t *testing.T) {
	n := start(t, bounds{})
	_, f := n.queue("q", "a")
	for i := range 50 {
		n.put("p", "a", "1", "2")
		n.put("p", "b", "1")
		b, err := f.Backlog()
		if err != nil || b.Messages != int64(2*i+2) {
			t.Fatalf("%+v, %v; want %d", b, err, 2*i+2)
		}
		if f.lastCount().end != n.store.Committed() || f.lastCount().sum.Records != uint64(b.Messages) {
			t.Fatalf("%+v is remembered", f.lastCount().sum)
		}
	}
}

// TestBacklogWhileDispatching: a message that a feed has been handed, and whose group the dispatcher is not done with, counts once.
// When it is settled by then, the cursor is behind it.
func TestBacklogWhileDispatching(t *testing.T) {
	n := start(t, defaultBounds)
	f, other := n.feed("s/x", Options{Durable: true, Start: Now}, "a"), n.feed("s/y", Options{Start: Now}, "b")
	k := n.join(f)
	n.join(other)
	other.mu.Lock() // the dispatcher comes to it after f, and waits
	n.putBoth("p", "a", "b")
	items := k.take(1)
	b, err := f.Backlog()
	k.settle(items...)
	f.mu.Lock()
	at, _ := f.progress()
	f.mu.Unlock()
	other.mu.Unlock()
	if err != nil || b.Messages != 1 {
		t.Errorf("%d messages, %v; want 1", b.Messages, err)
	}
	if at <= items[0].Offset {
		t.Errorf("the cursor is at %d, and %d is settled", at, items[0].Offset)
	}
}

// TestProtectMovesOn: a queue that nobody reads protects what there is for it, and not all that came since somebody read it.
func TestProtectMovesOn(t *testing.T) {
	n, d := startDisk(t, defaultBounds)
	q, f := n.queue("q", "rare")
	n.queue("never-used")
	n.put("p", "often", upTo(1, 20)...)
	if low := n.hub.Protect(); low != n.store.Committed() {
		t.Fatalf("offset %d is held, and there is nothing for anybody", low)
	}
	base := n.put("p", "rare", "x")
	n.put("p", "often", upTo(1, 20)...)
	if low := n.hub.Protect(); low != base {
		t.Fatalf("offset %d is held, want %d", low, base)
	}
	n.bind(q, f, "often") // goes back, and finds all
	if low := n.hub.Protect(); low != 1 {
		t.Fatalf("offset %d is held, want 1", low)
	}
	if b, err := f.Backlog(); err != nil || b.Messages != 41 {
		t.Fatalf("%+v, %v", b, err)
	}
	n = n.restart(d)
	_, f = n.queue("q")
	if low := n.hub.Protect(); low != 1 {
		t.Fatalf("after a restart offset %d is held, want 1", low)
	}
	k := n.join(f)
	k.settle(k.take(41)...)
	k.Leave()
	if low := n.hub.Protect(); low != n.store.Committed() {
		t.Fatalf("offset %d is held, and all is settled", low)
	}
}

// limited is a node whose topics have limits by the first word of their names.
func limited(t *testing.T) *node {
	policies := map[string]*store.TopicPolicy{
		"full": {MaxMessages: 5, Unprotected: true}, "kept": {MaxMessages: 5}, "last": {Last: true}, "other": {MaxMessages: 1, Unprotected: true},
	}
	return open(t, nil, t.TempDir(), bounds{records: 8, bytes: 1 << 20, span: 64}, func(o *store.Options) {
		o.Topic = func(name string) *store.TopicPolicy {
			word, _, _ := strings.Cut(name, "/")
			return policies[word]
		}
	}).run()
}

// TestBacklogOfLimitedTopics compares what is counted on with what a fresh count says, while messages come, are settled and dropped.
func TestBacklogOfLimitedTopics(t *testing.T) {
	n := limited(t)
	rnd := rand.New(rand.NewPCG(3, 1))
	q, f := n.queue("q", "full/#")
	for _, filter := range []string{"kept/#", "last/#", "free"} {
		n.bind(q, f, filter)
	}
	k := n.join(f)
	publish := func(topic string) {
		msg := store.Message{Flags: record.Flags(0).WithQoS(1)}
		id, err := n.store.TopicID(topic)
		if err != nil {
			t.Fatal(err)
		}
		if l := n.store.Limit(id); l != nil {
			if err := l.Admit(len("x")); err != nil {
				return // kept: the queue needs them
			}
			msg.Flags |= store.FlagAdmitted
		}
		n.putMsgs("p", topic, msg, "x")
	}
	for step := range 400 {
		switch op := rnd.IntN(10); {
		case op < 8:
			name := []string{"full", "kept", "last", "other", "free"}[rnd.IntN(5)]
			if name != "free" {
				name = fmt.Sprint(name, "/", rnd.IntN(3))
			}
			publish(name)
		default:
			for _, it := range k.Take(nil, 1+rnd.IntN(6), 1<<20) {
				k.settle(it)
			}
		}
		got, err := f.Backlog()
		if err != nil {
			t.Fatal(err)
		}
		if rnd.IntN(4) > 0 {
			continue // so that a mistake adds up
		}
		f.lastCount().end = 0 // now nothing is remembered
		want, err := f.Backlog()
		if err != nil {
			t.Fatal(err)
		}
		if got.Messages != want.Messages || got.Bytes != want.Bytes || !got.Oldest.Equal(want.Oldest) {
			t.Fatalf("step %d: %+v when counted on, %+v when counted anew", step, got, want)
		}
	}
}

// TestBacklogIsKept: what was counted is not counted again when something is dropped of a topic, wanted or not.
func TestBacklogIsKept(t *testing.T) {
	n := limited(t)
	q, f := n.queue("q", "full/1")
	n.bind(q, f, "free")
	look := func() int64 {
		t.Helper()
		b, err := f.Backlog()
		if err != nil {
			t.Fatal(err)
		}
		return b.Messages
	}
	n.put("p", "free", "x")
	n.put("p", "full/1", upTo(1, 5)...)
	n.put("p", "other/1", "x")
	if got := look(); got != 6 {
		t.Fatalf("%d wait", got)
	}
	f.lastCount().sum.Records += 1000 // whoever counts again will not say this
	drops := n.store.Drops()
	n.put("p", "other/1", "x")
	await(t, "a drop of another topic", func() bool { return n.store.Drops() > drops })
	if got := look(); got != 1006 {
		t.Errorf("%d wait, and 1000 more are remembered, after a drop of another topic", got)
	}
	drops = n.store.Drops()
	n.put("p", "full/1", "6", "7")
	await(t, "two drops", func() bool { return n.store.Drops() > drops+1 })
	if got := look(); got != 1006 {
		t.Errorf("%d wait, and 1000 more are remembered, after a drop of its own", got)
	}
}
