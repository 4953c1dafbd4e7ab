package feed

import (
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// queue returns a queue.
func (n *node) queue(name string, bindings ...string) (*Queues, *Feed) {
	n.t.Helper()
	q := n.queues
	f, err := q.Use(name)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, b := range bindings {
		n.bind(q, f, b)
	}
	return q, f
}

func (n *node) bind(q *Queues, f *Feed, filter string) {
	n.t.Helper()
	done := make(answers, 1)
	if err := q.Bind(f, filter, done); err != nil {
		n.t.Fatal(err)
	}
	if a := <-done; a.err != nil {
		n.t.Fatal(a.err)
	}
}

// restart opens what a clean stop left.
func (n *node) restart(fs *vfstest.Disk) *node {
	n.t.Helper()
	n.stop()
	return open(n.t, fs, "data", n.hub.max, n.change...).run()
}

func upTo(from, to int) []string {
	var s []string
	for i := from; i <= to; i++ {
		s = append(s, strconv.Itoa(i))
	}
	return s
}

// startDisk is start on a disk that outlives the node.
func startDisk(t *testing.T, max bounds) (*node, *vfstest.Disk) {
	t.Helper()
	d := newDisk(t)
	return open(t, d, "data", max).run(), d
}

// newDisk returns a disk that lasts as long as the test.
func newDisk(t *testing.T) *vfstest.Disk {
	t.Helper()
	d := vfstest.NewDisk(vfstest.Never)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestSlowMemberFallsBehind: the window stays bounded, and everything comes in order.
func TestSlowMemberFallsBehind(t *testing.T) {
	n := start(t, bounds{records: 10, bytes: 1 << 20, span: 40})
	f := n.feed("s/x", Options{Durable: true, Start: Now}, "a")
	other := n.feed("s/y", Options{Start: Now}, "a")
	slow, quick := n.join(f), n.join(other)
	const all = 500
	for i := 1; i <= all; i += 10 {
		n.put("p", "a", upTo(i, i+9)...)
		quick.want(upTo(i, i+9)...)
	}
	got := 0
	for got < all {
		f.mu.Lock()
		if f.held > 10 || f.win.len() > 40 {
			t.Errorf("%d records are held in %d slots", f.held, f.win.len())
		}
		f.mu.Unlock()
		items := slow.take(min(7, all-got))
		for i, it := range items {
			if want := strconv.Itoa(got + i + 1); string(it.Payload) != want {
				t.Fatalf("got %q, want %s first", texts(items), want)
			}
		}
		got += len(items)
		slow.settle(items...)
	}
	slow.idle()
	n.put("p", "a", "live")
	slow.want("live")
}

// TestManyHoldTheirs: the window grows with the members, so that those that settle nothing before they have many do not wait
// for each other.
func TestManyHoldTheirs(t *testing.T) {
	n := start(t, bounds{records: 10, bytes: 1 << 20, span: 100})
	_, f := n.queue("q", "a")
	var takers []*taker
	for range 4 {
		takers = append(takers, n.join(f))
	}
	for i := range 100 {
		n.put(fmt.Sprint("p", i%50), "a", "x")
	}
	got := 0
	await(t, "40 items to be taken and not settled", func() bool {
		for _, k := range takers {
			got += len(k.Take(nil, 100, 1<<20))
		}
		return got >= 40
	})
}

func TestMaxLag(t *testing.T) {
	t.Run("QoS 0 is moved forward", func(t *testing.T) {
		n := start(t, bounds{records: 4, bytes: 1 << 20, span: 40})
		f, err := n.hub.Open("s/x", Options{Start: Now, MaxLag: Lag{Bytes: 2000}})
		if err != nil {
			t.Fatal(err)
		}
		f.Subscribe(Filter{Filter: "a", From: Now})
		k := n.join(f)
		n.put("p", "a", upTo(1, 200)...)
		k.want(upTo(1, 4)...)
		await(t, "the feed to have given up", func() bool { return f.Stats().Skipped > 0 })
		for k.Take(nil, 100, 1<<20) != nil {
		}
		k.idle()
		n.put("p", "a", "live")
		k.want("live")
	})
	t.Run("QoS 1 is told, once", func(t *testing.T) {
		n := start(t, bounds{records: 4, bytes: 1 << 20, span: 40})
		told := make(chan struct{}, 2)
		f, err := n.hub.Open("s/x", Options{Start: Now, MaxLag: Lag{Bytes: 2000}, Overrun: func() { told <- struct{}{} }})
		if err != nil {
			t.Fatal(err)
		}
		f.Subscribe(Filter{Filter: "a", From: Now, QoS: 1})
		k := n.join(f)
		n.put("p", "a", upTo(1, 200)...)
		k.want("1", "2")
		<-told
		k.want("3", "4")
		if len(told) > 0 {
			t.Error("told twice")
		}
	})
	t.Run("by time", func(t *testing.T) {
		n := start(t, bounds{records: 4, bytes: 1 << 20, span: 40})
		f, err := n.hub.Open("s/x", Options{Start: Now, MaxLag: Lag{Time: time.Nanosecond}})
		if err != nil {
			t.Fatal(err)
		}
		f.Subscribe(Filter{Filter: "a", From: Now})
		k := n.join(f)
		n.put("p", "a", upTo(1, 20)...)
		k.want("1", "2", "3", "4")
		await(t, "the feed to have given up", func() bool { return f.Stats().Skipped > 0 })
	})
}

// TestMatch: under which subscriptions a message is delivered, live and from the log alike.
func TestMatch(t *testing.T) {
	for _, live := range []bool{true, false} {
		t.Run(fmt.Sprint("live=", live), func(t *testing.T) {
			n := start(t, bounds{})
			me, err := n.store.ClientID("me", false)
			if err != nil {
				t.Fatal(err)
			}
			f, err := n.hub.Open("s/me", Options{Start: Now, Local: me})
			if err != nil {
				t.Fatal(err)
			}
			f.Subscribe(Filter{Filter: "own/#", From: Now, QoS: 1, ID: 1, NoLocal: true})
			f.Subscribe(Filter{Filter: "own/plain", From: Now, QoS: 0, ID: 2})
			f.Subscribe(Filter{Filter: "x/+", From: Now, QoS: 0, ID: 3})
			f.Subscribe(Filter{Filter: "x/1", From: Now, QoS: 2, ID: 4, RetainAsPublished: true})
			var k *taker
			if live {
				k = n.join(f)
			}
			n.put("me", "own/a", "suppressed")
			n.put("me", "own/plain", "by plain alone")
			n.put("you", "own/plain", "by both")
			n.put("you", "x/1", "at the higher QoS")
			n.put("you", "x/2", "at QoS 0")
			if !live {
				k = n.join(f)
			}
			items := k.take(4)
			for i, want := range []struct {
				payload string
				qos     byte
				ids     []uint32
				rap     bool
			}{
				{"by plain alone", 0, []uint32{2}, false},
				{"by both", 1, []uint32{1, 2}, false},
				{"at the higher QoS", 1, []uint32{3, 4}, true},
				{"at QoS 0", 0, []uint32{3}, false},
			} {
				it := items[i]
				ids := slices.Sorted(slices.Values(it.Match.IDs))
				if string(it.Payload) != want.payload || it.QoS != want.qos || !slices.Equal(ids, want.ids) || it.Match.RetainAsPublished != want.rap {
					t.Errorf("got %q at QoS %d for %v, %+v; want %+v", it.Payload, it.QoS, ids, it.Match, want)
				}
			}
			k.idle()
		})
	}
}

// TestRoutes: whoever subscribes to or leaves a topic that has been published to is in, or out, from the next message on.
func TestRoutes(t *testing.T) {
	n := start(t, bounds{})
	n.put("p", "a/1", "0")
	n.put("p", "a/2", "0")
	x := n.feed("s/x", Options{Start: Now}, "a/1")
	k := n.join(x)
	n.put("p", "a/1", "1")
	k.want("1")
	n.put("p", "a/2", "no")
	x.Subscribe(Filter{Filter: "a/+", From: Now, QoS: 1})
	n.put("p", "a/2", "2")
	n.put("p", "a/3", "3")
	k.want("2", "3")
	x.Unsubscribe("a/1")
	n.put("p", "a/1", "4")
	k.want("4")
	y := n.feed("s/y", Options{Start: Now}, "a/4", "a/1")
	ky := n.join(y)
	n.put("p", "a/4", "5")
	ky.want("5")
	k.want("5")
	x.Unsubscribe("a/+")
	n.put("p", "a/4", "6")
	ky.want("6")
	k.idle()
	y.Close()
	n.put("p", "a/4", "7")
	if items := ky.Take(nil, 1, 1); len(items) > 0 {
		t.Errorf("a closed feed gave %q", texts(items))
	}
	n.hub.mu.Lock()
	defer n.hub.mu.Unlock()
	if n.hub.index.Len() != 0 {
		t.Errorf("%d filters are left in the index", n.hub.index.Len())
	}
}

func TestUnsubscribe(t *testing.T) {
	n := start(t, bounds{})
	f := n.feed("s/x", Options{Durable: true, Start: Now}, "a", "b", "+")
	k := n.join(f)
	n.put("p", "a", "a1")
	n.put("p", "b", "b1")
	n.put("p", "a", "a2")
	n.put("p", "b", "b2")
	items := k.take(2)
	f.Unsubscribe("+")
	if f.Unsubscribe("b"); f.Unsubscribe("b") {
		t.Error("a filter was removed twice")
	}
	k.settle(items[1]) // it was on its way already
	k.want("a2")
	k.idle()
	k.settle(items[0])
	f.mu.Lock()
	at, done := f.progress()
	f.mu.Unlock()
	if at != n.store.Committed() || len(done) > 0 {
		t.Errorf("cursor at %d, %v done; want %d", at, done, n.store.Committed())
	}
}

// TestQoS0 : such messages are settled when they are taken, in a queue as in a session.
func TestQoS0(t *testing.T) {
	n := start(t, bounds{})
	_, f := n.queue("q", "a")
	k := n.join(f)
	n.putMsgs("p", "a", store.Message{}, "0")
	n.put("p", "a", "1")
	items := k.take(2)
	if items[0].QoS != 0 || items[1].QoS != 1 {
		t.Errorf("QoS %d and %d", items[0].QoS, items[1].QoS)
	}
	k.Leave()
	k = n.join(f)
	k.want("1")
	k.idle()
	k.SetQoS(0)
	n.put("p", "a", "2")
	if items := k.take(1); items[0].QoS != 0 {
		t.Errorf("QoS %d to a member at 0", items[0].QoS)
	}
	k.Leave()
	k = n.join(f)
	k.idle()
}

func TestExpiry(t *testing.T) {
	for _, live := range []bool{true, false} {
		n := start(t, bounds{})
		f := n.feed("s/x", Options{Durable: true, Start: Now}, "a")
		var k *taker
		if live {
			k = n.join(f)
		}
		gone := store.Message{Flags: record.FlagExpiry}
		n.putMsgs("p", "a", gone, "gone")
		later := store.Message{Flags: record.FlagExpiry, Expiry: 3600}
		n.putMsgs("p", "a", later, "here")
		n.putMsgs("p", "a", gone, "gone")
		if !live {
			k = n.join(f)
		}
		k.want("here")
		k.idle()
		if s := f.Stats(); s.Expired != 2 {
			t.Errorf("live=%v: %d expired, want 2", live, s.Expired)
		}
		k.Leave()
		if low := n.hub.Protect(); low != n.store.Committed() {
			t.Errorf("live=%v: offset %d is still held", live, low)
		}
	}
}

// TestReadErrorPasses: a feed whose reading failed tries again by itself.
func TestReadErrorPasses(t *testing.T) {
	n, d := startDisk(t, bounds{records: 4, bytes: 1 << 20, span: 40})
	f := n.feed("s/x", Options{Durable: true, Start: Now}, "a")
	long := make([]byte, 8<<10)
	for range 20 {
		n.put("p", "a", string(long))
	}
	await(t, "the records to be on disk alone", func() bool { return n.store.Stats().UnflushedBytes == 0 })
	end := d.Inject(vfstest.On(vfstest.Open, ".seg", syscall.EMFILE))
	k := n.join(f)
	f.mu.Lock()
	reading := f.reading
	f.mu.Unlock()
	if !reading {
		t.Fatal("the feed does not read")
	}
	await(t, "a read to have failed", func() bool { return d.Count(vfstest.Open) > 0 })
	end()
	k.settle(k.take(4)...)
	k.settle(k.take(4)...)
}

// TestProtect: the lowest offset that a durable feed needs is protected.
func TestProtect(t *testing.T) {
	n := start(t, bounds{})
	base := n.put("p", "a", "1", "2", "3")
	_, f := n.queue("q", "a")
	if low := n.hub.Protect(); low > base {
		t.Errorf("%d is protected, %d is not consumed", low, base)
	}
	k := n.join(f)
	items := k.take(3)
	k.settle(items[0], items[2])
	if low := n.hub.Protect(); low != base+1 {
		t.Errorf("%d is protected, want %d", low, base+1)
	}
	k.settle(items[1])
	if low := n.hub.Protect(); low != n.store.Committed() {
		t.Errorf("%d is protected, want %d", low, n.store.Committed())
	}
}

// TestQueueAgain: a queue that is created after one of its name was deleted begins at the beginning, also while the old
// one's end is on its way to the disk.
func TestQueueAgain(t *testing.T) {
	n := start(t, bounds{})
	q, f := n.queue("q", "a")
	n.put("p", "$queue/q", "1", "2")
	k := n.join(f)
	k.want("1", "2")
	n.save(f)
	deleted := make(chan error, 1)
	go func() { deleted <- q.Delete("q") }()
	await(t, "the queue to be gone", func() bool { _, err := q.Find("q"); return err != nil })
	_, f = n.queue("q")
	n.join(f).want("1", "2")
	if err := <-deleted; err != nil {
		t.Fatal(err)
	}
}

// TestShareAgain: the cursor of a shared subscription that ends is gone before the next one's is saved.
func TestShareAgain(t *testing.T) {
	n := start(t, bounds{})
	s := NewShares(n.hub)
	f, err := s.Hold("g", "a", true, false)
	if err != nil {
		t.Fatal(err)
	}
	n.save(f)
	if err := s.Drop(f); err != nil {
		t.Fatal(err)
	}
	again, err := s.Hold("g", "a", true, false)
	if err != nil || again == f {
		t.Fatal(again == f, err)
	}
	n.save(again)
	if _, ok, err := n.store.Get(record.BucketCursors, CursorKey(again.ID())); !ok || err != nil {
		t.Errorf("the cursor is not there: %v", err)
	}
	if err := s.Drop(again); err != nil {
		t.Fatal(err)
	}
	n.put("p", "x", "a commit")
	if _, ok, _ := n.store.Get(record.BucketCursors, CursorKey(again.ID())); ok {
		t.Error("the cursor is still there")
	}
}

// TestAsIfSettled: a cursor that is made for an append changes nothing before the append has been made.
func TestAsIfSettled(t *testing.T) {
	n := start(t, bounds{})
	_, f := n.queue("q", "a")
	n.put("p", "a", "1", "2", "3")
	k := n.join(f)
	items := k.take(3)
	k.settle(items[1])
	k.Leave()
	k = n.join(f)
	items = k.take(2)
	f.mu.Lock()
	before, past := *f.win.at(items[0].Seq), fmt.Sprint(f.past)
	f.asIfSettled([]uint64{items[0].Seq, items[1].Seq}, sent)
	if after := *f.win.at(items[0].Seq); after.state != before.state || fmt.Sprint(f.past) != past || f.held != 2 {
		t.Errorf("state %v, past %v, %d held; was %v, %v, 2", after.state, f.past, f.held, before.state, past)
	}
	f.mu.Unlock()
	k.Leave() // the append has failed
	n.join(f).want("1", "3")
}

// TestCopies: a few records of a large group do not keep it in memory for a member that does not take them.
func TestCopies(t *testing.T) {
	n := start(t, bounds{})
	f := n.feed("s/x", Options{Start: Now}, "rare")
	k := n.join(f)
	f.mu.Lock()
	defer f.mu.Unlock()
	g := &store.Group{Entries: make([]store.Entry, 1)}
	if f.copies(g, []ref{{0, nil}}, 1<<20) != nil {
		t.Error("a member that keeps up has its records copied")
	}
	f.waiting = keepsUp
	if f.copies(g, []ref{{0, nil}}, 1<<20) == nil {
		t.Error("a member that does not keep up keeps a whole group for one record")
	}
	f.waiting = 0
	_ = k
}
