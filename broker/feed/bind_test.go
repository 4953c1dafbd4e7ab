package feed

import (
	"fmt"
	"slices"
	"testing"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// swap binds a queue of a/1 to a filter that has the same messages, and more, and unbinds a/1.
func swap(n *node, q *Queues, f *Feed) {
	n.t.Helper()
	n.bind(q, f, "+/1")
	if ok, err := q.Unbind(f, "a/1", nil); !ok || err != nil {
		n.t.Fatal(ok, err)
	}
}

// TestBindWhileInFlight: a queue is bound to more topics while a consumer has messages that it has not settled.
func TestBindWhileInFlight(t *testing.T) {
	for _, tc := range []struct {
		name string
		then func(n *node, d *vfstest.Disk, q *Queues, f *Feed, holder *taker, items []Item)
	}{
		{"the consumer settles them", func(n *node, _ *vfstest.Disk, _ *Queues, f *Feed, k *taker, items []Item) {
			k.settle(items...)
			k.want("b1", "b2")
			k.idle()
		}},
		{"the new filter matches them too", func(n *node, _ *vfstest.Disk, q *Queues, f *Feed, k *taker, items []Item) {
			n.bind(q, f, "a/#")
			k.want("b1", "b2")
			k.idle()
			k.settle(items...)
			k.idle()
		}},
		{"it goes before the walk begins", func(n *node, _ *vfstest.Disk, _ *Queues, f *Feed, k *taker, items []Item) {
			k.Leave()
			k = n.join(f)
			k.want("a2", "b1", "a3", "b2")
			k.idle()
		}},
		{"it goes after the walk has passed them", func(n *node, _ *vfstest.Disk, _ *Queues, f *Feed, k *taker, items []Item) {
			k.want("b1", "b2")
			k.idle()
			k.Leave()
			k = n.join(f)
			k.want("a2", "a3")
			k.idle()
		}},
		{"it goes and another is there", func(n *node, _ *vfstest.Disk, _ *Queues, f *Feed, k *taker, items []Item) {
			k.want("b1", "b2")
			other := n.join(f)
			k.Leave()
			other.want("a2", "a3")
			other.idle()
			n.put("p", "a/1", "a4")
			other.want("a4")
		}},
		{"it goes while the walk is held up, and another is there", func(n *node, _ *vfstest.Disk, q *Queues, f *Feed, k *taker, items []Item) {
			other := n.join(f)
			n.bind(q, f, "c")
			k.Leave()
			other.want("a2", "a3", "b1", "b2") // in order of each topic; walking back is not arrival order
			other.idle()
		}},
		{"a clean restart", func(n *node, d *vfstest.Disk, _ *Queues, _ *Feed, k *taker, items []Item) {
			k.want("b1")
			k.Leave()
			n = n.restart(d)
			_, f := n.queue("q")
			k = n.join(f)
			k.want("a2", "a3", "b2")
			k.idle()
		}},
		{"a restart after the walk", func(n *node, d *vfstest.Disk, _ *Queues, _ *Feed, k *taker, items []Item) {
			k.want("b1", "b2")
			k.settle(items[1])
			k.Leave()
			n = n.restart(d)
			_, f := n.queue("q")
			k = n.join(f)
			k.want("a2")
			k.idle()
		}},
		{"a third filter while still walking", func(n *node, d *vfstest.Disk, q *Queues, f *Feed, k *taker, items []Item) {
			k.want("b1")
			n.bind(q, f, "+/1")
			k.want("b2")
			k.settle(items[1])
			k.Leave()
			n = n.restart(d)
			_, f = n.queue("q")
			k = n.join(f)
			k.want("a2")
			k.idle()
		}},
		{"a wider filter takes the place of the one that chose them", func(n *node, d *vfstest.Disk, q *Queues, f *Feed, k *taker, items []Item) {
			swap(n, q, f)
			k.want("b1", "b2")
			k.idle()
			k.settle(items[0])
			k.Leave()
			k = n.join(f)
			k.want("a3") // and not a1 and a2, which are done with
			k.idle()
			n.put("p", "a/1", "a4")
			k.want("a4")
		}},
		{"a wider filter takes its place, and a restart", func(n *node, d *vfstest.Disk, q *Queues, f *Feed, k *taker, items []Item) {
			k.settle(items[0])
			k.Leave()
			swap(n, q, f)
			n = n.restart(d)
			_, f = n.queue("q")
			k = n.join(f)
			k.want("b1", "a3", "b2")
			k.idle()
			n.put("p", "a/1", "a4")
			k.want("a4")
			k.idle()
			k.Leave()
			n = n.restart(d) // what the walk needed is gone with it
			q, f = n.queue("q")
			if b := n.get(record.BucketBindings, "q\x00a/1"); b != nil || len(f.ghosts) > 0 {
				n.t.Errorf("of the filter that was removed is left: % x, %d", b, len(f.ghosts))
			}
			n.put("p", "a/1", "a5")
			n.bind(q, f, "c")
			n.join(f).want("a5")
		}},
		{"a wider filter is bound after it was removed", func(n *node, d *vfstest.Disk, q *Queues, f *Feed, k *taker, items []Item) {
			k.Leave()
			if ok, err := q.Unbind(f, "a/1", nil); !ok || err != nil {
				n.t.Fatal(ok, err)
			}
			n.bind(q, f, "+/1")
			k = n.join(f)
			k.want("a1", "a2", "b1", "a3", "b2") // it begins at the beginning, and what was dropped is not lost to it
			k.idle()
		}},
		{"the filter that chose them is removed", func(n *node, d *vfstest.Disk, q *Queues, f *Feed, k *taker, items []Item) {
			if ok, err := q.Unbind(f, "a/1", nil); !ok || err != nil {
				n.t.Fatal(ok, err)
			}
			k.want("b1", "b2")
			k.idle()
			k.Leave()
			k = n.join(f)
			k.idle()
			if low := n.hub.Protect(); low != n.store.Committed() {
				n.t.Errorf("offset %d is still held, %d is the end", low, n.store.Committed())
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n, d := startDisk(t, bounds{})
			n.put("p", "a/1", "a1")
			n.put("p", "a/1", "a2")
			n.put("p", "b/1", "b1")
			n.put("p", "a/1", "a3")
			n.put("p", "b/1", "b2")
			q, f := n.queue("q", "a/1")
			k := n.join(f)
			k.want("a1")
			items := k.take(2)
			k.idle()
			n.bind(q, f, "b/+")
			tc.then(n, d, q, f, k, items)
		})
	}
}

// TestSettledOutOfOrder: what was settled ahead of others does not come again, nor is anything else left out.
func TestSettledOutOfOrder(t *testing.T) {
	for _, tc := range []struct {
		name string
		then func(n *node, d *vfstest.Disk, q *Queues, f *Feed)
		want []string
	}{
		{"leave", func(*node, *vfstest.Disk, *Queues, *Feed) {}, []string{"1", "4"}},
		{"a new filter matches between them", func(n *node, _ *vfstest.Disk, q *Queues, f *Feed) { n.bind(q, f, "b") }, []string{"b0", "1", "b1", "b2", "4"}},
		{"a new filter matches them too", func(n *node, _ *vfstest.Disk, q *Queues, f *Feed) { n.bind(q, f, "#") }, []string{"b0", "1", "b1", "b2", "4"}},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart=%v", tc.name, restart), func(t *testing.T) {
				t.Parallel()
				n, d := startDisk(t, bounds{})
				n.put("p", "b", "b0")
				n.put("p", "a", "1", "2")
				n.put("p", "b", "b1")
				n.put("p", "a", "3")
				n.put("p", "b", "b2")
				n.put("p", "a", "4")
				q, f := n.queue("q", "a")
				k := n.join(f)
				items := k.take(4)
				k.settle(items[2], items[1])
				k.Leave()
				tc.then(n, d, q, f)
				if restart {
					n = n.restart(d)
					_, f = n.queue("q")
				}
				// Half of it now, the rest after another rest.
				k = n.join(f)
				items = k.take(len(tc.want))
				if got := texts(items); !slices.Equal(got, tc.want) {
					t.Fatalf("got %q, want %q", got, tc.want)
				}
				k.idle()
				for i := len(items) - 1; i > 0; i -= 2 {
					k.settle(items[i])
				}
				k.Leave()
				if restart {
					n = n.restart(d)
					_, f = n.queue("q")
				}
				k = n.join(f)
				var rest []string
				for i, it := range items {
					if i == 0 || i%2 != (len(items)-1)%2 {
						rest = append(rest, string(it.Payload))
					}
				}
				k.want(rest...)
				k.idle()
			})
		}
	}
}

