package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// edgemq runs the binary and returns what it wrote and its exit code.
func edgemq(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(patience(t), testbroker.Binary(t), args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return out.String(), errs.String(), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), 0
}

func TestCommandLine(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("store:\n  sinc: always\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		stdout string // begins with
		stderr string // contains
	}{
		{"version", []string{"version"}, 0, "edgemq ", ""},
		{"help", []string{"--help"}, 0, "edgemq is an MQTT", ""},
		{"unknown command", []string{"serv"}, 2, "", `unknown command "serv"`},
		{"unknown command below another", []string{"queue", "purg", "orders"}, 2, "", `unknown command "purg" for "edgemq queue"; is purge meant?; see edgemq queue --help`},
		{"a command with others below", []string{"queue"}, 0, "Look at and manage", ""},
		{"help of a command with arguments", []string{"queue", "purge", "orders", "--help"}, 0, "Skip all", ""},
		{"unknown flag", []string{"serve", "--lisen", "x"}, 2, "", "unknown flag: --lisen; see edgemq serve --help"},
		{"config check", []string{"config", "check", "../../config.yaml"}, 0, "ok\n", ""},
		{"config check, bad", []string{"config", "check", bad}, 2, "", "bad.yaml:2: store.sinc: there is no such key; is store.sync meant?"},
		{"config print", []string{"config", "print", "--set", "store.sync=none"}, 0, "listeners:\n", ""},
		{"serve, bad file", []string{"serve", "--config", bad}, 2, "", "store.sinc"},
		{"serve, no file", []string{"serve", "--config", filepath.Join(dir, "none.yaml")}, 2, "", "no such file"},
		{"serve for everybody", []string{"serve", "--data", dir, "--listen", "0.0.0.0:0"}, 2, "", "set auth.users_file"},
		{"pub without topic", []string{"pub", "-m", "x"}, 2, "", "[topic json-lines]"},
		{"pub of JSON, with its own QoS", []string{"pub", "--json-lines", "-q", "1"}, 2, "", "[json-lines qos]"},
		{"sub for a day", []string{"sub", "-t", "a", "--timeout", "1d", "--keep-alive", "1d12h", "--port", "1"}, 3, "", "connection refused"},
		{"sub for less than nothing", []string{"sub", "-t", "a", "--timeout", "-1s"}, 2, "", "--timeout"},
		{"move nothing", []string{"queue", "move", "a", "b", "-n", "0"}, 2, "", "--number: 0 is no number of messages"},
		{"redrive nothing", []string{"queue", "redrive", "a", "--number", "0"}, 2, "", "--number: 0 is no number of messages"},
		{"salvage into itself", []string{"store", "salvage", dir, "--to", filepath.Join(dir, "new")}, 1, "", "is no data directory"},
		{"pub to a filter", []string{"pub", "-t", "a/#", "-m", "x"}, 2, "", "# and + are for subscribing"},
		{"pub to nobody", []string{"pub", "-t", "a", "-m", "x", "--port", "1"}, 3, "", "connection refused"},
		{"pub -h of mosquitto", []string{"pub", "-h", "localhost", "-t", "a", "-m", "x"}, 2, "", "--host localhost"},
		{"pub -h", []string{"pub", "-h"}, 0, "Publish one message", ""},
		{"pub, two passwords", []string{"pub", "-t", "a", "-m", "x", "--password", "a", "--password-file", bad}, 2, "", "[password password-file]"},
		{"pub, no password file", []string{"pub", "-t", "a", "-m", "x", "--password-file", filepath.Join(dir, "none")}, 2, "", "--password-file: open "},
		{"serve elsewhere", []string{"serve", "--data", filepath.Join(dir, "data"), "--listen", "192.0.2.1:1883", "--set", "auth.anonymous=true", "--set", "admin.listen=off"}, 1, "", "this machine has no such address"},
		{"sub without filter", []string{"sub"}, 2, "", "topic queue"},
		{"sub, a session without id", []string{"sub", "-t", "a", "--session-expiry", "1h"}, 2, "", "set that too"},
		{"store of nothing", []string{"store", "stat", filepath.Join(dir, "none")}, 1, "", "no such file"},
		{"store of something else", []string{"store", "verify", dir}, 1, "", "is no data directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdout, stderr, code := edgemq(t, "", tt.args...)
			if code != tt.code || !strings.HasPrefix(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("exit code %d (want %d)\nstdout %s\nstderr %s", code, tt.code, stdout, stderr)
			}
		})
	}
}

