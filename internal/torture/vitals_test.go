package torture

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/testbroker"
)

// vitals are what a broker uses, by its own metrics.
type vitals struct {
	rss                          int64 // bytes
	fds, goroutines, connections int
}

func (v vitals) String() string {
	return fmt.Sprintf("%d MiB, %d file descriptors, %d goroutines, %d connections", v.rss>>20, v.fds, v.goroutines, v.connections)
}

// look at a broker's metrics, over its socket.
func measure(t testing.TB, b *testbroker.Process) vitals {
	t.Helper()
	c := &http.Client{Timeout: testbroker.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(b.Dir(), "admin.sock"))
		},
	}}
	r, err := c.Get("http://localhost/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	values := map[string]float64{}
	for s := bufio.NewScanner(r.Body); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), " "); ok {
			values[name], _ = strconv.ParseFloat(value, 64)
		}
	}
	return vitals{
		rss: int64(values["process_resident_memory_bytes"]), fds: int(values["process_open_fds"]),
		goroutines: int(values["go_goroutines"]), connections: int(values["edgemq_connections"]),
	}
}

// calms waits until a broker uses no more connections, file descriptors and goroutines than before, but for a few.
func calms(t *testing.T, b *testbroker.Process, before vitals) {
	t.Helper()
	deadline := time.Now().Add(testbroker.Patience)
	for {
		now := measure(t, b)
		if now.connections <= before.connections && now.fds <= before.fds+16 && now.goroutines <= before.goroutines+16 {
			t.Logf("before %v; now %v", before, now)
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("before %v; and still %v", before, now)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}
