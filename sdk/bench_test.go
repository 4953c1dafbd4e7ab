package sdk_test

import (
	"context"
	"fmt"
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

// BenchmarkSend sends b.N messages of 128 bytes at QoS 1, many under way at once, until all are acknowledged.
func BenchmarkSend(b *testing.B) {
	body := make([]byte, 128)
	b.Run("sdk", func(b *testing.B) {
		p := dial(b, testbroker.Start(b, testbroker.Options{}).Addr, "p").Producer()
		b.ReportAllocs()
		b.ResetTimer()
		for range b.N {
			if _, err := p.SendAsync(context.Background(), sdk.NewMessage("T", body).PutProperty("k", sdk.Int32(1))); err != nil {
				b.Fatal(err)
			}
		}
		if err := p.Flush(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	})
	b.Run("paho", func(b *testing.B) {
		c := bare(b, testbroker.Start(b, testbroker.Options{}).Addr, "p", nil)
		b.ReportAllocs()
		b.ResetTimer()
		window := make(chan mqtt.Token, 1024)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for t := range window {
				t.Wait()
			}
		}()
		for range b.N {
			window <- c.Publish("T", 1, false, body)
		}
		close(window)
		<-done
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	})
}

// BenchmarkSendOne waits for each message, as a careful caller does.
func BenchmarkSendOne(b *testing.B) {
	body := make([]byte, 128)
	b.Run("sdk", func(b *testing.B) {
		p := dial(b, testbroker.Start(b, testbroker.Options{}).Addr, "p").Producer()
		b.ResetTimer()
		for range b.N {
			if _, err := p.Send(context.Background(), sdk.NewMessage("T", body)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("paho", func(b *testing.B) {
		c := bare(b, testbroker.Start(b, testbroker.Options{}).Addr, "p", nil)
		b.ResetTimer()
		for range b.N {
			if t := c.Publish("T", 1, false, body); t.Wait() && t.Error() != nil {
				b.Fatal(t.Error())
			}
		}
	})
}

// BenchmarkPoll takes b.N stored messages from a queue, acknowledging each.
func BenchmarkPoll(b *testing.B) {
	fill := func(b *testing.B) string {
		addr := testbroker.Start(b, testbroker.Options{}).Addr
		p := dial(b, addr, "p").Producer()
		for i := range b.N {
			if _, err := p.SendAsync(context.Background(), sdk.NewQueueMessage("Q", fmt.Appendf(nil, "%128d", i)).PutProperty("k", sdk.Int32(1))); err != nil {
				b.Fatal(err)
			}
		}
		if err := p.Flush(context.Background()); err != nil {
			b.Fatal(err)
		}
		return addr
	}
	b.Run("sdk", func(b *testing.B) {
		c := dial(b, fill(b), "c")
		b.ReportAllocs()
		b.ResetTimer()
		q := attach(b, c, "Q", nil)
		n := 0
		for {
			d, err := q.Poll(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			if d == nil {
				break
			}
			n++
		}
		if n != b.N {
			b.Fatalf("%d of %d", n, b.N)
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	})
	b.Run("paho", func(b *testing.B) {
		addr := fill(b)
		n, done := 0, make(chan struct{})
		c := bare(b, addr, "c", func(mqtt.Client, mqtt.Message) {
			if n++; n == b.N {
				close(done)
			}
		})
		b.ReportAllocs()
		b.ResetTimer()
		if t := c.SubscribeMultiple(map[string]byte{"$queue/Q": 1}, nil); t.Wait() && t.Error() != nil {
			b.Fatal(t.Error())
		}
		select {
		case <-done:
		case <-time.After(5 * time.Minute):
			b.Fatalf("%d of %d", n, b.N)
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	})
}