func TestPubAndSub(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		at := []string{"--url", "mqtt://" + p.Addr, "--mqtt", v.String()}
		run := func(stdin string, args ...string) string {
			t.Helper()
			stdout, stderr, code := edgemq(t, stdin, append(args, at...)...)
			if code != 0 {
				t.Fatalf("%q: exit code %d\n%s", args, code, stderr)
			}
			return stdout
		}
		in := strings.Join(numbers("line ", 1, 500), "\n") + "\n"
		run(in, "pub", "-t", "lines", "--stdin-lines")
		run("", "pub", "-t", "$queue/q", "-m", "direct")
		out := run("", "sub", "--queue", "q", "--bind", "lines", "--count", "200")
		out += run("", "sub", "--queue", "q", "--count", "301")
		compare(t, lines(out), append(lines(in), "direct"))

		session := []string{"sub", "-t", "s/+", "--id", "cli", "--session-expiry", "never"}
		_, _, code := edgemq(t, "", append(append(session, "--count", "1", "--timeout", "500ms"), at...)...)
		if code != 5 {
			t.Errorf("nothing to receive: exit code %d, want 5", code)
		}
		run("", "pub", "-t", "s/x", "-m", "hello world")
		if out := run("", append(session, "--count", "1", "-v")...); out != "s/x hello world\n" {
			t.Errorf("got %q", out)
		}
	})
}

