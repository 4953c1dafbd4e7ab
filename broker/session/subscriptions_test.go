package session

import (
	"math/rand/v2"
	"strconv"
	"testing"
)

// A list, and then a map, of subscriptions does what a map does.
func TestSubscriptions(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var s subscriptions
		want := map[string]byte{}
		for range 100 {
			var sub subscription
			sub.Filter, sub.QoS = strconv.Itoa(r.IntN(12)), byte(r.IntN(3))
			if r.IntN(3) == 0 {
				s.remove(sub.Filter)
				delete(want, sub.Filter)
			} else {
				s.set(sub)
				want[sub.Filter] = sub.QoS
			}
			got := map[string]byte{}
			for sub := range s.all() {
				got[sub.Filter] = sub.QoS
			}
			if s.len() != len(want) || len(got) != len(want) {
				t.Fatalf("%d and %v, want %v", s.len(), got, want)
			}
			for i := range 12 {
				filter := strconv.Itoa(i)
				sub, ok := s.get(filter)
				if qos, there := want[filter]; ok != there || ok && (sub.QoS != qos || got[filter] != qos) {
					t.Fatalf("%q: %v %v, want %v %v", filter, sub.QoS, ok, qos, there)
				}
			}
		}
	}
}
