package feed

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// TestHandOver: what a member leaves behind goes to the others, in order, and no message of a key
// overtakes an earlier one.
func TestHandOver(t *testing.T) {
	n := start(t, bounds{})
	_, f := n.queue("q", "a")
	first := n.join(f)
	const keys = 8
	for i := range 4 {
		for k := range keys {
			n.put(fmt.Sprint("p", k), "a", fmt.Sprintf("%d.%d", k, i))
		}
	}
	items := first.take(2 * keys)
	second := n.join(f)
	// Every key has two messages with the first member, so those that the second gets it gets later.
	if got := second.Take(nil, 100, 1<<20); len(got) > 0 {
		t.Fatalf("%q overtook what the first member has not settled", texts(got))
	}
	moved := map[byte]bool{}
	for k := range keys {
		first.settle(items[k])
		if got := second.Take(nil, 100, 1<<20); len(got) > 0 {
			t.Fatalf("%q overtook %q", texts(got), items[keys+k].Payload)
		}
		first.settle(items[keys+k])
		for _, it := range second.Take(nil, 100, 1<<20) {
			moved[it.Payload[0]] = true
		}
	}
	if len(moved) == 0 || len(moved) == keys {
		t.Errorf("%d of %d keys moved to the second member", len(moved), keys)
	}
	second.Leave() // it has settled nothing
	rest := first.take(2 * keys)
	next := map[byte]byte{}
	for _, it := range rest {
		k, i := it.Payload[0], it.Payload[2]
		if i != next[k] && next[k] != 0 || next[k] == 0 && i != '2' {
			t.Errorf("%q came out of order in %q", it.Payload, texts(rest))
		}
		next[k] = i + 1
	}
	first.settle(rest...)
	first.idle()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.keys) > 0 {
		t.Errorf("%d keys are still known though nothing is unsettled", len(f.keys))
	}
}

// TestShardingKey: messages of one key go to one member whoever published them.
func TestShardingKey(t *testing.T) {
	n := start(t, bounds{})
	_, f := n.queue("q", "a")
	members := []*taker{n.join(f), n.join(f), n.join(f)}
	for i := range 60 {
		m := store.Message{Flags: record.Flags(0).WithQoS(1), Props: packet.AppendUser(nil, wire.ShardingKey, fmt.Sprint("k", i%6))}
		n.putMsgs(fmt.Sprint("p", i), "a", m, fmt.Sprintf("%d.%02d", i%6, i))
	}
	holder := map[byte]*taker{}
	last := map[byte]string{}
	for got := 0; got < 60; {
		for _, k := range members {
			for _, it := range k.Take(nil, 100, 1<<20) {
				key := it.Payload[0]
				if h := holder[key]; h != nil && h != k {
					t.Fatalf("%q went to another member than the one before it", it.Payload)
				}
				if string(it.Payload) <= last[key] {
					t.Fatalf("%q came after %q", it.Payload, last[key])
				}
				holder[key], last[key] = k, string(it.Payload)
				got++
			}
		}
	}
}

// TestRefusedInTheirTime: of two refused messages the one that is due later comes as well, though nothing else happens, and
// when all is settled no key is kept for them.
func TestRefusedInTheirTime(t *testing.T) {
	n := start(t, bounds{})
	_, f := n.queue("q", "a")
	n.put("p", "a", "soon")
	n.put("p2", "a", "later")
	k := n.join(f)
	items := k.take(2)
	k.Refuse(items[0].Seq, "", time.Millisecond)
	k.Refuse(items[1].Seq, "", 50*time.Millisecond)
	k.want("soon")
	k.want("later")
	k.idle()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.keys) > 0 || len(f.tries) > 0 {
		t.Errorf("%d keys and %d refusals are still known", len(f.keys), len(f.tries))
	}
}

// TestGivenUp: what is given up goes to the dead letters at once. What is given up there has nowhere to go, and comes again.
func TestGivenUp(t *testing.T) {
	n := start(t, bounds{})
	q, f := n.queue("q", "a")
	if err := q.SetPolicy("q", Policy{MaxDeliveries: -1}); err != nil { // which says nothing of this
		t.Fatal(err)
	}
	n.put("p", "a", "bad")
	k := n.join(f)
	k.Refuse(k.take(1)[0].Seq, "", Never)
	dead, err := q.Find("q-dead")
	if err != nil {
		t.Fatal(err)
	}
	k = n.join(dead)
	it := k.take(1)[0]
	k.Refuse(it.Seq, "", Never)
	if _, err := q.Find("q-dead-dead"); !errors.Is(err, ErrNoQueue) {
		t.Errorf("the dead letters have dead letters: %v", err)
	}
	if again := k.take(1)[0]; again.Offset != it.Offset {
		t.Errorf("offset %d came in place of %d", again.Offset, it.Offset)
	}
}
