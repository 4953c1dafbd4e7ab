package session

import (
	"fmt"
	"sync"
	"testing"
)

func TestRefs(t *testing.T) {
	var r refs
	if r.get([]byte("a")) != nil {
		t.Error("something is known of a topic nobody has used")
	}
	var wg sync.WaitGroup
	got := make([]*topicRef, 8)
	for i := range got {
		wg.Go(func() { got[i] = r.share(&topicRef{wire: "a", id: 1}) })
	}
	wg.Wait()
	for _, ref := range got {
		if ref != got[0] || ref != r.get([]byte("a")) {
			t.Error("links have different ones of a topic")
		}
	}
	for i := range maxShared + 10 {
		r.share(&topicRef{wire: fmt.Sprint(i)})
	}
	if n := len(r.byName); n > maxShared {
		t.Errorf("%d are kept", n)
	}
	if name := []byte("131081"); r.get(name) == nil || testing.AllocsPerRun(100, func() { r.get(name) }) != 0 {
		t.Error("the newest is not found, or not without allocating")
	}
}
