package bench

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestBuckets(t *testing.T) {
	for v := uint64(0); v < 1<<16; v++ {
		b := bucket(v)
		if top(b) < v || b > 0 && top(b-1) >= v {
			t.Fatalf("%d is in bucket %d, whose top is %d and that of the one below %d", v, b, top(b), top(b-1))
		}
		if v > 0 && float64(top(b)) > float64(v)*1.0313 {
			t.Fatalf("%d counts as %d", v, top(b))
		}
	}
	var h Histogram
	h.Add(1<<63-1, 1) // the longest there is has a bucket
	if h.Quantile(1) != 1<<63-1 {
		t.Errorf("%v", h.Quantile(1))
	}
}

func TestQuantiles(t *testing.T) {
	var h, other Histogram
	var all []time.Duration
	for i := range 20_000 {
		d := time.Duration(rand.ExpFloat64() * float64(time.Millisecond))
		all = append(all, d)
		if i%2 == 0 {
			h.Add(d, 1)
		} else {
			other.Add(d, 1)
		}
	}
	h.Merge(&other)
	slices.Sort(all)
	for _, q := range []float64{.01, .5, .9, .99, .999, 1} {
		want := all[max(0, int(q*float64(len(all))+.5)-1)]
		if got := h.Quantile(q); got < want || float64(got) > float64(want)*1.032+1 {
			t.Errorf("quantile %v is %v, want %v to 3 %% more", q, got, want)
		}
	}
	if (&Histogram{}).Latency() != nil {
		t.Error("a latency of nothing")
	}
}
