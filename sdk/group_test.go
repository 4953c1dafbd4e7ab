package sdk_test

import (
	"context"
	"fmt"
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

func TestPartitionsHaveOneHolder(t *testing.T) { // AT-61, with fewer messages
	b := testbroker.Run(t, testbroker.Options{})
	const partitions, members, n = 6, 3, 1500
	var mu sync.Mutex
	holders := map[int]string{}
	seen := map[string]int{}
	last := map[string]int{}
	takeovers := 0
	member := func(name string, ctx context.Context) error {
		c := dial(t, b.Addr, name)
		from := sdk.FromPartitions(sdk.Partitions{
			Topic: "orders", N: partitions, Group: "g", Member: name,
			OnHold: func(i int, held bool) {
				mu.Lock()
				defer mu.Unlock()
				if held && holders[i] != "" {
					t.Errorf("partition %d: %s holds it and %s takes it", i, holders[i], name)
				}
				if holders[i] = ""; held {
					holders[i] = name
					takeovers++
				}
			},
		})
		return c.PushConsumer(func(_ context.Context, d *sdk.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			var i int
			_, _ = fmt.Sscan(string(d.Body()), &i)
			if prev, ok := last[d.Topic()]; ok && i < prev && seen[string(d.Body())] == 0 {
				t.Errorf("%s: %d after %d", d.Topic(), i, prev)
			}
			last[d.Topic()] = i
			seen[string(d.Body())]++
			return nil
		}).Run(ctx, from)
	}
	var wg sync.WaitGroup
	start := func(name string) context.CancelFunc {
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			if err := member(name, ctx); err != nil {
				t.Error(err)
			}
		})
		return cancel
	}
	var stops []context.CancelFunc
	for i := range members {
		stops = append(stops, start(fmt.Sprint("m", i)))
	}
	p := dial(t, b.Addr, "p").Producer(sdk.WithPartitions(partitions))
	for i := range n {
		m := sdk.NewMessage("orders", fmt.Append(nil, i)).PutHeader(sdk.HeaderShardingKey, sdk.String(fmt.Sprint("user", i%50)))
		if _, err := p.SendAsync(patience(t), m); err != nil {
			t.Fatal(err)
		}
		switch i {
		case 500: // one goes
			stops[1]()
		case 1000: // and another comes
			stops = append(stops, start("m9"))
		}
		if i%50 == 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	eventually(t, "every message is handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(seen) == n })
	for _, stop := range stops {
		stop()
	}
	wg.Wait()
	twice := 0
	for _, k := range seen {
		if k > 1 {
			twice++
		}
	}
	if takeovers < partitions+2 {
		t.Fatalf("partitions were taken %d times: nobody came or went", takeovers)
	}
	t.Logf("%d messages, %d handled twice, partitions taken %d times", n, twice, takeovers)
}
