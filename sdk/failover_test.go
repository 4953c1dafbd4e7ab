package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/sdk"
)

// quickTable avoids a broker that failed for a short while only.
var quickTable = &sdk.LatencyTable{
	Latency: []time.Duration{time.Hour}, Avoid: []time.Duration{300 * time.Millisecond}, Failure: time.Hour,
}

func TestFailover(t *testing.T) { // AT-71
	a, b := testbroker.Start(t, testbroker.Options{}), testbroker.Start(t, testbroker.Options{})
	quick := sdk.WithBackoff(5*time.Millisecond, 50*time.Millisecond)
	p := sdk.NewProducer([]*sdk.Client{dial(t, a.Addr, "p", quick), dial(t, b.Addr, "p", quick)},
		sdk.WithTries(3, 300*time.Millisecond), sdk.WithLatencyTable(quickTable))
	const n = 400
	at := map[string]int{}
	var slowest time.Duration
	for i := range n {
		switch i {
		case 100:
			a.Kill()
		case 250:
			a.Restart()
			time.Sleep(350 * time.Millisecond) // a is avoided no longer
		}
		start := time.Now()
		r, err := p.Send(patience(t), sdk.NewMessage("T", fmt.Append(nil, i)).PutHeader(sdk.HeaderMessageID, sdk.String(fmt.Sprint("id", i))))
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		slowest = max(slowest, time.Since(start))
		if i > 300 {
			at[r.Broker]++
		}
	}
	if slowest > 2*time.Second {
		t.Fatalf("a Send took %v", slowest)
	}
	if at[a.Addr] == 0 || at[b.Addr] == 0 {
		t.Fatalf("after the restart messages went to %v", at)
	}
	seen := map[string]int{}
	for i, broker := range []*testbroker.Process{a, b} {
		last := -1
		for _, d := range poll(t, attach(t, dial(t, broker.Addr, fmt.Sprint("c", i)), "Q", []string{"T"})) {
			var k int
			_, _ = fmt.Sscan(string(d.Body()), &k)
			if k <= last {
				t.Fatalf("broker %d: %d after %d", i, k, last)
			}
			last = k
			seen[d.MessageID()]++
		}
	}
	for i := range n {
		if seen[fmt.Sprint("id", i)] == 0 {
			t.Fatalf("message %d is lost", i)
		}
	}
}

func TestHungBroker(t *testing.T) { // AT-73, AT-74
	a, b := testbroker.Run(t, testbroker.Options{}), testbroker.Run(t, testbroker.Options{})
	hung := newProxy(t, a.Addr)
	p := sdk.NewProducer([]*sdk.Client{dial(t, hung.Addr, "p"), dial(t, b.Addr, "p")}, sdk.WithTries(3, 100*time.Millisecond))
	hung.Hold() // it accepts and pings, as far as TCP goes, and never acknowledges
	for i := range 20 {
		start := time.Now()
		r, err := p.Send(patience(t), sdk.NewMessage("T", fmt.Append(nil, i)))
		if err != nil || r.Broker != b.Addr {
			t.Fatalf("message %d: %+v, %v", i, r, err)
		}
		if took := time.Since(start); i > 1 && took > 90*time.Millisecond {
			t.Fatalf("message %d took %v: the hung broker was tried again", i, took)
		}
	}
	b.Stop() // now all are avoided, and still tried
	hung.Release()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var err error
	for range 20 {
		if _, err = p.Send(ctx, sdk.NewMessage("T", nil)); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("with all brokers avoided: %v", err)
	}
}

func TestKeyedMessagesDoNotFailOver(t *testing.T) {
	a, b := testbroker.Start(t, testbroker.Options{}), testbroker.Start(t, testbroker.Options{})
	p := sdk.NewProducer([]*sdk.Client{dial(t, a.Addr, "p"), dial(t, b.Addr, "p")}, sdk.WithTries(3, 100*time.Millisecond))
	m := sdk.NewMessage("T", nil).PutHeader(sdk.HeaderShardingKey, sdk.String("k"))
	r, err := p.Send(patience(t), m)
	if err != nil {
		t.Fatal(err)
	}
	home := a
	if r.Broker == b.Addr {
		home = b
	}
	home.Kill()
	if r, err := p.Send(patience(t), m); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("sent to %s: %v", r.Broker, err)
	}
	send(t, p, sdk.NewMessage("T", nil)) // one without a key goes where it can
}
