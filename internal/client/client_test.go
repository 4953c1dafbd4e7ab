package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

func TestMain(m *testing.M) {
	code := testbroker.Main(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func each(t *testing.T, test func(t *testing.T, v client.Version)) {
	for _, v := range []client.Version{client.V311, client.V5} {
		t.Run("mqtt-"+v.String(), func(t *testing.T) { test(t, v) })
	}
}

func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testbroker.Patience)
	t.Cleanup(cancel)
	return ctx
}

func dial(t *testing.T, o client.Options) client.Client {
	t.Helper()
	c, err := client.Dial(patience(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestPublishAndReceive(t *testing.T) {
	each(t, func(t *testing.T, v client.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		c := dial(t, client.Options{URL: b.Addr, Version: v, CleanStart: true})
		if err := c.Subscribe(patience(t), client.Subscription{Filter: "a/#", QoS: 1}); err != nil {
			t.Fatal(err)
		}
		var tokens []*client.Token
		for i := range 500 {
			token, err := c.Publish(patience(t), client.Message{Topic: "a/b", Payload: fmt.Append(nil, i), QoS: byte(i % 2)})
			if err != nil {
				t.Fatal(err)
			}
			tokens = append(tokens, token)
		}
		for _, token := range tokens {
			if err := token.Wait(patience(t)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 500 {
			d, err := c.Next(patience(t))
			if err != nil {
				t.Fatal(err)
			}
			if string(d.Payload) != fmt.Sprint(i) {
				t.Fatalf("delivery %d is %q", i, d.Payload)
			}
			if err := d.Ack(); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Unsubscribe(patience(t), "a/#"); err != nil {
			t.Error(err)
		}
		if c.ID() == "" {
			t.Error("it does not know its client id")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := c.Err(); !errors.Is(err, client.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if _, err := c.Next(patience(t)); !errors.Is(err, client.ErrClosed) {
			t.Errorf("Next after Close: %v", err)
		}
	})
}

// Acks that were given before Close reach the broker, however many deliveries are unread.
func TestCloseLosesNoAcks(t *testing.T) {
	each(t, func(t *testing.T, v client.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		o := client.Options{URL: b.Addr, Version: v, ID: "closer", SessionExpiry: 3600}
		c := dial(t, o)
		if err := c.Subscribe(patience(t), client.Subscription{Filter: "a", QoS: 1}); err != nil {
			t.Fatal(err)
		}
		publisher := dial(t, client.Options{URL: b.Addr, Version: v, CleanStart: true})
		const n = 400
		for i := range n {
			if _, err := publisher.Publish(patience(t), client.Message{Topic: "a", Payload: fmt.Append(nil, i), QoS: 1}); err != nil {
				t.Fatal(err)
			}
		}
		for next := 0; next < n; c = dial(t, o) {
			for range min(7, n-next) {
				d, err := c.Next(patience(t))
				if err != nil {
					t.Fatal(err)
				}
				if string(d.Payload) != fmt.Sprint(next) {
					t.Fatalf("got %q, want %d", d.Payload, next)
				}
				if err := d.Ack(); err != nil {
					t.Fatal(err)
				}
				next++
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestRefused(t *testing.T) {
	each(t, func(t *testing.T, v client.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		c := dial(t, client.Options{URL: b.Addr, Version: v, CleanStart: true})
		err := c.Subscribe(patience(t), client.Subscription{Filter: "$queue/no such name", QoS: 1})
		refused, ok := errors.AsType[*client.RefusedError](err)
		if !ok || refused.Code < 0x80 || !strings.Contains(err.Error(), "$queue/no such name") {
			t.Errorf("got %v", err)
		}
	})
	b := testbroker.Run(t, testbroker.Options{Set: []string{"limits.max_packet=10KiB"}})
	c := dial(t, client.Options{URL: b.Addr, CleanStart: true})
	if _, err := c.Publish(patience(t), client.Message{Topic: "a", QoS: 1, Payload: make([]byte, 20_000)}); err == nil || !strings.Contains(err.Error(), "10240") {
		t.Errorf("a large message: %v", err)
	}
	token, err := c.Publish(patience(t), client.Message{Topic: "$queue/no such name", QoS: 1})
	if err == nil {
		err = token.Wait(patience(t))
	}
	if _, ok := errors.AsType[*client.RefusedError](err); !ok {
		t.Errorf("a bad queue name: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for _, tt := range []struct{ url, want string }{
		{"http://127.0.0.1:1", "only mqtt://, mqtts://, ws://, wss:// and unix:// are known"},
		{"127.0.0.1:1", "connection refused"},
		{"mqtt://127.0.0.1:1", "connection refused"},
	} {
		if _, err := client.Dial(patience(t), client.Options{URL: tt.url}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.url, err)
		}
	}
	b := testbroker.Run(t, testbroker.Options{})
	if _, err := client.Dial(patience(t), client.Options{URL: b.Addr, Version: client.V311}); err == nil {
		t.Error("3.1.1 keeps a session without a client id")
	}
	for s, want := range map[string]client.Version{"5": client.V5, "5.0": client.V5, "v5": client.V5, "3.1.1": client.V311, "311": client.V311} {
		if got, err := client.ParseVersion(s); err != nil || got != want {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	if _, err := client.ParseVersion("3.2"); err == nil {
		t.Error("3.2 is a version")
	}
}
