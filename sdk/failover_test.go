package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
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

// Brokers come, go, and are not there yet; nothing that was acknowledged is lost, and nothing goes to one that is gone.
func TestDiscovery(t *testing.T) {
	a, b, c := testbroker.Start(t, testbroker.Options{}), testbroker.Start(t, testbroker.Options{}), testbroker.Start(t, testbroker.Options{})
	c.Kill()
	found := make(chan []string)
	discover := sdk.DiscoveryFunc(func(ctx context.Context, report func([]string)) error {
		report([]string{c.Addr, a.Addr})
		for {
			select {
			case addrs, ok := <-found:
				if !ok {
					found = nil
					return errors.New("the registry is out of order")
				}
				report(addrs)
			case <-ctx.Done():
				return nil
			}
		}
	})
	brokers, err := sdk.DialBrokers(patience(t), discover, sdk.WithClientID("p"), sdk.WithBackoff(5*time.Millisecond, 20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer brokers.Close()
	p := brokers.Producer(sdk.WithTries(3, 100*time.Millisecond), sdk.WithLatencyTable(quickTable))
	sent := map[string][]string{}
	sendSome := func(n int) map[string]int {
		t.Helper()
		at := map[string]int{}
		for range n {
			r, err := p.Send(patience(t), sdk.NewMessage("T", nil))
			if err != nil {
				t.Fatal(err)
			}
			at[r.Broker]++
			sent[r.Broker] = append(sent[r.Broker], r.MessageID)
		}
		return at
	}
	if at := sendSome(10); at[a.Addr] != 10 {
		t.Fatalf("with one of two brokers up: %v", at)
	}
	c.Launch()
	c.WaitListening()
	eventually(t, "the second one is used", func() bool { return sendSome(4)[c.Addr] > 0 })
	found <- []string{a.Addr, b.Addr, c.Addr}
	eventually(t, "the third one is used", func() bool { return sendSome(6)[b.Addr] > 0 })
	found <- []string{b.Addr}
	eventually(t, "the first and second are let go", func() bool { return len(brokers.Clients()) == 1 })
	if at := sendSome(20); at[b.Addr] != 20 {
		t.Fatalf("with one broker left: %v", at)
	}
	close(found) // an error: it is asked again
	eventually(t, "they are found again", func() bool { return len(brokers.Clients()) == 2 })
	if err := p.Flush(patience(t)); err != nil {
		t.Fatal(err)
	}
	for _, x := range []*testbroker.Process{a, b, c} {
		stored := map[string]bool{}
		for _, d := range poll(t, attach(t, dial(t, x.Addr, "c"), "Q", []string{"T"})) {
			stored[d.MessageID()] = true
		}
		for _, id := range sent[x.Addr] {
			if !stored[id] {
				t.Fatalf("%s is lost", id)
			}
		}
	}
}

func TestDialBrokersFails(t *testing.T) {
	b := testbroker.Start(t, testbroker.Options{})
	b.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := sdk.DialBrokers(ctx, sdk.Addresses(b.Addr)); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("nobody is there: %v", err)
	}
	if _, err := sdk.DialBrokers(patience(t), sdk.Addresses("gopher://hole")); err == nil {
		t.Fatal("an address that is none")
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
