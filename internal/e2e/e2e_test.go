// Package e2e tests the real edgemq binary with real clients: mosquitto_pub and mosquitto_sub, both paho
// clients, and plain sockets.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

func TestMain(m *testing.M) { os.Exit(testbroker.Main(m)) }

// versions runs a test with both protocol versions.
func versions(t *testing.T, test func(t *testing.T, v client.Version)) {
	for _, v := range []client.Version{client.V311, client.V5} {
		t.Run("mqtt-"+v.String(), func(t *testing.T) {
			t.Parallel()
			test(t, v)
		})
	}
}

func patience(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testbroker.Patience)
	t.Cleanup(cancel)
	return ctx
}

// dial connects; the client is dropped when the test ends.
func dial(t testing.TB, p *testbroker.Process, o client.Options) client.Client {
	t.Helper()
	o.URL = p.Addr
	c, err := client.Dial(patience(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// clean is a session that ends with its connection; durable is one that does not.
func clean(v client.Version) client.Options { return client.Options{Version: v, CleanStart: true} }

func durable(v client.Version, id string) client.Options {
	return client.Options{Version: v, ID: id, SessionExpiry: 0xFFFFFFFF}
}

func subscribe(t testing.TB, c client.Client, filters ...string) {
	t.Helper()
	for _, f := range filters {
		if err := c.Subscribe(patience(t), client.Subscription{Filter: f, QoS: 1}); err != nil {
			t.Fatal(err)
		}
	}
}

// publish publishes at QoS 1, all under way at once, and waits for every ack.
func publish(t testing.TB, c client.Client, topic string, payloads ...string) {
	t.Helper()
	if err := tryPublish(patience(t), c, topic, payloads); err != nil {
		t.Fatal(err)
	}
}

// background publishes while the test goes on, and closes the channel when all is acknowledged.
func background(t testing.TB, c client.Client, topic string, payloads ...string) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testbroker.Patience)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := tryPublish(ctx, c, topic, payloads); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return done
}

func tryPublish(ctx context.Context, c client.Client, topic string, payloads []string) error {
	var tokens []*client.Token
	for _, payload := range payloads {
		token, err := c.Publish(ctx, client.Message{Topic: topic, Payload: []byte(payload), QoS: 1})
		if err != nil {
			return err
		}
		tokens = append(tokens, token)
	}
	for _, token := range tokens {
		if err := token.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// numbers are the payloads "<prefix><from>" … "<prefix><to>".
func numbers(prefix string, from, to int) []string {
	var out []string
	for i := from; i <= to; i++ {
		out = append(out, fmt.Sprintf("%s%d", prefix, i))
	}
	return out
}

// receive takes n deliveries and acknowledges each.
func receive(t testing.TB, c client.Client, n int) []*client.Delivery {
	t.Helper()
	return deliveries(t, c, n, (*client.Delivery).Ack)
}

// take takes n deliveries and acknowledges none.
func take(t testing.TB, c client.Client, n int) []*client.Delivery {
	t.Helper()
	return deliveries(t, c, n, func(*client.Delivery) error { return nil })
}

func deliveries(t testing.TB, c client.Client, n int, then func(*client.Delivery) error) []*client.Delivery {
	t.Helper()
	ctx := patience(t)
	var out []*client.Delivery
	for len(out) < n {
		d, err := c.Next(ctx)
		if err == nil {
			err = then(d)
		}
		if err != nil {
			t.Fatalf("after %d of %d deliveries (last %.20q): %v", len(out), n, last(out), err)
		}
		out = append(out, d)
	}
	return out
}

func last(ds []*client.Delivery) string {
	if len(ds) == 0 {
		return ""
	}
	return string(ds[len(ds)-1].Payload)
}

func payloads(ds []*client.Delivery) []string {
	var out []string
	for _, d := range ds {
		out = append(out, string(d.Payload))
	}
	return out
}

// expect receives exactly the payloads, in order.
func expect(t testing.TB, c client.Client, want []string) {
	t.Helper()
	compare(t, payloads(receive(t, c, len(want))), want)
}

func compare(t testing.TB, got, want []string) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("message %d is %.40q, want %.40q (%d received, %d wanted)", i, got[i], want[i], len(got), len(want))
		}
	}
	t.Fatalf("%d received, %d wanted", len(got), len(want))
}

// ended waits for the end of a connection and returns the reason.
func ended(t testing.TB, c client.Client) error {
	t.Helper()
	select {
	case <-c.Done():
		return c.Err()
	case <-patience(t).Done():
		t.Fatal("the connection is still there")
		return nil
	}
}

// code is the reason code a broker gave, or -1.
func code(err error) int {
	if r, ok := errors.AsType[*client.RefusedError](err); ok {
		return int(r.Code)
	}
	return -1
}

func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

// settleTime is how long a test looks for something that must not come, where nothing else can tell.
const settleTime = 300 * time.Millisecond

// nothing fails if a delivery comes.
func nothing(t testing.TB, c client.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	if d, err := c.Next(ctx); err == nil {
		t.Fatalf("received %q on %s", d.Payload, d.Topic)
	}
}
