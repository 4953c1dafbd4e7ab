package session

import (
	"fmt"
	"hash/maphash"
	"sync"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
)

func hashOf(name string) uint64 { return maphash.String(seed, name) }

func TestRefs(t *testing.T) {
	var r refs
	if r.get(0, hashOf("a"), []byte("a")) != nil {
		t.Error("something is known of a topic nobody has used")
	}
	var wg sync.WaitGroup
	got := make([]*topicRef, 8)
	for i := range got {
		wg.Go(func() { got[i] = r.share(0, hashOf("a"), newRef("a")) })
	}
	wg.Wait()
	for _, ref := range got {
		if ref != got[0] || ref != r.get(0, hashOf("a"), []byte("a")) {
			t.Error("links have different ones of a topic")
		}
	}
	if name := []byte("a"); testing.AllocsPerRun(100, func() { r.get(0, hashOf("a"), name) }) != 0 {
		t.Error("get allocates")
	}
}

// TestRefsBeside: while the table grows and is begun anew, whoever looks finds nothing or the topic that was asked for.
func TestRefsBeside(t *testing.T) {
	t.Parallel()
	var r refs
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				name := fmt.Sprint(i % maxShared)
				if ref := r.get(0, hashOf(name), []byte(name)); ref != nil && ref.wire != name {
					t.Errorf("%s is %s", name, ref.wire)
				}
				if table := r.table.Load(); table != nil {
					if ref := hint(table.places, hashOf(name)); ref != nil && ref.wire != name {
						t.Errorf("the hint for %s is %s", name, ref.wire)
					}
				}
			}
		})
	}
	for i := range maxShared + 10 {
		name := fmt.Sprint(i)
		ref := newRef(name)
		if r.share(0, hashOf(name), ref) != ref || r.get(0, hashOf(name), []byte(name)) != ref {
			t.Fatalf("%s is not found", name)
		}
	}
	close(done)
	wg.Wait()
	if r.n > maxShared {
		t.Errorf("%d are kept", r.n)
	}
}

func TestRecent(t *testing.T) {
	t.Parallel()
	var r recent
	names := make([]string, 2*maxRefs)
	for i := range names {
		names[i] = fmt.Sprint("t/", i)
		h := hashOf(names[i])
		if r.get(h, []byte(names[i])) != nil {
			t.Fatalf("%s is known", names[i])
		}
		r.put(h, newRef(names[i]))
		if i == 0 && len(r) != 2 || len(r) > maxRefs {
			t.Errorf("after %d topics there are %d places", i+1, len(r))
		}
		for _, name := range names[max(0, i-1) : i+1] { // two that meet have room
			if ref := r.get(hashOf(name), []byte(name)); ref == nil || ref.wire != name {
				t.Errorf("%s is forgotten", name)
			}
		}
	}
	other := hashOf(names[0])
	if ref := r.get(other, []byte("another topic with that hash")); ref != nil {
		t.Errorf("found %s", ref.wire)
	}
}

func TestForesee(t *testing.T) { // allocations are counted: nothing beside it
	l := &Link{m: &Manager{}}
	if l.Foresee(nil) != foreseen {
		t.Error("a link that knows few topics looks at what comes")
	}
	var all []byte
	for i := range 2 * foreseen {
		name := fmt.Sprint("t/", i)
		for n := 0; n < 2; n++ {
			all = packet.AppendPublish(all, packet.V311, &packet.Outgoing{QoS: 1, PacketID: 1, Topic: name})
		}
		if i%2 == 0 {
			l.recent.put(hashOf(name), newRef(name))
		} else {
			l.m.refs.share(0, hashOf(name), newRef(name))
		}
	}
	for i := 0; len(l.recent) < fewRefs; i++ {
		l.recent.put(hashOf(fmt.Sprint("u/", i)), newRef("u"))
	}
	first, _ := packet.PeekTopic(all)
	size := len(first) + 6
	for _, row := range []struct {
		name string
		b    []byte
		want int
	}{
		{"nothing", nil, 0},
		{"part of a packet", all[:size-1], 0},
		{"one and a part of the next", all[:2*size-1], 1},
		{"more than it looks at", all, foreseen},
		{"two, the first without a topic", []byte{0x30, 0, 0xC0, 0}, 2},
		{"a topic longer than its packet", []byte{0x30, 3, 0, 9, 'a'}, 1},
		{"a length that is none", []byte{0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, 0},
	} {
		if got := l.Foresee(row.b); got != row.want {
			t.Errorf("%s: it has looked at %d packets, want %d", row.name, got, row.want)
		}
	}
	if testing.AllocsPerRun(100, func() { l.Foresee(all) }) != 0 {
		t.Error("Foresee allocates")
	}
}
