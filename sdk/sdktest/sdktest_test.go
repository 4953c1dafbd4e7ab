package sdktest_test

import (
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/sdk"
	"github.com/edgemq/edgemq/sdk/sdktest"
)

func TestMain(m *testing.M) { os.Exit(testbroker.Main(leakless{m})) }

type leakless struct{ m *testing.M }

func (l leakless) Run() int {
	if code := l.m.Run(); code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		os.Stderr.WriteString("goroutines left behind: " + err.Error() + "\n")
		return 1
	}
	return 0
}

func TestBroker(t *testing.T) {
	b := sdktest.Run(t, "limits.max_packet=8KiB")
	c := b.Dial(sdk.WithClientID("c"), sdk.WithBackoff(time.Millisecond, 5*time.Millisecond))
	p := c.Producer()
	if r, err := p.Send(t.Context(), sdk.NewMessage("T", []byte("small"))); err != nil || r.Offset != 1 {
		t.Fatal(r, err)
	}
	if _, err := p.Send(t.Context(), sdk.NewMessage("T", make([]byte, 10_000))); err == nil {
		t.Fatal("the setting has no effect")
	}
	if c.ID() != "c" {
		t.Fatal(c.ID())
	}
	b.Stop()
	if _, err := sdk.Dial(t.Context(), b.Addr); err == nil {
		t.Fatal("it is still there")
	}
}
