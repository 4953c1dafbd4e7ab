package store

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store/record"
)

// cpu returns the processor time that the process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// rss returns the memory of the process in MiB.
func rss() float64 {
	b, _ := os.ReadFile("/proc/self/statm")
	var total, resident int
	_, _ = fmt.Sscan(string(b), &total, &resident)
	return float64(resident) * float64(os.Getpagesize()) / (1 << 20)
}

// batchMessages makes what one socket read brings.
func batchMessages(topic, client uint32, n, size int) []Message {
	msgs := make([]Message, n)
	payload := make([]byte, size)
	for i := range msgs {
		msgs[i] = Message{Topic: topic, Client: client, Flags: record.Flags(1), PacketID: uint16(i), Payload: payload}
	}
	return msgs
}

// BenchmarkAppend appends as publishers do that have a window of batch messages: the next batch comes when the
// last one is acknowledged. One operation is one message.
func BenchmarkAppend(b *testing.B) {
	for _, row := range []struct{ writers, batch, size int }{
		{1, 1, 128}, {1, 256, 128}, {20, 1, 128}, {20, 256, 128}, {20, 400, 128}, {20, 64, 1024},
	} {
		b.Run(fmt.Sprintf("writers=%d/batch=%d/size=%d", row.writers, row.batch, row.size), func(b *testing.B) {
			r := start(b, Options{Dir: b.TempDir()})
			ctx, cancel := context.WithCancel(context.Background())
			var followed atomic.Uint64
			var wg sync.WaitGroup
			wg.Go(func() {
				_ = r.Follow(ctx, func(g *Group) { followed.Add(uint64(len(g.Entries))) })
			})
			defer wg.Wait()
			defer cancel()
			var writers sync.WaitGroup
			var left atomic.Int64
			left.Store(int64(b.N))
			latencies := make([][]time.Duration, row.writers)
			runtime.GC()
			b.ReportAllocs()
			b.SetBytes(int64(row.size))
			used, began := cpu(), time.Now()
			b.ResetTimer()
			for w := range row.writers {
				topic, client := r.topic(fmt.Sprint("t/", w)), r.client(fmt.Sprint("c", w))
				writers.Go(func() {
					msgs := batchMessages(topic, client, row.batch, row.size)
					done := make(based, 1)
					for left.Add(-int64(row.batch)) > -int64(row.batch) {
						t := time.Now()
						if err := r.Append(msgs, nil, true, done); err != nil {
							b.Error(err)
							return
						}
						if a := <-done; a.err != nil {
							b.Error(a.err)
							return
						}
						latencies[w] = append(latencies[w], time.Since(t))
					}
				})
			}
			writers.Wait()
			b.StopTimer()
			took := time.Since(began)
			st := r.Stats()
			all := slices.Concat(latencies...)
			slices.Sort(all)
			b.ReportMetric(float64(st.Records)/took.Seconds(), "msgs/s")
			b.ReportMetric(float64((cpu()-used).Nanoseconds())/float64(max(st.Records, 1)), "cpu-ns/msg")
			b.ReportMetric(float64(st.Records)/float64(max(st.Syncs, 1)), "records/fsync")
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
			b.ReportMetric(float64(all[len(all)-1].Microseconds()), "max-us")
			b.ReportMetric(float64(st.SyncLatency.Quantile(0.5).Microseconds()), "sync-p50-us")
			b.ReportMetric(float64(st.SyncLatency.Quantile(0.99).Microseconds()), "sync-p99-us")
			b.ReportMetric(float64(st.CheckpointLatency.Milliseconds()), "checkpoint-ms")
			b.ReportMetric(rss(), "rss-MiB")
		})
	}
}
