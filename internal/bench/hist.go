package bench

import (
	"math/bits"
	"time"
)

// Histogram counts durations in buckets of which 32 make an octave, so a quantile is at most 3 % too long. The zero
// value is empty.
type Histogram struct {
	counts [59 << subBits]uint64
	n      uint64
	max    time.Duration
}

// subBits is the logarithm of the buckets in an octave.
const subBits = 5

// bucket: values below 32 have one each; above, the five bits below the leading one choose among an octave's 32.
func bucket(v uint64) int {
	if v < 1<<subBits {
		return int(v)
	}
	octave := bits.Len64(v) - subBits // 1 for 32 to 63
	return octave<<subBits + int(v>>(octave-1))&(1<<subBits-1)
}

// top is the largest value of a bucket.
func top(bucket int) uint64 {
	octave, sub := bucket>>subBits, uint64(bucket&(1<<subBits-1))
	if octave == 0 {
		return sub
	}
	return (1<<subBits+sub+1)<<(octave-1) - 1
}

// Add counts n durations of d.
func (h *Histogram) Add(d time.Duration, n int) {
	d = max(d, 0)
	h.counts[bucket(uint64(d))] += uint64(n)
	h.n += uint64(n)
	h.max = max(h.max, d)
}

// Merge adds what o has counted.
func (h *Histogram) Merge(o *Histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.n += o.n
	h.max = max(h.max, o.max)
}

// Quantile is the duration that a share q of the counted ones does not exceed.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := max(1, uint64(q*float64(h.n)+0.5))
	var seen uint64
	for i, n := range h.counts {
		if seen += n; seen >= rank {
			return min(time.Duration(top(i)), h.max)
		}
	}
	return h.max
}

// Latency is a histogram in figures, in microseconds.
type Latency struct {
	P50  float64 `json:"p50_us"`
	P90  float64 `json:"p90_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`
	Max  float64 `json:"max_us"`
}

// Latency sums the histogram up; it is nil if nothing was counted.
func (h *Histogram) Latency() *Latency {
	if h.n == 0 {
		return nil
	}
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	return &Latency{us(h.Quantile(.5)), us(h.Quantile(.9)), us(h.Quantile(.99)), us(h.Quantile(.999)), us(h.max)}
}
