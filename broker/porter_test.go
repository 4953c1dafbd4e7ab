package broker

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/transport"
)

// Whoever stands at the door and says nothing keeps nobody out; of the porters that many such connections needed, few stay.
func TestPorters(t *testing.T) {
	t.Parallel()
	b, stop := run(t, Options{Listeners: []Listener{{Name: "a", Type: transport.Unix, Address: filepath.Join(t.TempDir(), "s")}}}, nil)
	silent := make([]net.Conn, 4*maxResting)
	for i := range silent {
		silent[i] = dial(t, "unix", b.Addr("a"))
	}
	for i := range 3 {
		mustConnect(t, dial(t, "unix", b.Addr("a")), fmt.Sprint("c", i))
	}
	for _, c := range silent {
		_ = c.Close()
	}
	ps := &b.listeners[0].porters
	resting := func() int {
		ps.mu.Lock()
		defer ps.mu.Unlock()
		return len(ps.resting)
	}
	for until := time.Now().Add(patience); resting() < maxResting; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d porters rest", resting())
		}
	}
	mustConnect(t, dial(t, "unix", b.Addr("a")), "last")
	if n := resting(); n > maxResting {
		t.Errorf("%d porters rest", n)
	}
	stop()
	if n := resting(); n != 0 {
		t.Errorf("%d porters rest after the listener was closed", n)
	}
}
