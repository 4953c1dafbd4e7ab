package feed

import (
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
)

// withPolicies gives topics the policy of their first level.
func withPolicies(by map[string]*store.TopicPolicy) func(*store.Options) {
	return func(o *store.Options) {
		o.Topic = func(name string) *store.TopicPolicy {
			level, _, _ := strings.Cut(name, "/")
			return by[level]
		}
	}
}

// wantGap takes the notice of a gap.
func (k *taker) wantGap(want Gap) {
	k.t.Helper()
	var got Gap
	await(k.t, "a gap", func() bool { got = k.Gap(); return got.To > 0 || want.To == 0 })
	if got != want {
		k.t.Errorf("the gap is %+v, want %+v", got, want)
	}
}

func (n *node) awaitDropped(count uint64) {
	n.t.Helper()
	await(n.t, "messages to be dropped", func() bool { st := n.store.Stats(); return st.TopicDropped+st.TopicAged >= count })
}

// TestGapOfTopicLimits: what a limit of a topic takes from a queue while nobody is there is told to whoever comes next, whatever happens
// in between, and once.
func TestGapOfTopicLimits(t *testing.T) {
	free := withPolicies(map[string]*store.TopicPolicy{"a": {MaxMessages: 3, Unprotected: true}})
	d := newDisk(t)
	n := open(t, d, "data", bounds{}, free).run()
	n.put("p", "a/1", upTo(-9, 0)...) // gone before there is a queue
	n.awaitDropped(7)
	_, f := n.queue("q", "a/#")
	k := n.join(f)
	k.want("-2", "-1", "0")
	k.wantGap(Gap{})
	n.put("p", "a/1", "1", "2")
	k.want("1", "2")
	n.save(f)
	k.Leave()
	n.put("p", "a/1", upTo(3, 9)...) // offsets 13 to 19
	n.put("p", "b", "none of its business")
	n.put("p", "a/2", "10")
	n.awaitDropped(7 + 6)
	n = n.restart(d)
	_, f = n.queue("q")
	if b, err := f.Backlog(); err != nil || b.Messages != 4 {
		t.Errorf("backlog %+v, %v", b, err)
	}
	k = n.join(f)
	k.want("7", "8", "9", "10")
	n.save(f)
	n = n.restart(d) // it was not told
	_, f = n.queue("q")
	k = n.join(f)
	k.wantGap(Gap{From: 13, To: 17, Records: 4})
	k.idle()
	n.save(f)
	n = n.restart(d)
	_, f = n.queue("q")
	n.join(f).wantGap(Gap{})
}

// TestGapOfQueueLimits: likewise, what the queue's own limits take.
func TestGapOfQueueLimits(t *testing.T) {
	d := newDisk(t)
	n := open(t, d, "data", bounds{}).run()
	q, f := n.queue("q", "a")
	if err := q.SetPolicy("q", Policy{Limits: Limits{MaxMessages: 2}}); err != nil {
		t.Fatal(err)
	}
	n.put("p", "a", upTo(1, 5)...)
	if err := f.enforce(time.Now()); err != nil {
		t.Fatal(err)
	}
	n = n.restart(d)
	_, f = n.queue("q")
	k := n.join(f)
	k.want("4", "5")
	k.wantGap(Gap{From: 1, To: 4, Records: 3})
	other := n.join(f)
	other.wantGap(Gap{})
}

