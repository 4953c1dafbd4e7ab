package feed

import (
	"testing"
	"time"
)

// What counts as light traffic: something, lately, and not much.
func TestTraffic(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	at := func(slots int) time.Time { return start.Add(time.Duration(slots) * trafficSlot) }
	for _, tt := range []struct {
		name  string
		slots []int // records in each
		when  int   // slot
		want  bool
	}{
		{"nothing ever", nil, 0, false},
		{"a little", []int{100, 100}, 1, true},
		{"a little, just over", []int{100, 100}, 2, true},
		{"a little, long ago", []int{100, 100}, 4, false},
		{"much", []int{lightTraffic, lightTraffic}, 1, false},
		{"much, then little", []int{lightTraffic, 10, 10}, 2, true},
		{"much, a pause, little", []int{lightTraffic, 0, 0, 10}, 3, true},
	} {
		var tr traffic
		for i, n := range tt.slots {
			for ; n > 0; n -= 5 {
				tr.note(at(i), 5)
			}
		}
		if got := tr.light(at(tt.when)); got != tt.want {
			t.Errorf("%s: light is %v", tt.name, got)
		}
	}
}
