package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// Whatever happens to state.db, the messages come out of the directory: a broker starts on what salvage makes, and what it writes can be
// published again.
func TestSalvage(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	pub := dial(t, p, client.Options{Version: client.V5, ID: "writer", CleanStart: true})
	publish(t, pub, "plant/a", numbers("a", 1, 200)...)
	publish(t, pub, "$queue/jobs", numbers("job", 1, 30)...)
	for _, payload := range []string{"old", "new"} {
		token, err := pub.Publish(patience(t), client.Message{
			Topic: "plant/config", QoS: 2, Retain: true, Payload: []byte(payload + "\xFF"),
			User: []client.Property{{Name: "k", Value: "v"}}, ContentType: "x/y",
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := token.Wait(patience(t)); err != nil {
			t.Fatal(err)
		}
	}
	p.Stop()
	p.Restart()
	publish(t, dial(t, p, client.Options{Version: client.V5, ID: "writer", CleanStart: true}), "plant/b", numbers("b", 1, 20)...)
	p.Kill()
	want, stderr, code := edgemq(t, "", "store", "salvage", p.Dir())
	if code != 0 || len(lines(want)) != 252 || !strings.Contains(stderr, "state=whole messages=252 first=1 last=252") {
		t.Fatalf("exit code %d, %d lines\n%s", code, len(lines(want)), stderr)
	}
	for _, row := range []struct {
		name string
		hurt func(path string) error
	}{
		{"deleted", os.Remove},
		{"cut short", func(path string) error { return os.Truncate(path, 5000) }},
		{"scribbled", func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("scribble"), 4096), 0o600) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			_ = os.Remove(filepath.Join(p.Dir(), "admin.sock")) // cannot be copied
			if err := os.CopyFS(dir, os.DirFS(p.Dir())); err != nil {
				t.Fatal(err)
			}
			if err := row.hurt(filepath.Join(dir, "state.db")); err != nil {
				t.Fatal(err)
			}
			_, stderr, code := edgemq(t, "", "serve", "--data", dir, "--listen", "127.0.0.1:0", "--set", "admin.listen=off")
			if code != 1 || !strings.Contains(stderr, "store salvage") {
				t.Errorf("serve: exit code %d\n%s", code, stderr)
			}
			out, stderr, code := edgemq(t, "", "store", "salvage", dir)
			if code != 0 || out != want || !strings.Contains(stderr, "state=lost messages=252") || !strings.Contains(stderr, "gone: sessions") {
				t.Errorf("salvage: exit code %d, %d lines\n%s", code, len(lines(out)), stderr)
			}
			to := filepath.Join(t.TempDir(), "new")
			out, stderr, code = edgemq(t, "", "store", "salvage", dir, "--to", to)
			if code != 0 || !strings.Contains(out, "retained=1 missing=0") {
				t.Fatalf("salvage: exit code %d\n%s%s", code, out, stderr)
			}
			if out, stderr, code = edgemq(t, "", "store", "verify", to); code != 0 {
				t.Errorf("verify: exit code %d\n%s%s", code, out, stderr)
			}
			n := testbroker.Start(t, testbroker.Options{Dir: to})
			checkSalvaged(t, n)
			n.Stop()

			again := testbroker.Start(t, testbroker.Options{})
			if _, stderr, code := edgemq(t, want, "pub", "--json-lines", "--url", again.Addr); code != 0 {
				t.Fatalf("pub: exit code %d\n%s", code, stderr)
			}
			checkSalvaged(t, again)
		})
	}
}

// checkSalvaged compares what a broker has with what TestSalvage published.
func checkSalvaged(t *testing.T, p *testbroker.Process) {
	t.Helper()
	c := dial(t, p, clean(client.V5))
	subscribe(t, c, "$s/earliest/plant/#")
	want := slices.Concat(numbers("a", 1, 200), []string{"old\xFF", "new\xFF"}, numbers("b", 1, 20))
	got := receive(t, c, len(want))
	compare(t, payloads(got), want)
	d := got[200]
	if d.Topic != "plant/config" || d.ContentType != "x/y" || !slices.Contains(d.User, client.Property{Name: "k", Value: "v"}) ||
		!slices.Contains(d.User, client.Property{Name: "@Producer", Value: "writer"}) && d.User[1].Name == "" {
		t.Errorf("%+v", d.Message)
	}
	queue := dial(t, p, clean(client.V5))
	subscribe(t, queue, "$queue/jobs")
	expect(t, queue, numbers("job", 1, 30))
	retained := dial(t, p, clean(client.V311))
	subscribe(t, retained, "plant/config")
	expect(t, retained, []string{"new\xFF"})
}
