package sdk_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgemq/edgemq/sdk"
)

// counting is an Observer that counts what has come.
type counting struct {
	sdk.Observer
	came atomic.Int32
}

func (c *counting) Connection(bool)            {}
func (c *counting) Sent(int)                   {}
func (c *counting) Acknowledged(time.Duration) {}
func (c *counting) Received(int)               { c.came.Add(1) }

// What a session has for its client may come before the program has subscribed again: it waits for that, and is not lost.
func TestSessionDeliversBeforeSubscribe(t *testing.T) {
	addr, stop := exampleBroker()
	defer stop()
	ctx := t.Context()
	open := func(opts ...sdk.Option) *sdk.Client {
		t.Helper()
		c, err := sdk.Dial(ctx, addr, append(opts, sdk.WithSession(), sdk.WithClientID("display"))...)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	before := open()
	for _, filter := range []string{"news", "other/#"} {
		if _, err := before.Subscribe(ctx, filter); err != nil {
			t.Fatal(err)
		}
	}
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	sender, err := sdk.Dial(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	const n = 20
	send := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			for _, topic := range []string{"news", "other/x"} {
				if _, err := sender.Producer().Send(ctx, sdk.NewMessage(topic, []byte(fmt.Sprint(topic, i)))); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	send(0, n)
	o := &counting{}
	c := open(sdk.WithObserver(o))
	defer c.Close()
	for deadline := time.Now().Add(20 * time.Second); o.came.Load() < 2*n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d came", o.came.Load())
		}
	}
	for filter, topic := range map[string]string{"other/#": "other/x", "news": "news"} {
		s, err := c.Subscribe(ctx, filter)
		if err != nil {
			t.Fatal(err)
		}
		if filter == "news" {
			send(n, n+1)
		}
		for i := range n {
			m, err := s.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprint(topic, i); string(m.Body()) != want {
				t.Fatalf("got %q, want %q", m.Body(), want)
			}
			if err := m.Ack(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
