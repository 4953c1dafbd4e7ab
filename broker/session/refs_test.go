package session

import (
	"fmt"
	"hash/maphash"
	"sync"
	"testing"
)

func hashOf(name string) uint64 { return maphash.String(seed, name) }

func TestRefs(t *testing.T) {
	var r refs
	if r.get(hashOf("a"), []byte("a")) != nil {
		t.Error("something is known of a topic nobody has used")
	}
	var wg sync.WaitGroup
	got := make([]*topicRef, 8)
	for i := range got {
		wg.Go(func() { got[i] = r.share(hashOf("a"), newRef("a")) })
	}
	wg.Wait()
	for _, ref := range got {
		if ref != got[0] || ref != r.get(hashOf("a"), []byte("a")) {
			t.Error("links have different ones of a topic")
		}
	}
	if name := []byte("a"); testing.AllocsPerRun(100, func() { r.get(hashOf("a"), name) }) != 0 {
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
				if ref := r.get(hashOf(name), []byte(name)); ref != nil && ref.wire != name {
					t.Errorf("%s is %s", name, ref.wire)
				}
			}
		})
	}
	for i := range maxShared + 10 {
		name := fmt.Sprint(i)
		ref := newRef(name)
		if r.share(hashOf(name), ref) != ref || r.get(hashOf(name), []byte(name)) != ref {
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
