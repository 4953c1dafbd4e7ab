package sdk_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/sdk"
)

func metricsText(m *sdk.Metrics) string {
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

// fencing is the log of who holds which partition, and what they are given.
type fencing struct {
	t *testing.T

	mu        sync.Mutex
	holders   map[int]string
	seen      []uint8 // how often each message was handled
	last      map[string]int
	handled   int
	twice     int
	takeovers int
}

// member consumes as a member of the group until ctx ends.
func (f *fencing) member(ctx context.Context, addr, name string, partitions int) error {
	c, err := sdk.Dial(ctx, addr, sdk.WithClientID(name), sdk.WithBackoff(5*time.Millisecond, 50*time.Millisecond))
	if err != nil {
		if ctx.Err() != nil {
			return nil // sent away at once
		}
		return err
	}
	defer c.Close()
	from := sdk.FromPartitions(sdk.Partitions{
		Topic: "orders", N: partitions, Group: "g", Member: name,
		OnHold: func(i int, held bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			switch was := f.holders[i]; {
			case held && was != "":
				f.t.Errorf("partition %d: %s holds it and %s takes it", i, was, name)
			case held:
				f.takeovers++
				f.holders[i] = name
			case was != name:
				f.t.Errorf("partition %d: %s lets go of it and %s holds it", i, name, was)
			default:
				f.holders[i] = ""
			}
		},
	})
	return c.PushConsumer(func(_ context.Context, d *sdk.Delivery) error {
		var partition, n int
		_, _ = fmt.Sscanf(d.Topic(), "orders/%d", &partition)
		_, _ = fmt.Sscan(string(d.Body()), &n)
		f.mu.Lock()
		defer f.mu.Unlock()
		if h := f.holders[partition]; h != name {
			f.t.Errorf("%s: %s is given %d, and the holder is %q", d.Topic(), name, n, h)
		}
		if f.seen[n]++; f.seen[n] == 1 {
			f.handled++
			if last, ok := f.last[d.Topic()]; ok && n < last {
				f.t.Errorf("%s: %d after %d", d.Topic(), n, last)
			}
			f.last[d.Topic()] = n
		} else {
			f.twice++
		}
		return nil
	}).Run(ctx, from)
}

func TestPartitionsHaveOneHolder(t *testing.T) { // AT-61: all of it with EDGEMQTEST_LONG
	t.Parallel()
	partitions, n, every, lasts := 6, 6000, 150*time.Millisecond, 1500*time.Millisecond
	if long() {
		partitions, n, every, lasts = 16, 1_000_000, time.Second, time.Minute
	}
	b := testbroker.Run(t, testbroker.Options{})
	f := &fencing{t: t, holders: map[int]string{}, last: map[string]int{}, seen: make([]uint8, n)}
	var wg sync.WaitGroup
	join := func(name string) (leave func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		wg.Go(func() {
			defer close(done)
			if err := f.member(ctx, b.Addr, name, partitions); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		return func() { cancel(); <-done }
	}
	members := map[string]func(){"m0": join("m0"), "m1": join("m1"), "m2": join("m2")}
	p := dial(t, b.Addr, "p").Producer(sdk.WithPartitions(partitions))
	wg.Go(func() {
		start := time.Now()
		for i := range n {
			m := sdk.NewMessage("orders", fmt.Append(nil, i)).PutHeader(sdk.HeaderShardingKey, sdk.String(fmt.Sprint("user", i%500)))
			if _, err := p.SendAsync(t.Context(), m); err != nil {
				t.Errorf("send: %v", err)
				return
			}
			if due := start.Add(lasts * time.Duration(i) / time.Duration(n)); i%100 == 0 {
				time.Sleep(time.Until(due)) // over all the time in which members come and go
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Errorf("flush: %v", err)
		}
	})
	changes := 0
	for end := time.Now().Add(lasts); (time.Now().Before(end) || changes < 4) && !t.Failed(); changes++ {
		time.Sleep(every)
		name := fmt.Sprint("m", rand.IntN(6))
		if leave := members[name]; leave == nil {
			members[name] = join(name)
		} else if len(members) > 1 {
			leave()
			delete(members, name)
		}
	}
	eventually(t, "every message is handled", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.handled == n || t.Failed()
	})
	for _, leave := range members {
		leave()
	}
	wg.Wait()
	if f.takeovers <= partitions {
		t.Fatalf("partitions were taken %d times in %d changes: nobody came or went", f.takeovers, changes)
	}
	const window = 1024 // session.window
	if most := f.takeovers * window; f.twice > most {
		t.Fatalf("%d messages were handled twice; %d handovers allow for %d", f.twice, f.takeovers, most)
	}
	t.Logf("%d messages, %d handled twice; %d times somebody came or went, partitions were taken %d times", n, f.twice, changes, f.takeovers)
}
