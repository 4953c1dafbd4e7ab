package feed

import (
	"sync/atomic"
	"time"
)

// A consumer that returns to a large backlog would have all the processor there is. While somebody publishes at a pace that leaves room for both,
// its walk rests between its steps, or those who are served live would wait for it: on two cores a drain of 1.2 million messages a
// second made the p99 of 10,000 a second four times as long (1.1 ms, 5.0 ms); with these rests it was at most doubled (0.9 ms, 1.8 ms).
const (
	trafficSlot  = 100 * time.Millisecond
	lightTraffic = 10_000  // records a slot; with more it is about throughput
	farBehind    = 1 << 16 // records; what is less is over soon
	restShare    = 3       // of a step's time
	shortestRest = time.Millisecond
)

// traffic counts what is published, in slots of time. The dispatcher alone counts.
type traffic struct {
	n    int64        // in the slot of last
	rate atomic.Int64 // records in the slot before last
	last atomic.Int64 // number of the newest slot with anything in it
}

func (t *traffic) note(now time.Time, n int) {
	slot := now.UnixNano() / int64(trafficSlot)
	if last := t.last.Load(); slot != last {
		if slot != last+1 {
			t.n = 0
		}
		t.rate.Store(t.n)
		t.n = 0
		t.last.Store(slot)
	}
	t.n += int64(n)
}

// light tells whether somebody publishes, and not so much that throughput is what counts.
func (t *traffic) light(now time.Time) bool {
	return now.UnixNano()/int64(trafficSlot)-t.last.Load() <= 1 && t.rate.Load() < lightTraffic
}

// yield rests after a step of a long walk if others are served live meanwhile.
func (w *walker) yield(began time.Time) {
	if now := time.Now(); w.gap > farBehind && w.f.hub.traffic.light(now) {
		time.Sleep(max(shortestRest, restShare*now.Sub(began)))
	}
}
