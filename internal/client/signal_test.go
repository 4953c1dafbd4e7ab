//go:build unix

package client_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// A publish whose answer never came does not say that it did.
func TestLostConnection(t *testing.T) {
	each(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		c := dial(t, client.Options{URL: p.Addr, Version: v, CleanStart: true})
		p.Signal(syscall.SIGSTOP) // it answers nothing any more
		token, err := c.Publish(patience(t), client.Message{Topic: "a", QoS: 1})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-token.Done():
			t.Fatalf("answered: %v", token.Wait(patience(t)))
		case <-time.After(100 * time.Millisecond):
		}
		p.Kill()
		if err := token.Wait(patience(t)); !errors.Is(err, client.ErrLost) {
			t.Errorf("the token says %v", err)
		}
		<-c.Done()
		if err := c.Err(); !errors.Is(err, client.ErrLost) {
			t.Errorf("Err says %v", err)
		}
		if _, err := c.Publish(patience(t), client.Message{Topic: "a", QoS: 1}); !errors.Is(err, client.ErrLost) {
			t.Errorf("the next publish says %v", err)
		}
		if err := c.Subscribe(patience(t), client.Subscription{Filter: "a"}); err == nil {
			t.Error("a subscription succeeds")
		}
		if _, err := c.Next(patience(t)); !errors.Is(err, client.ErrLost) {
			t.Errorf("Next says %v", err)
		}
	})
}
