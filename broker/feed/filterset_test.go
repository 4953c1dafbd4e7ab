package feed

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// A filterSet is a map, whatever its size.
func TestFilterSet(t *testing.T) {
	var s filterSet
	want := map[string]*Filter{}
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		most := fewFilters - 1
		if i > 1000 {
			most = 3 * fewFilters
		}
		name := fmt.Sprint("f", rnd.IntN(most))
		if rnd.IntN(3) == 0 {
			s.remove(name)
			delete(want, name)
		} else {
			flt := &Filter{Filter: name, From: uint64(i)}
			s.set(flt)
			want[name] = flt
		}
		if s.len() != len(want) || s.get(name) != want[name] {
			t.Fatalf("step %d: %d filters, %q is %v; want %d, %v", i, s.len(), name, s.get(name), len(want), want[name])
		}
		n := 0
		for flt := range s.all() {
			if n++; want[flt.Filter] != flt {
				t.Fatalf("step %d: %q is %v", i, flt.Filter, flt)
			}
		}
		if n != len(want) {
			t.Fatalf("step %d: %d of %d filters", i, n, len(want))
		}
	}
}
