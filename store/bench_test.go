//go:build unix

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

// fill puts n messages of size into a store, from as many clients as given and to as many topics, in turns of a batch.
func fill(b *testing.B, r *running, n, clients, topics, batch, size int) {
	b.Helper()
	done := make(based, 64)
	waiting := 0
	for i := 0; i < n; i += batch {
		turn := i / batch
		msgs := batchMessages(r.topic(fmt.Sprint("t/", turn%topics)), r.client(fmt.Sprint("c", turn%clients)), min(batch, n-i), size)
		if waiting == cap(done) {
			<-done
			waiting--
		}
		if err := r.Append(msgs, nil, true, done); err != nil {
			b.Fatal(err)
		}
		waiting++
	}
	for ; waiting > 0; waiting-- {
		<-done
	}
	r.flushAll()
}

// BenchmarkRead reads a store from its beginning to its end. One operation is one entry examined.
func BenchmarkRead(b *testing.B) {
	const n = 1 << 20
	for _, row := range []struct {
		wanted                 string
		clients, topics, batch int
		share                  uint32 // one topic in so many is wanted; 0 is none
		readers                int
		limit                  int // records a read
	}{
		{"all", 20, 20, 400, 1, 1, 1024},
		{"all", 20, 20, 400, 1, 1, 64},
		{"all", 1000, 1000, 1, 1, 1, 1024},
		{"tenth", 20, 20, 400, 10, 1, 1024},
		{"none", 20, 20, 400, 0, 1, 1024},
		{"all", 20, 20, 400, 1, 8, 1024},
	} {
		b.Run(fmt.Sprintf("wanted=%s/clients=%d/limit=%d/readers=%d", row.wanted, row.clients, row.limit, row.readers), func(b *testing.B) {
			o := Options{Dir: b.TempDir(), TailBytes: 1}
			r := start(b, o)
			fill(b, r, n, row.clients, row.topics, row.batch, 128)
			b.SetBytes(128)
			b.ReportAllocs()
			used, began := cpu(), time.Now()
			var returned atomic.Int64
			b.ResetTimer()
			var wg sync.WaitGroup
			for range row.readers {
				wg.Go(func() {
					reader, from := r.NewReader(), uint64(0)
					var recs []Record
					for left := b.N / row.readers; left > 0; {
						var next uint64
						var err error
						recs, next, err = reader.Read(recs[:0], from, Limits{MaxRecords: row.limit, MaxScan: left}, func(_ uint64, topic uint32) bool {
							return row.share != 0 && topic%row.share == 0
						})
						if err != nil {
							b.Error(err)
							return
						}
						returned.Add(int64(len(recs)))
						if left -= int(next - max(from, 1)); next == r.Committed() {
							next = 1
						}
						from = next
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			st := r.Stats()
			b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "entries/s")
			b.ReportMetric(float64(returned.Load())/time.Since(began).Seconds(), "records/s")
			b.ReportMetric(float64((cpu()-used).Nanoseconds())/float64(b.N), "cpu-ns/entry")
			b.ReportMetric(float64(st.CacheHits)/float64(max(1, st.CacheHits+st.CacheMisses)), "cache-hits")
			b.ReportMetric(rss(), "rss-MiB")
		})
	}
}

// BenchmarkRecover opens a store whose journal was never checkpointed. One operation is one message.
func BenchmarkRecover(b *testing.B) {
	for _, clients := range []int{20, 1000} {
		b.Run(fmt.Sprintf("clients=%d/size=128", clients), func(b *testing.B) {
			o := Options{Dir: b.TempDir(), CheckpointBytes: 4 << 30, CheckpointInterval: time.Hour}
			r := start(b, o)
			fill(b, r, b.N, clients, 20, 400, 128)
			r.kill()
			used := cpu()
			b.ResetTimer()
			s, err := Open(o)
			if err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			b.SetBytes(128)
			b.ReportMetric(float64((cpu()-used).Nanoseconds())/float64(b.N), "cpu-ns/msg")
			b.ReportMetric(rss(), "rss-MiB")
			if s.Next() != uint64(b.N)+1 {
				b.Fatalf("%d messages, next is %d", b.N, s.Next())
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkOneShotClients has clients that come once, publish one message and are never seen again.
func BenchmarkOneShotClients(b *testing.B) {
	o := Options{Dir: b.TempDir()}
	r := start(b, o)
	topic := r.topic("t")
	msgs := batchMessages(topic, 0, 1, 128)
	used := cpu()
	b.ResetTimer()
	for i := range b.N {
		id, err := r.ClientID(fmt.Sprint("mosq-", i, "-and-some-more"), false)
		if err != nil {
			b.Fatal(err)
		}
		msgs[0].Client = id
		if err := r.Append(msgs, nil, true, nil); err != nil {
			b.Fatal(err)
		}
	}
	r.checkpointAll()
	b.StopTimer()
	runtime.GC()
	b.ReportMetric(float64((cpu()-used).Nanoseconds())/float64(b.N), "cpu-ns/client")
	b.ReportMetric(rss(), "rss-MiB")
	b.ReportMetric(float64(r.state.Stats().FileBytes)/float64(b.N), "state-B/client")
}

// BenchmarkCheckpoint makes what so many clients have written durable, each in a segment of its own. One operation is one checkpoint.
func BenchmarkCheckpoint(b *testing.B) {
	for _, clients := range []int{20, 1000, 5000} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			r := start(b, Options{Dir: b.TempDir(), CheckpointBytes: 4 << 30, CheckpointInterval: time.Hour})
			topic := r.topic("t")
			ids := make([]uint32, clients)
			for i := range ids {
				var err error
				if ids[i], err = r.ClientID(fmt.Sprint("c", i), true); err != nil { // durable: it has segments of its own
					b.Fatal(err)
				}
			}
			var took time.Duration
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				for _, id := range ids {
					if err := r.Append(batchMessages(topic, id, 16, 128), nil, true, nil); err != nil {
						b.Fatal(err)
					}
				}
				r.flushAll()
				b.StartTimer()
				t := time.Now()
				r.checkpointAll()
				took += time.Since(t)
			}
			b.ReportMetric(float64(took.Microseconds())/float64(b.N*clients), "us/client")
		})
	}
}