// TestGapOfDamage: a message that was damaged on the disk is one that a queue misses.
func TestGapOfDamage(t *testing.T) {
	d := newDisk(t)
	n := open(t, d, "data", bounds{}).run()
	n.queue("q", "a")
	n.put("p", "a", "one", strings.Repeat("x", 5000), "three")
	n.stop()
	hurt := 0
	for _, name := range d.List() {
		if b, err := d.ReadFile(name); err == nil && strings.HasSuffix(name, ".seg") {
			if at := strings.Index(string(b), "xxxx"); at > 0 {
				hurt++
				if err := d.Corrupt(name, int64(at+2000), 1); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if hurt != 1 {
		t.Fatalf("%d segments have it", hurt)
	}
	n = open(t, d, "data", bounds{}).run()
	_, f := n.queue("q")
	k := n.join(f)
	k.want("one", "three")
	k.wantGap(Gap{From: 2, To: 3, Records: 1})
}

// TestGapOfDamagedLedger: a message whose entry in the ledger is damaged is told of too, and one of another topic only if that is not known.
func TestGapOfDamagedLedger(t *testing.T) {
	d := newDisk(t)
	n := open(t, d, "data", bounds{}).run()
	n.queue("q", "a")
	n.put("p", "a", "one", "two", "three")
	n.put("p", "b", "none of its business")
	n.put("p", "a", "five")
	n.stop()
	if err := d.Corrupt("data/ledger/00000000.ldg", record.FileHeaderSize+2*ledger.EntrySize+8, 1); err != nil {
		t.Fatal(err)
	}
	n = open(t, d, "data", bounds{}).run()
	_, f := n.queue("q")
	k := n.join(f)
	k.want("one", "three", "five")
	k.wantGap(Gap{From: 2, To: 3, Records: 1})
}

// TestGapBelowFirst: when retention has taken the ledger with the messages it is not known how many there were, but that there were some.
func TestGapBelowFirst(t *testing.T) {
	d := newDisk(t)
	n := open(t, d, "data", bounds{}, withPolicies(map[string]*store.TopicPolicy{"a": {MaxMessages: 2, Unprotected: true}}), func(o *store.Options) {
		o.SegmentBytes, o.CheckpointInterval, o.SharedBelow, o.TailBytes = 4<<10, 10*time.Millisecond, 1, 1
	}).run()
	_, f := n.queue("q", "a")
	n.queue("quiet", "b")
	big := strings.Repeat("x", 1500)
	for range 12 {
		n.put("p", "a", big)
	}
	n.put("p", "b", "b")
	await(t, "segments to be deleted", func() bool { return n.store.First() > 4 })
	n.save(f)
	n = n.restart(d)
	_, f = n.queue("q")
	_, quiet := n.queue("quiet")
	if first := n.store.First(); first < 4 {
		t.Fatalf("first is %d", first)
	}
	k := n.join(f)
	k.want(big, big)
	got := Gap{}
	await(t, "a gap", func() bool { got = k.Gap(); return got.To > 0 })
	if got.From != 1 || got.To != 11 && got.To != n.store.First() {
		t.Errorf("the gap is %+v, first %d", got, n.store.First())
	}
	k = n.join(quiet)
	k.want("b")
	k.wantGap(Gap{})
}

// TestKeepLast: a queue that is behind is handed the newest message of each topic, in order; one that keeps up gets them all, and
// what a consumer has in hand stays with it.
func TestKeepLast(t *testing.T) {
	d := newDisk(t)
	n := open(t, d, "data", bounds{}, withPolicies(map[string]*store.TopicPolicy{"s": {Last: true}})).run()
	_, f := n.queue("q", "s/#")
	k := n.join(f)
	k.idle() // and keeps up
	n.put("p", "s/1", "1", "2", "3")
	items := k.take(3)
	k.settle(items[0])
	n.put("p", "s/2", "4")
	n.put("p", "s/1", "5")
	k.settle(items[2]) // 2 stays in hand
	k.want("4", "5")
	k.Leave()
	n.put("p", "s/2", "6", "7")
	n.put("p", "s/1", "8")
	n.put("p", "s/2", "9")
	if b, err := f.Backlog(); err != nil || b.Messages != 2 {
		t.Errorf("backlog %+v, %v", b, err)
	}
	n.save(f)
	n = n.restart(d)
	_, f = n.queue("q")
	if b, err := f.Backlog(); err != nil || b.Messages != 2 {
		t.Errorf("backlog after a restart %+v, %v", b, err)
	}
	k = n.join(f)
	k.want("8", "9") // 2 was superseded
	k.wantGap(Gap{})
	k.idle()
	n.put("p", "s/1", "10", "11")
	k.want("10", "11")
}
