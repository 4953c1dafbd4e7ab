package topic

import (
	"math/rand/v2"
	"strconv"
	"testing"
)

// named is something that there is for a filter.
type named struct {
	filter string
	n      int
}

func (x named) Key() string { return x.filter }

// A list, and then a map, does what a map does.
func TestFilters(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var s Filters[named]
		want := map[string]int{}
		for range 100 {
			var x named
			x.filter, x.n = strconv.Itoa(r.IntN(12)), r.IntN(3)
			if r.IntN(3) == 0 {
				s.Remove(x.filter)
				delete(want, x.filter)
			} else {
				s.Set(x)
				want[x.filter] = x.n
			}
			got := map[string]int{}
			for x := range s.All() {
				got[x.filter] = x.n
			}
			if s.Len() != len(want) || len(got) != len(want) {
				t.Fatalf("%d and %v, want %v", s.Len(), got, want)
			}
			for i := range 12 {
				filter := strconv.Itoa(i)
				x, ok := s.Get(filter)
				if n, there := want[filter]; ok != there || ok && (x.n != n || got[filter] != n) {
					t.Fatalf("%q: %v %v, want %v %v", filter, x.n, ok, n, there)
				}
			}
		}
	}
}
