package sdk_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/sdk"
)

func patience(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testbroker.Patience)
	t.Cleanup(cancel)
	return ctx
}

// testLog writes a client's log to the test's.
type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func dial(t testing.TB, addr, id string, opts ...sdk.Option) *sdk.Client {
	t.Helper()
	opts = append([]sdk.Option{
		sdk.WithClientID(id),
		sdk.WithLogger(slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	}, opts...)
	c, err := sdk.Dial(patience(t), addr, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func attach(t testing.TB, c *sdk.Client, queue string, topics []string, opts ...sdk.ConsumerOption) *sdk.PullConsumer {
	t.Helper()
	p := c.PullConsumer(opts...)
	if err := p.AttachQueue(patience(t), queue, topics...); err != nil {
		t.Fatal(err)
	}
	return p
}

func send(t testing.TB, p *sdk.Producer, ms ...*sdk.Message) {
	t.Helper()
	for _, m := range ms {
		if _, err := p.Send(patience(t), m); err != nil {
			t.Fatal(err)
		}
	}
}

// sendTo sends bodies to a topic, or to a queue given as queue:<name>, and waits for all.
func sendTo(t testing.TB, p *sdk.Producer, to string, bodies ...string) {
	t.Helper()
	ctx := patience(t)
	for _, b := range bodies {
		m := sdk.NewMessage(to, []byte(b))
		if q, ok := strings.CutPrefix(to, "queue:"); ok {
			m = sdk.NewQueueMessage(q, []byte(b))
		}
		if _, err := p.SendAsync(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

// poll polls until nil and returns all.
func poll(t testing.TB, c *sdk.PullConsumer) []*sdk.Delivery {
	t.Helper()
	var all []*sdk.Delivery
	for {
		d, err := c.Poll(patience(t))
		if err != nil {
			t.Fatalf("after %d messages: %v", len(all), err)
		}
		if d == nil {
			return all
		}
		all = append(all, d)
	}
}

func bodies(ds []*sdk.Delivery) []string {
	var all []string
	for _, d := range ds {
		all = append(all, string(d.Body()))
	}
	return all
}

// numbers are "<prefix>0" to "<prefix>n-1".
func numbers(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = prefix + fmt.Sprint(i)
	}
	return all
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(testbroker.Patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("in %v not: %s", testbroker.Patience, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// long reports whether tests may take minutes: EDGEMQTEST_LONG=1.
func long() bool { return os.Getenv("EDGEMQTEST_LONG") != "" }
