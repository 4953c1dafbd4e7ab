package feed

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// BenchmarkDeliver has feeds that want everything take and settle what is published, in batches of 256, from memory while they keep up
// (from=tail), or from the disk what was published before they came (from=log). One operation is one delivery.
func BenchmarkDeliver(b *testing.B) {
	for _, from := range []string{"tail", "log"} {
		for _, feeds := range []int{1, 10, 100} {
			for _, topics := range []int{100, 100_000} {
				if topics > 100 && feeds > 1 {
					continue
				}
				b.Run(fmt.Sprintf("from=%s/feeds=%d/topics=%d", from, feeds, topics), func(b *testing.B) {
					benchDeliver(b, from == "tail", feeds, topics)
				})
			}
		}
	}
}

func benchDeliver(b *testing.B, live bool, feeds, topics int) {
	const batch = 256
	n := open(b, nil, b.TempDir(), bounds{}, func(o *store.Options) {
		o.JournalFileBytes, o.CheckpointBytes, o.SegmentBytes, o.TailBytes, o.CacheBytes = 64<<20, 64<<20, 64<<20, 16<<20, 64<<20
		o.Sync = store.SyncNone // the disk is not what is measured
	}).run()
	each := b.N/feeds/batch*batch + batch
	begin := make(chan struct{})
	var wg sync.WaitGroup
	read := func(f *Feed) {
		k := n.join(f)
		wg.Go(func() {
			<-begin
			var items []Item
			for got := 0; got < each; {
				if items = k.Take(items[:0], 1024, 1<<20); len(items) == 0 {
					<-k.awake
					continue
				}
				got += len(items)
				k.settle(items...)
			}
		})
	}
	subscribe := func(start uint64) {
		for i := range feeds {
			f, err := n.hub.Open(fmt.Sprint("f", i), Options{})
			if err != nil {
				b.Fatal(err)
			}
			f.Subscribe(Filter{Filter: "t/#", From: start, QoS: 1})
			read(f)
		}
	}
	if live {
		subscribe(Now)
	}
	fill := benchFill(b, n, topics, batch)
	b.ReportAllocs()
	if !live {
		fill(each)
		await(b, "the flusher", func() bool { return n.store.Stats().UnflushedBytes == 0 })
		subscribe(1)
	}
	b.ResetTimer()
	close(begin)
	if live {
		fill(each)
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(each*feeds)/b.Elapsed().Seconds(), "deliveries/s")
}

// benchFill returns what publishes messages to topics in turn.
func benchFill(b *testing.B, n *node, topics, batch int) func(count int) {
	b.Helper()
	client, err := n.store.ClientID("c", true)
	if err != nil {
		b.Fatal(err)
	}
	ids := make([]uint32, topics)
	for i := range ids {
		if ids[i], err = n.store.TopicID(fmt.Sprint("t/", i)); err != nil {
			b.Fatal(err)
		}
	}
	payload := []byte(strings.Repeat("x", 128))
	return func(count int) {
		msgs := make([]store.Message, batch)
		next := uint32(1)
		for sent := 0; sent < count; sent += batch {
			for i := range msgs {
				next = next*1664525 + 1013904223
				msgs[i] = store.Message{Topic: ids[uint64(next)*uint64(topics)>>32], Client: client, Flags: record.Flags(0).WithQoS(1), Payload: payload}
			}
			if err := n.store.Append(msgs, nil, true, nil); err != nil {
				b.Error(err)
				return
			}
		}
	}
}
