package feed

import (
	"testing"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// A dispatcher that starts late, on a busy machine, misses nothing of what has left the memory meanwhile: neither a feed that is live does,
// nor one that is bound to more afterwards.
func TestDispatcherStartsLate(t *testing.T) {
	n := open(t, nil, t.TempDir(), defaultBounds, func(o *store.Options) { o.TailBytes, o.CheckpointBytes = 1, 1 })
	n.runStore()
	s := n.join(n.feed("s", Options{}, "t/#"))
	q, err := n.queues.Create("q")
	if err != nil {
		t.Fatal(err)
	}
	k := n.join(q)
	await(t, "the queue to be live", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.live
	})
	n.put("p", "t/x", "1")
	n.put("p", "u", "2")
	await(t, "the groups to be out of memory", func() bool { return n.store.Stats().UnflushedBytes == 0 })
	if err := n.queues.Bind(q, "t/#", nil); err != nil {
		t.Fatal(err)
	}
	n.runHub()
	n.put("p", "t/x", "3")
	s.want("1", "3")
	k.want("1", "3")
}

// What is stored for nobody goes to those who are there when it comes, also if they are slow, and to nobody who comes later.
func TestForLiveSubscribersOnly(t *testing.T) {
	n := start(t, bounds{records: 2, bytes: 1 << 20, span: 1 << 10})
	live := n.join(n.feed("live", Options{}, "t"))
	q, err := n.queues.Create("q")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.queues.Bind(q, "t", nil); err != nil {
		t.Fatal(err)
	}
	gone := store.Message{Flags: record.FlagTransient}
	n.putMsgs("p", "t", gone, "1", "2", "3", "4", "5")
	n.put("p", "t", "kept")
	late := n.feed("replay", Options{Start: 1})
	late.Bind(Filter{Filter: "t", QoS: 2})
	n.join(late).want("kept")
	n.join(q).want("kept")
	for _, want := range []string{"1", "2", "3", "4", "5", "kept"} { // of which its window holds two
		live.want(want)
	}
}

// The numbers of such a message are in use for as long as it waits: the log, which marks those of all others, does not have it.
func TestNumbersOfWhatTheLogDoesNotHave(t *testing.T) {
	n := start(t, bounds{})
	f := n.feed("live", Options{}, "t")
	live := n.join(f)
	n.putMsgs("p", "t", store.Message{Flags: record.FlagTransient}, "waits")
	await(t, "the message", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.win.len() == 1
	})
	used := func() (topics, clients int) {
		n.hub.InUse(func(uint32) { topics++ }, func(uint32) { clients++ })
		return topics, clients
	}
	if topics, clients := used(); topics != 1 || clients != 1 {
		t.Errorf("%d topics and %d clients are in use, while the message waits", topics, clients)
	}
	live.settle(live.take(1)...)
	if topics, clients := used(); topics != 0 || clients != 0 {
		t.Errorf("%d topics and %d clients are in use, after it", topics, clients)
	}
}
