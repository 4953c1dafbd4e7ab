//go:build unix

package bench

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// A broker that is started here is looked at, restarted with its data, and gone afterwards.
func TestStart(t *testing.T) {
	dir := t.TempDir()
	for _, kill := range []bool{false, true} {
		launcher := Launcher{Command: testbroker.Binary(t) + " serve --listen 127.0.0.1:{port} --data {dir} --set store.journal_file=8MiB --set admin.listen=off", Kill: kill}
		b, err := launcher.Start(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(t.Context(), b.Target("b", client.Options{}), small(t, "contest"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Received != 600 || r.Broken || r.RestartSeconds <= 0 {
			t.Errorf("%+v, %v", r, r.Faults)
		}
		if runtime.GOOS == "linux" && r.BrokerRSS <= 0 {
			t.Error("its memory is not known")
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(b.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("its directory: %v", err)
		}
	}
}

func TestStartFails(t *testing.T) {
	for _, tt := range []struct{ command, want string }{
		{"echo no such luck in {dir} on {port}", "no such luck in"},
		{"/no/such/broker {port}", "not found"},
	} {
		dir := t.TempDir()
		_, err := Launcher{Command: tt.command}.Start(t.Context(), dir)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.command, err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s leaves %v", tt.command, left)
		}
	}
}
