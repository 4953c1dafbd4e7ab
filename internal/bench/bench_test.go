package bench

import (
	"fmt"
	"testing"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// BenchmarkLoad puts loads on a whole broker in this process, sockets and disk included. One operation is one message
// (with all=yes, one delivery).
func BenchmarkLoad(b *testing.B) {
	for _, row := range []struct {
		load                         string
		publishers, consumers, topic int
		all                          bool
	}{
		{"ingest", 1, 0, 100, false},
		{"ingest", 20, 0, 100, false},
		{"ingest", 1000, 0, 100, false},
		{"ingest", 20, 0, 100_000, false},
		{"drain", 20, 10, 100, false},
		{"live", 10, 10, 100, false},
		{"live", 10, 10, 100_000, false},
		{"live", 10, 10, 100, true},
		{"live", 10, 100, 100, true},
	} {
		b.Run(fmt.Sprintf("load=%s/publishers=%d/consumers=%d/topics=%d/all=%v", row.load, row.publishers, row.consumers, row.topic, row.all), func(b *testing.B) {
			l, _ := Find(row.load)
			l.Publishers, l.Consumers, l.Topics, l.All = row.publishers, row.consumers, row.topic, row.all
			l.Count = b.N
			if row.all {
				l.Count /= row.consumers
			}
			l.Count = max(l.Count, l.Publishers)
			broker := testbroker.Run(b, testbroker.Options{Set: []string{"store.journal_file=64MiB"}})
			b.ReportAllocs()
			b.ResetTimer()
			r, err := Run(b.Context(), &Target{Options: client.Options{URL: broker.Addr, Version: client.V311}}, l, nil)
			b.StopTimer()
			if err != nil {
				b.Fatal(err)
			}
			if r.Broken {
				b.Fatal(r.Faults)
			}
			b.ReportMetric(r.Rate, "msgs/s")
			b.ReportMetric(r.ToolCPU*1000, "cpu-ns/msg") // of broker and load together
			if latency := r.Ack; latency != nil {
				b.ReportMetric(latency.P50, "ack-p50-us")
				b.ReportMetric(latency.P99, "ack-p99-us")
			}
			if latency := r.Delivery; latency != nil {
				b.ReportMetric(latency.P50, "p50-us")
				b.ReportMetric(latency.P99, "p99-us")
			}
		})
	}
}
