package sdk

import (
	"sync"
	"time"
)

// LatencyTable says for how long a broker is avoided after it took so long to answer: at Latency[i] or more, for
// Avoid[i].
type LatencyTable struct {
	Latency []time.Duration // ascending
	Avoid   []time.Duration // as many
	Failure time.Duration   // what a failed send counts as
}

func table(failure int, rows ...[2]int) *LatencyTable {
	t := &LatencyTable{Failure: time.Duration(failure) * time.Millisecond}
	for _, r := range rows {
		t.Latency = append(t.Latency, time.Duration(r[0])*time.Millisecond)
		t.Avoid = append(t.Avoid, time.Duration(r[1])*time.Second)
	}
	return t
}

// LatencyTable4 is the table of RocketMQ 4.x: patient with slow brokers, hard on those that fail (10 minutes).
func LatencyTable4() *LatencyTable {
	return table(30000, [2]int{50, 0}, [2]int{100, 0}, [2]int{550, 30}, [2]int{1000, 60}, [2]int{2000, 120}, [2]int{3000, 180}, [2]int{15000, 600})
}

// LatencyTable5 is the table of RocketMQ 5.x, the default: a broker that failed is avoided for 10 seconds.
func LatencyTable5() *LatencyTable {
	return table(10000, [2]int{50, 0}, [2]int{100, 0}, [2]int{550, 2}, [2]int{1800, 5}, [2]int{3000, 6}, [2]int{5000, 10}, [2]int{15000, 30})
}

// For returns how long to avoid a broker that took this long.
func (t *LatencyTable) For(latency time.Duration) time.Duration {
	for i := len(t.Latency) - 1; i >= 0; i-- {
		if latency >= t.Latency[i] {
			return t.Avoid[i]
		}
	}
	return 0
}

// avoidance remembers which brokers to avoid.
type avoidance struct {
	table *LatencyTable
	now   func() time.Time

	mu      sync.Mutex
	brokers map[string]avoided
}

type avoided struct {
	until       time.Time
	unreachable bool // the last send failed
}

// record takes the outcome of one send to account. It never shortens what an earlier one made.
func (a *avoidance) record(broker string, latency time.Duration, failed bool) {
	if failed {
		latency = a.table.Failure
	}
	until := a.now().Add(a.table.For(latency))
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.brokers == nil {
		a.brokers = map[string]avoided{}
	}
	b := a.brokers[broker]
	if until.After(b.until) {
		b.until = until
	}
	b.unreachable = failed
	a.brokers[broker] = b
}

// mark sets which partitions are available: those at brokers that are neither avoided nor the one that failed
// last; if there are none, those at brokers that can be reached; if there are none, all.
func (a *avoidance) mark(ps []Partition, last string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	for level := range 4 {
		any := false
		for i := range ps {
			b := a.brokers[ps[i].Broker]
			ok := true
			switch level {
			case 0:
				ok = !b.until.After(now) && ps[i].Broker != last
			case 1:
				ok = !b.unreachable && ps[i].Broker != last
			case 2:
				ok = ps[i].Broker != last
			}
			ps[i].Available = ok
			any = any || ok
		}
		if any {
			return
		}
	}
}
