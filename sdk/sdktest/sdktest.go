// Package sdktest gives tests of programs that use the SDK a broker of their own: a real one, in the test's process,
// with a data directory of its own, gone when the test ends.
package sdktest

import (
	"context"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/sdk"
)

// Broker is a broker in the test's process.
type Broker struct {
	Addr string // host:port, for sdk.Dial

	t testing.TB
	b *testbroker.InProcess
}

// Run starts a broker. Settings are key=value, as for the edgemq command's --set.
func Run(t testing.TB, settings ...string) *Broker {
	t.Helper()
	b := testbroker.Run(t, testbroker.Options{Set: settings})
	return &Broker{Addr: b.Addr, t: t, b: b}
}

// Dial connects a client, which is closed when the test ends.
func (b *Broker) Dial(opts ...sdk.Option) *sdk.Client {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
	defer cancel()
	c, err := sdk.Dial(ctx, b.Addr, opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Stop stops the broker before the test ends.
func (b *Broker) Stop() { b.b.Stop() }