// TestWalkAheadOfDispatcher: a commit can be read before it is dispatched, so a feed may be further than the dispatcher.
func TestWalkAheadOfDispatcher(t *testing.T) {
	n := open(t, nil, t.TempDir(), bounds{})
	n.runStore()
	n.put("p", "a", "1", "2", "3", "4")
	_, f := n.queue("q", "a")
	k := n.join(f)
	items := k.take(4)
	k.settle(items[1], items[2])
	k.Leave()
	k = n.join(f)
	n.runHub()
	k.want("1", "4")
	k.idle()
	n.put("p", "a", "5")
	k.want("5")
	k.idle()
}

// TestBoundAndConsumed: what a queue has consumed does not come again because another of its filters matches it as well.
func TestBoundAndConsumed(t *testing.T) {
	n := start(t, bounds{})
	n.put("p", "a/1", "a1", "a2")
	n.put("p", "b/1", "b1")
	q, f := n.queue("q", "a/#")
	k := n.join(f)
	k.want("a1", "a2")
	n.bind(q, f, "+/1")
	k.want("b1")
	k.idle()
	n.bind(q, f, "#")
	k.idle()
	n.put("p", "a/1", "a3")
	k.want("a3")
	k.idle()
}

// TestPeekWhileWalkingBack: what a consumer holds up is shown once, and what waits behind it too.
func TestPeekWhileWalkingBack(t *testing.T) {
	n := start(t, defaultBounds)
	n.put("p", "a", "a1", "a2", "a3")
	n.put("p", "b", "b1")
	q, f := n.queue("q", "a")
	k := n.join(f)
	k.take(1)
	n.bind(q, f, "b")
	recs, err := q.Peek("q", 10)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range recs {
		got = append(got, string(r.Payload))
	}
	if want := []string{"a1", "a2", "a3", "b1"}; !slices.Equal(got, want) {
		t.Errorf("peek shows %q, want %q", got, want)
	}
}
