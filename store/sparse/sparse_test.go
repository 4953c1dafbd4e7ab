package sparse_test

import (
	"math"
	"testing"

	"github.com/edgemq/edgemq/store/sparse"
)

func TestTable(t *testing.T) {
	var x sparse.Table[int]
	numbers := []uint32{0, 1, 63, 64, 65535, 65536, 1 << 20, 300_000_000, math.MaxUint32}
	for _, n := range numbers {
		if at := x.At(n); at != nil && *at != 0 {
			t.Fatalf("%d is there before it was made", n)
		}
		*x.Make(n) = int(n) + 1
		if *x.Make(n) != int(n)+1 || *x.At(n) != int(n)+1 {
			t.Fatalf("%d is not what was put there", n)
		}
	}
	some := func() (got []uint32) {
		for n, v := range x.All() {
			if *v != 0 {
				got = append(got, n)
			}
		}
		return got
	}
	if got := some(); len(got) != len(numbers) || got[8] != math.MaxUint32 {
		t.Fatalf("all are %v", got)
	}
	*x.At(1 << 20) = 0
	*x.At(64) = 0
	*x.At(1) = 0
	x.Trim(func(v *int) bool { return *v == 0 })
	if x.At(1<<20) != nil || x.At(64) != nil {
		t.Error("what is empty was not given back")
	}
	if at := x.At(1); at == nil || *at != 0 || *x.At(63) != 64 {
		t.Error("what is not empty was given back")
	}
	if got := some(); len(got) != len(numbers)-3 {
		t.Errorf("left are %v", got)
	}
}
