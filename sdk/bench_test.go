package sdk_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/sdk"
)

// bare is paho.mqtt.golang as one would use it without the SDK.
func bare(b *testing.B, addr, id string, handle mqtt.MessageHandler) mqtt.Client {
	b.Helper()
	c := mqtt.NewClient(mqtt.NewClientOptions().AddBroker("tcp://" + addr).SetClientID(id).SetDefaultPublishHandler(handle))
	if t := c.Connect(); t.Wait() && t.Error() != nil {
		b.Fatal(t.Error())
	}
	b.Cleanup(func() { c.Disconnect(100) })
	return c
}

var body128 = make([]byte, 128)

// contender is one side of a comparison: it deals with n messages at a broker and says how long that took.
type contender func(b *testing.B, addr string, n int) time.Duration

// BenchmarkBesidePaho runs the SDK, everything switched on, and bare paho against the same broker by turns, so that a machine that is
// busy with something else is so for both, and reports medians:
//
//	go test -run '^$' -bench BesidePaho -benchtime 7x ./sdk
func BenchmarkBesidePaho(b *testing.B) {
	for _, c := range []struct {
		name      string
		n         int
		sdk, paho contender
	}{
		{"send", 2000, sdkSend, pahoSend},
		{"send-async", 100_000, sdkSendAsync, pahoSendAsync},
		{"poll", 100_000, sdkPoll, pahoPoll},
	} {
		b.Run(c.name, func(b *testing.B) {
			addr := testbroker.Start(b, testbroker.Options{}).Addr
			var sdks, pahos []float64
			for b.Loop() {
				sdks = append(sdks, float64(c.n)/c.sdk(b, addr, c.n).Seconds())
				pahos = append(pahos, float64(c.n)/c.paho(b, addr, c.n).Seconds())
			}
			median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
			b.ReportMetric(median(sdks), "sdk-msg/s")
			b.ReportMetric(median(pahos), "paho-msg/s")
			b.ReportMetric(median(sdks)/median(pahos), "sdk/paho")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// everything is a client with all that can be switched on.
func everything(b *testing.B, addr string) *sdk.Client {
	b.Helper()
	return dial(b, addr, nextID(), sdk.WithObserver(sdk.NewMetrics()), sdk.WithStateFunc(func(sdk.State) {}))
}

var benchID atomic.Int64

func nextID() string { return fmt.Sprint("bench-", benchID.Add(1)) }

// sdkSend waits for each message, as a careful caller does.
func sdkSend(b *testing.B, addr string, n int) time.Duration {
	c := everything(b, addr)
	defer c.Close()
	p := c.Producer()
	start := time.Now()
	for range n {
		if _, err := p.Send(context.Background(), sdk.NewMessage("T", body128).PutProperty("k", sdk.Int32(1))); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start)
}

func pahoSend(b *testing.B, addr string, n int) time.Duration {
	c := bare(b, addr, nextID(), nil)
	start := time.Now()
	for range n {
		if t := c.Publish("T", 1, false, body128); t.Wait() && t.Error() != nil {
			b.Fatal(t.Error())
		}
	}
	return time.Since(start)
}

// sdkSendAsync has many messages under way at once, until all are acknowledged.
func sdkSendAsync(b *testing.B, addr string, n int) time.Duration {
	c := everything(b, addr)
	defer c.Close()
	p := c.Producer()
	start := time.Now()
	for range n {
		if _, err := p.SendAsync(context.Background(), sdk.NewMessage("T", body128).PutProperty("k", sdk.Int32(1))); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.Flush(context.Background()); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}

func pahoSendAsync(b *testing.B, addr string, n int) time.Duration {
	c := bare(b, addr, nextID(), nil)
	start := time.Now()
	window := make(chan mqtt.Token, 1024)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for t := range window {
			t.Wait()
		}
	}()
	for range n {
		window <- c.Publish("T", 1, false, body128)
	}
	close(window)
	<-done
	return time.Since(start)
}

// fill stores n messages of 128 bytes, with a property, in a queue.
func fill(b *testing.B, addr, queue string, n int) {
	c := everything(b, addr)
	defer c.Close()
	p := c.Producer()
	for i := range n {
		if _, err := p.SendAsync(context.Background(), sdk.NewQueueMessage(queue, fmt.Appendf(nil, "%128d", i)).PutProperty("k", sdk.Int32(1))); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.Flush(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// sdkPoll takes n stored messages from a queue, acknowledging each.
func sdkPoll(b *testing.B, addr string, n int) time.Duration {
	queue := nextID()
	fill(b, addr, queue, n)
	c := everything(b, addr)
	defer c.Close()
	start := time.Now()
	q := attach(b, c, queue, nil)
	for got := 0; ; got++ {
		d, err := q.Poll(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		if d == nil {
			if got != n {
				b.Fatalf("%d of %d", got, n)
			}
			return time.Since(start)
		}
	}
}

func pahoPoll(b *testing.B, addr string, n int) time.Duration {
	queue := nextID()
	fill(b, addr, queue, n)
	got, done := 0, make(chan struct{})
	c := bare(b, addr, nextID(), func(mqtt.Client, mqtt.Message) {
		if got++; got == n {
			close(done)
		}
	})
	start := time.Now()
	if t := c.SubscribeMultiple(map[string]byte{"$queue/" + queue: 1}, nil); t.Wait() && t.Error() != nil {
		b.Fatal(t.Error())
	}
	select {
	case <-done:
		return time.Since(start)
	case <-time.After(5 * time.Minute):
		b.Fatalf("%d of %d", got, n)
		return 0
	}
}

// BenchmarkSend, BenchmarkSendAsync and BenchmarkPoll are the SDK alone, for profiles and allocations.
func BenchmarkSend(b *testing.B) {
	addr := testbroker.Start(b, testbroker.Options{}).Addr
	b.ReportAllocs()
	b.ResetTimer()
	sdkSend(b, addr, b.N)
}

func BenchmarkSendAsync(b *testing.B) {
	addr := testbroker.Start(b, testbroker.Options{}).Addr
	b.ReportAllocs()
	b.ResetTimer()
	sdkSendAsync(b, addr, b.N)
}

func BenchmarkPoll(b *testing.B) {
	addr := testbroker.Start(b, testbroker.Options{}).Addr
	b.ReportAllocs()
	b.ResetTimer()
	took := sdkPoll(b, addr, b.N)
	b.ReportMetric(float64(b.N)/took.Seconds(), "msg/s")
}