func TestSubJSON(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	at := []string{"--url", "mqtt://" + p.Addr}
	_, stderr, code := edgemq(t, "", append([]string{"pub", "-t", "$queue/j", "-m", "21.5", "-u", "unit=°C", "--content-type", "text/plain", "--expiry", "1h"}, at...)...)
	if code != 0 {
		t.Fatal(stderr)
	}
	out, stderr, code := edgemq(t, "", append([]string{"sub", "--queue", "j", "--json", "--count", "1"}, at...)...)
	if code != 0 {
		t.Fatal(stderr)
	}
	var got struct {
		Topic          string
		Payload        string
		ContentType    string            `json:"content_type"`
		UserProperties []client.Property `json:"user_properties"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Topic != "$queue/j" || got.Payload != "21.5" || got.ContentType != "text/plain" || len(got.UserProperties) == 0 || got.UserProperties[0] != (client.Property{Name: "unit", Value: "°C"}) {
		t.Errorf("got %s", out)
	}
}

// What sub has not printed it has not acknowledged: a kill loses nothing.
func TestKilledSubLosesNothing(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	publish(t, dial(t, p, clean(client.V5)), "kill", numbers("", 1, 3000)...)
	args := []string{"sub", "--queue", "k", "--bind", "kill", "--url", p.Addr}
	cmd := exec.CommandContext(patience(t), testbroker.Binary(t), args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1000) // then the pipe fills, and sub waits
	if _, err := out.Read(buf); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	var rest bytes.Buffer
	_, _ = rest.ReadFrom(out)
	_ = cmd.Wait()
	printed := lines(strings.TrimRight(string(buf), "\x00") + rest.String())

	c := dial(t, p, clean(client.V5))
	subscribe(t, c, "$queue/k")
	ds := receive(t, c, 1)
	for string(ds[len(ds)-1].Payload) != "3000" {
		ds = append(ds, receive(t, c, 1)...)
	}
	first := string(ds[0].Payload)
	if got := len(printed) + len(ds); got < 3000 {
		t.Errorf("printed up to %q, then received from %q: %d of 3000", printed[len(printed)-1], first, got)
	}
	compare(t, payloads(ds), numbers("", 3001-len(ds), 3000))
}

func TestSigtermEndsCleanly(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		sub := dial(t, p, durable(v, "sleeper"))
		subscribe(t, sub, "term/#")
		pub := dial(t, p, clean(v))
		// Publishes are under way when the signal comes: whatever is acknowledged must be there afterwards.
		acked := make(chan int)
		go func() {
			n := 0
			defer func() { acked <- n }()
			var tokens []*client.Token
			for i := 0; ; i++ {
				token, err := pub.Publish(patience(t), client.Message{Topic: "term/a", Payload: []byte(numbers("", i+1, i+1)[0]), QoS: 1})
				if err != nil {
					break
				}
				tokens = append(tokens, token)
			}
			for _, token := range tokens {
				if token.Wait(patience(t)) != nil {
					return
				}
				n++
			}
		}()
		take(t, sub, 100) // the stream flows
		p.Stop()
		if err := ended(t, sub); v == client.V5 && code(err) != 0x8B {
			t.Errorf("the subscriber was told %v, want 0x8B", err)
		}
		n := <-acked
		if n < 100 {
			t.Errorf("only %d publishes were acknowledged", n)
		}
		p.Restart()
		sub = dial(t, p, durable(v, "sleeper"))
		expect(t, sub, numbers("", 1, n))
	})
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	p.Signal(syscall.SIGINT)
	_ = p.Running()
	// The first may have ended it already; the second must not be needed, only harmless.
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d after SIGINT", code)
	}
}

func TestDataDirectoryIsLocked(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	_, stderr, code := edgemq(t, "", "serve", "--listen", "127.0.0.1:0", "--data", p.Dir())
	if code != 1 || !strings.Contains(stderr, p.Dir()) || !strings.Contains(stderr, "another") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

func TestStoreTools(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	pub := dial(t, p, client.Options{Version: client.V5, ID: "writer", CleanStart: true})
	publish(t, pub, "tools/a", numbers("a", 1, 100)...)
	publish(t, pub, "tools/b", numbers("b", 1, 50)...)
	for _, how := range []string{"kill", "stop"} {
		if how == "kill" {
			p.Kill()
		} else {
			p.Restart()
			p.Stop()
		}
		out, stderr, code := edgemq(t, "", "store", "verify", p.Dir())
		if code != 0 || !strings.Contains(out, "damaged=0") {
			t.Errorf("%s: verify: exit code %d\n%s%s", how, code, out, stderr)
		}
		out, stderr, code = edgemq(t, "", "store", "stat", p.Dir())
		if code != 0 || !strings.Contains(out, "tools/a") || !strings.Contains(out, "records=100") {
			t.Errorf("%s: stat: exit code %d\n%s%s", how, code, out, stderr)
		}
		out, stderr, code = edgemq(t, "", "store", "dump", p.Dir(), "--topic", "tools/b")
		if code != 0 || len(lines(out)) != 50 {
			t.Errorf("%s: dump: exit code %d, %d lines\n%s", how, code, len(lines(out)), stderr)
		}
	}
}

// Where no repair is possible, the errors say what is.
func TestStatePagesDamaged(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	p.Stop()
	f, err := os.OpenFile(filepath.Join(p.Dir(), "state.db"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(bytes.Repeat([]byte{7}, 16*4096), 2*4096)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"store", "repair", p.Dir()}, {"serve", "--data", p.Dir(), "--listen", "127.0.0.1:0", "--set", "admin.listen=off"}} {
		if _, stderr, code := edgemq(t, "", args...); code != 1 || !strings.Contains(stderr, "restore the data directory from a copy") {
			t.Errorf("%q: exit code %d\n%s", args, code, stderr)
		}
	}
}

// A broker that runs says that its data are in use.
func TestStoreToolsOnARunningBroker(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	_, stderr, code := edgemq(t, "", "store", "verify", p.Dir())
	if code != 1 || !strings.Contains(stderr, "stop the broker first") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}
