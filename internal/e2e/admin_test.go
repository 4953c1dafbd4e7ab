package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// TestManagedFromTheShell has a queue's whole life in the hands of the command line, with a consumer attached, and a crash.
func TestManagedFromTheShell(t *testing.T) {
	dir := t.TempDir()
	p := testbroker.Start(t, testbroker.Options{Dir: dir})
	run := func(args ...string) string {
		t.Helper()
		out, errs, code := edgemq(t, "", append(args, "--data", dir)...)
		if code != 0 {
			t.Fatalf("edgemq %q: %d %s", args, code, errs)
		}
		return out
	}
	pub := dial(t, p, clean(client.V5))
	publish(t, pub, "shop/a", numbers("", 1, 10)...)
	run("queue", "create", "orders", "shop/#")
	c := dial(t, p, clean(client.V5))
	subscribe(t, c, "$queue/orders")
	expect(t, c, numbers("", 1, 10))

	run("queue", "reset", "orders", "offset:8")
	expect(t, c, numbers("", 8, 10))
	run("queue", "pause", "orders")
	publish(t, pub, "shop/b", numbers("", 11, 15)...)
	var qs []struct {
		Depth  int64
		Paused bool
	}
	list := func() {
		t.Helper()
		if err := json.Unmarshal([]byte(run("queue", "ls", "--json")), &qs); err != nil || len(qs) == 0 {
			t.Fatal(qs, err)
		}
	}
	list()
	if qs[0].Depth != 5 || !qs[0].Paused {
		t.Fatalf("%+v", qs)
	}
	p.Kill()
	p.Restart()
	list()
	if qs[0].Depth < 5 || !qs[0].Paused { // what was acknowledged last may come again
		t.Fatalf("after a crash: %+v", qs)
	}
	run("queue", "resume", "orders")
	run("queue", "reset", "orders", "offset:11")
	c = dial(t, p, clean(client.V5))
	subscribe(t, c, "$queue/orders")
	expect(t, c, numbers("", 11, 15))

	if out := run("topic", "stat", "shop/b"); !strings.Contains(out, "offset 11") || !strings.Contains(out, "offset 15") {
		t.Errorf("topic stat: %s", out)
	}
	if out := run("message", "get", "--offset", "12"); !strings.Contains(out, "shop/b") {
		t.Errorf("message get: %s", out)
	}
	if out := run("status"); !strings.Contains(out, "serving") || !strings.Contains(out, "always") {
		t.Errorf("status: %s", out)
	}
	run("queue", "delete", "orders")
	if _, errs, code := edgemq(t, "", "queue", "info", "orders", "--data", dir); code != 4 || !strings.Contains(errs, "no such queue") {
		t.Errorf("a queue that is deleted: %d %s", code, errs)
	}
	p.Stop()
	if _, errs, code := edgemq(t, "", "status", "--data", dir, "--set", "admin.listen=127.0.0.1:1"); code != 3 || !strings.Contains(errs, "is it running?") {
		t.Errorf("a broker that is gone: %d %s", code, errs)
	}
}

// TestSys: statistics come as retained messages and then as they change; # does not see them, nobody may publish them, and
// nothing of them is kept.
func TestSys(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{Set: []string{"sys.interval=100ms"}})
		all := dial(t, p, clean(v))
		subscribe(t, all, "#", "+/broker/uptime")
		for { // the first values come with the start, perhaps a little after the listener is open
			early := dial(t, p, clean(v))
			subscribe(t, early, "$SYS/broker/publish/messages/received")
			if receive(t, early, 1)[0].Retain {
				break
			}
		}
		c := dial(t, p, clean(v))
		subscribe(t, c, "$SYS/broker/store/sync", "$SYS/broker/publish/messages/received")
		seen := map[string]string{}
		for range 2 {
			m := receive(t, c, 1)[0]
			if !m.Retain {
				t.Errorf("%s is not retained", m.Topic)
			}
			seen[m.Topic] = string(m.Payload)
		}
		if seen["$SYS/broker/store/sync"] != "always" {
			t.Errorf("%v", seen)
		}
		publish(t, dial(t, p, clean(v)), "a", numbers("", 1, 3)...)
		for {
			m := receive(t, c, 1)[0]
			if m.Topic != "$SYS/broker/publish/messages/received" || m.Retain {
				t.Fatalf("%s, retain %v", m.Topic, m.Retain)
			}
			if string(m.Payload) == "3" {
				break
			}
		}
		expect(t, all, numbers("", 1, 3)) // and nothing else
		p.Stop()
		if dump, _, _ := edgemq(t, "", "store", "dump", p.Dir()); strings.Contains(dump, "$SYS") {
			t.Error(fmt.Sprint("statistics are kept: ", dump))
		}
	})
}
