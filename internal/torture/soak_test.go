package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// TestSoak lets a broker do a little of everything for a long time, with retention, and looks whether it uses more and more of anything.
func TestSoak(t *testing.T) {
	t.Parallel()
	if *soak == 0 {
		t.Skip("takes its time: -soak 20m")
	}
	b := testbroker.Start(t, testbroker.Options{Set: []string{
		"store.journal_file=8MiB", "store.checkpoint_bytes=16MiB", "store.checkpoint_interval=5s", "store.segment_bytes=2MiB",
		"store.tail_bytes=8MiB", "store.cache_bytes=8MiB", "retention.bytes=40MiB", "session.v3_expiry=1m",
	}})
	ctx, cancel := context.WithTimeout(context.Background(), *soak)
	defer cancel()
	var wg sync.WaitGroup
	var published, delivered, connected atomic.Int64
	rng := rand.New(rand.NewPCG(*seed, 8))
	for i := range 5 {
		r := rand.New(rand.NewPCG(rng.Uint64(), 1))
		wg.Go(func() { soakPublisher(ctx, b.Addr, i, r, &published) })
		wg.Go(func() { soakConsumer(ctx, b.Addr, i, &delivered, &connected) })
	}
	wg.Go(func() { soakPassers(ctx, b.Addr, &connected) })

	var all []vitals
	every := max(*soak/300, 200*time.Millisecond)
	for ctx.Err() == nil {
		pause(ctx, every)
		all = append(all, measure(t, b))
	}
	wg.Wait()
	all = all[len(all)/10:] // it has warmed up by then
	third := len(all) / 3
	if third == 0 {
		t.Fatal("too short")
	}
	median := func(vs []vitals, of func(vitals) int64) int64 {
		var ns []int64
		for _, v := range vs {
			ns = append(ns, of(v))
		}
		slices.Sort(ns)
		return ns[len(ns)/2]
	}
	for _, x := range []struct {
		name string
		of   func(vitals) int64
		room int64
	}{
		{"KiB of memory", func(v vitals) int64 { return v.rss >> 10 }, 8 << 10},
		{"file descriptors", func(v vitals) int64 { return int64(v.fds) }, 10},
		{"goroutines", func(v vitals) int64 { return int64(v.goroutines) }, 10},
	} {
		first, last := median(all[:third], x.of), median(all[len(all)-third:], x.of)
		t.Logf("%s: %d in the first third, %d in the second, %d in the last", x.name, first, median(all[third:2*third], x.of), last)
		if last > first+first/10+x.room {
			t.Errorf("%s: more and more", x.name)
		}
	}
	t.Logf("%d published, %d delivered, %d connections", published.Load(), delivered.Load(), connected.Load())
}

// soakPublisher publishes some 200 messages a second: stored, retained, delayed, to a queue.
func soakPublisher(ctx context.Context, addr string, i int, rng *rand.Rand, n *atomic.Int64) {
	c := NewClient(NewHistory(), fmt.Sprint("soak-p", i), packet.V5, 1)
	for life := 0; ctx.Err() == nil; life++ {
		c.Addr, c.h = addr, NewHistory() // nobody is going to ask
		if c.Connect() != nil {
			return
		}
		for range 1000 {
			m := &Message{Source: c.ID, Topic: fmt.Sprintf("soak/%d/%d", i, rng.IntN(50)), N: 1, QoS: byte(rng.IntN(3)), Size: rng.IntN(500)}
			switch rng.IntN(20) {
			case 0:
				m.Topic, m.Retain = fmt.Sprint("soak/retained/", rng.IntN(200)), true
			case 1:
				m.Topic = "$queue/soak"
			case 2:
				m.Later, m.Delay, m.QoS = true, time.Second, 1
			}
			if c.Pending() > 200 || c.Publish(m) != nil {
				break
			}
			n.Add(1)
			if pause(ctx, 5*time.Millisecond); ctx.Err() != nil {
				break
			}
		}
		c.Break()
	}
}

// soakConsumer reads a session and a queue, with breaks in which the broker has to keep things.
func soakConsumer(ctx context.Context, addr string, i int, n, connected *atomic.Int64) {
	c := NewClient(NewHistory(), fmt.Sprint("soak-s", i), []packet.Version{packet.V311, packet.V5}[i%2], 1)
	for ctx.Err() == nil {
		h := NewHistory(Reader{Name: c.ID})
		c.Addr, c.h = addr, h
		if c.Connect() != nil {
			return
		}
		connected.Add(1)
		for _, f := range []string{fmt.Sprintf("soak/%d/#", i), "soak/retained/#", "$queue/soak"} {
			if c.Subscribe(f, f, 2) != nil {
				break
			}
		}
		pause(ctx, 3*time.Second)
		n.Add(int64(h.Len()))
		c.Break()
		pause(ctx, time.Second)
	}
}

// soakPassers come once, with ids, sessions and Wills of their own, and do not come back.
func soakPassers(ctx context.Context, addr string, n *atomic.Int64) {
	for i := 0; ctx.Err() == nil; i++ {
		c := NewClient(NewHistory(), fmt.Sprint("passer", i), []packet.Version{packet.V311, packet.V5}[i%2], 1)
		c.Durable = false
		c.NewWill = func() *Message { return &Message{Source: "passer", Topic: "soak/will", N: 1, QoS: 1, Will: true} }
		c.Addr = addr
		if c.Connect() != nil {
			return
		}
		n.Add(1)
		_ = c.Subscribe("soak/0/#", "soak/0/#", 1)
		pause(ctx, 50*time.Millisecond)
		c.Break()
	}
}
