package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/internal/testbroker"
)

// bench gets to a broker by every way there is.
func TestBenchTransports(t *testing.T) {
	tr := everyTransport(t)
	for _, name := range transportNames {
		t.Run(name, func(t *testing.T) {
			args := []string{"bench", "live", "drain", "--count", "500", "--json", "--broker", tr.url(name)}
			switch name {
			case "tls", "wss":
				args = append(args, "--cafile", tr.ca.File)
			case "mutual":
				args = append(args, "--cafile", tr.ca.File, "--cert", tr.client.Cert, "--key", tr.client.Key)
			}
			stdout, stderr, code := edgemq(t, "", args...)
			if code != 0 || stderr != "" {
				t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
			}
			var report struct {
				Results []struct {
					Load   string
					Faults map[string]int64
					Runs   []struct{ Received int64 }
				}
			}
			if err := json.Unmarshal([]byte(stdout), &report); err != nil || len(report.Results) != 2 {
				t.Fatalf("%v\n%s", err, stdout)
			}
			for _, r := range report.Results {
				for what, n := range r.Faults {
					if n != 0 {
						t.Errorf("%s: %d %s", r.Load, n, what)
					}
				}
				if r.Runs[0].Received != 500 {
					t.Errorf("%s: %d of 500 received", r.Load, r.Runs[0].Received)
				}
			}
		})
	}
	_, stderr, code := edgemq(t, "", "bench", "paced", "--count", "500", "--broker", tr.url("ws"))
	if code == 0 || !strings.Contains(stderr, "over WebSocket") {
		t.Errorf("paced over WebSocket: exit code %d, %s", code, stderr)
	}
}

// bench starts brokers itself, restarts them in between, and measures them.
func TestBenchStart(t *testing.T) {
	start := testbroker.Binary(t) + " serve --listen 127.0.0.1:{port} --data {dir} --set store.journal_file=8MiB --set admin.listen=off"
	stdout, stderr, code := edgemq(t, "", "bench", "contest", "--count", "2000", "--kill", "--dir", t.TempDir(), "--start", "one="+start, "--start", "two="+start)
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	for _, want := range []string{"contest  one ", "contest  two ", "restarted in", "MiB", "in order"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("there is no %q in\n%s", want, stdout)
		}
	}
}
