package feed

import (
	"reflect"
	"testing"

	"github.com/edgemq/edgemq/store"
)

// TestWindowSlots: a slot that is used again has nothing of the item before.
func TestWindowSlots(t *testing.T) {
	t.Parallel()
	w := window{head: 1, tail: 1}
	for range 100 {
		s := w.push()
		if want := (slot{Item: Item{Seq: w.tail - 1}}); !reflect.DeepEqual(*s, want) {
			t.Fatalf("a new slot has %+v", *s)
		}
		*s = slot{Item: Item{Record: store.Record{Offset: 7, Payload: []byte("x")}, Match: &Match{}, Seq: s.Seq, Dup: true}, extra: true, m: &Member{}, state: settled}
		if w.len() > 10 {
			w.trim()
		}
	}
	w.clear()
	if s := w.push(); s.Offset != 0 || s.extra {
		t.Errorf("after clear a new slot has %+v", *s)
	}
}
