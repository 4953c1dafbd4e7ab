package feed

import (
	"sync/atomic"
	"testing"
	"time"
)

// A walk that panics costs its feed a pause and nobody else anything, and goes on when what was wrong is over.
func TestPanicInAWalk(t *testing.T) {
	n := start(t, bounds{})
	n.put("c", "t", "1", "2")
	f := n.feed("bad", Options{Start: 1})
	f.Subscribe(Filter{Filter: "t", From: 1, QoS: 1})
	f.mu.Lock()
	f.ghosts = append(f.ghosts, nil)
	f.mu.Unlock()
	// Joining would put the filter into the index of all.
	f.mu.Lock()
	bad := &taker{t: t, awake: make(chan struct{}, 1)}
	bad.Member = &Member{feed: f, w: bad, qos: 2}
	f.members = append(f.members, bad.Member)
	f.resume()
	f.mu.Unlock()
	await(t, "a panic", func() bool { return n.hub.Panics() > 0 })
	g := n.feed("good", Options{Start: 1})
	g.Subscribe(Filter{Filter: "t", From: 1, QoS: 1})
	if items := n.join(g).take(2); len(items) != 2 {
		t.Fatalf("the other feed has %d items", len(items))
	}
	f.mu.Lock()
	f.ghosts = nil
	f.gen++
	f.mu.Unlock()
	if items := bad.take(2); string(items[1].Payload) != "2" {
		t.Errorf("after the panic came %q", items[1].Payload)
	}
}

// touchy is a Waker that panics when it is told to.
type touchy struct {
	*taker
	armed atomic.Bool
}

func (w *touchy) Wake() {
	if w.armed.Swap(false) {
		panic("touchy")
	}
	w.taker.Wake()
}

// The timer of refused messages goes on after a panic.
func TestPanicInTheTimer(t *testing.T) {
	n := start(t, bounds{})
	f, err := n.queues.Create("q")
	if err != nil {
		t.Fatal(err)
	}
	n.put("c", "$queue/q", "1")
	w := &touchy{taker: &taker{t: t, awake: make(chan struct{}, 1)}}
	w.Member = f.Join(w, 2)
	it := w.take(1)[0]
	w.armed.Store(true)
	w.Refuse(it.Seq, "", time.Millisecond)
	await(t, "a panic", func() bool { return n.hub.Panics() > 0 })
	if again := w.take(1)[0]; again.Offset != it.Offset {
		t.Errorf("message %d came in place of %d", again.Offset, it.Offset)
	}
}
