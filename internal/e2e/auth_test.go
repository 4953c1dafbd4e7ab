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
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/internal/testcert"
)

// waitFor waits until the broker's log says something, so many times.
func waitFor(t *testing.T, p *testbroker.Process, line string, times int) {
	t.Helper()
	for deadline := time.Now().Add(testbroker.Patience); strings.Count(p.Log(), line) < times; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log does not say %q", line)
		}
	}
}

// Users from the command line, rules in a file, clients of others, and a broker that is told of a change.
func TestUsersAndRules(t *testing.T) {
	t.Parallel()
	pub, sub := testbroker.Tool(t, "mosquitto_pub"), testbroker.Tool(t, "mosquitto_sub")
	dir := t.TempDir()
	users, rules, settings := filepath.Join(dir, "users"), filepath.Join(dir, "rules"), filepath.Join(dir, "edgemq.yaml")
	cheap := "# ours\n"
	const config = "auth: {users_file: USERS, acl_file: RULES}\n"
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	passwd := func(stdin string, args ...string) (stderr string, code int) {
		t.Helper()
		_, stderr, code = edgemq(t, stdin, append([]string{"passwd"}, args...)...)
		return stderr, code
	}
	// The race detector makes bcrypt thirty times slower.
	for name, password := range map[string]string{"ann": "s3cret-of-ann", "bob": "s3cret-of-bob"} {
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		cheap += name + ":" + string(hash) + "\n"
	}
	write(users, cheap)
	for _, tt := range []struct {
		stdin string
		args  []string
		code  int
	}{
		{"", []string{users, "eve"}, 1},
		{"x\n", []string{users, "eve\n"}, 2},
		{"x\n", []string{users}, 2},
		{"", []string{"-D", users, "eve"}, 1},
	} {
		if stderr, code := passwd(tt.stdin, tt.args...); code != tt.code {
			t.Errorf("passwd %q: exit code %d, %s", tt.args, code, stderr)
		}
	}
	write(settings, strings.NewReplacer("USERS", users, "RULES", rules).Replace(config))
	write(rules, "user ann allow both a/#\nuser bob alow both a/#\nanyone allow both $share/g/x\n")
	_, stderr, exit := edgemq(t, "", "config", "check", settings)
	if exit != 2 || !strings.Contains(stderr, rules+":2: \"alow\" is not allow or deny") || !strings.Contains(stderr, rules+":3: ") {
		t.Errorf("config check: exit code %d, %s", exit, stderr)
	}
	write(rules, "user ann allow both a/#\nuser bob allow subscribe a/#\n")
	if _, stderr, code := edgemq(t, "", "config", "check", settings); code != 0 {
		t.Errorf("config check: exit code %d, %s", code, stderr)
	}

	p := testbroker.Start(t, testbroker.Options{Set: []string{"auth.users_file=" + users, "auth.acl_file=" + rules}})
	host, port, _ := strings.Cut(p.Addr, ":")
	run := func(tool string, args ...string) error {
		cmd := exec.Command(tool, append([]string{"-h", host, "-p", port, "-W", "20"}, args...)...)
		if tool == pub {
			cmd.Args = append([]string{tool, "-h", host, "-p", port}, args...)
		}
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Run(); err != nil {
			return err
		}
		if strings.Contains(errs.String(), "denied") { // mosquitto_sub says so and exits with 0
			return errors.New(errs.String())
		}
		return nil
	}
	for _, v := range []string{"311", "5"} {
		for _, tt := range []struct {
			what string
			tool string
			args []string
			ok   bool
		}{
			{"publish", pub, []string{"-u", "ann", "-P", "s3cret-of-ann", "-t", "a/x", "-m", "hello", "-q", "1", "-r"}, true},
			{"wrong password", pub, []string{"-u", "ann", "-P", "s3cret-of-bob", "-t", "a/x", "-m", "hello", "-q", "1"}, false},
			{"nobody", pub, []string{"-t", "a/x", "-m", "hello", "-q", "1"}, false},
			{"a Will", sub, []string{"-u", "bob", "-P", "s3cret-of-bob", "-t", "a/x", "-C", "1", "--will-topic", "a/x"}, false},
			{"subscribe", sub, []string{"-u", "bob", "-P", "s3cret-of-bob", "-t", "a/x", "-C", "1"}, true},
			{"subscribe to more", sub, []string{"-u", "bob", "-P", "s3cret-of-bob", "-t", "#", "-C", "1"}, false},
		} {
			if err := run(tt.tool, append(tt.args, "-V", v)...); (err == nil) != tt.ok {
				t.Errorf("%s, version %s: %v", tt.what, v, err)
			}
		}
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s3cret-of-ann\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
	}{
		{[]string{"--username", "ann", "--password-file", secret, "-t", "a/y"}, 0},
		{[]string{"--username", "bob", "--password-file", secret, "-t", "a/y"}, 4},
		{[]string{"--username", "ann", "--password", "s3cret-of-ann", "-t", "a/y"}, 0},
		{[]string{"--username", "bob", "--password", "s3cret-of-bob", "-t", "a/y"}, 4},
		{[]string{"--username", "bob", "--password", "nonsense", "-t", "a/y"}, 4},
	} {
		args := append([]string{"pub", "--url", "mqtt://" + p.Addr, "-m", "x"}, tt.args...)
		if _, stderr, code := edgemq(t, "", args...); code != tt.code {
			t.Errorf("%q: exit code %d, %s", tt.args, code, stderr)
		}
	}
	_, words, exit := edgemq(t, "", "pub", "--url", "mqtt://"+p.Addr, "--mqtt", "3.1.1", "--username", "bob", "--password", "s3cret-of-bob", "-t", "a/y", "-m", "x")
	if exit != 3 || !strings.Contains(words, "--mqtt 5 may tell") {
		t.Errorf("3.1.1 and rules: exit code %d, %s", exit, words)
	}
	for _, v := range []client.Version{client.V311, client.V5} { // both pahos
		o := clean(v)
		o.User, o.Password = "ann", "s3cret-of-ann"
		c := dial(t, p, o)
		subscribe(t, c, "a/paho/#")
		publish(t, c, "a/paho/x", "hello")
		expect(t, c, []string{"hello"})
	}

	// The password changes, the broker is told: who came with the old one is out.
	o := clean(client.V5)
	o.User, o.Password = "ann", "s3cret-of-ann"
	c := dial(t, p, o)
	subscribe(t, c, "a/#")
	if _, code := passwd("s3cret-new\n", users, "ann"); code != 0 {
		t.Fatal("passwd failed")
	}
	if _, code := passwd("", "-D", users, "bob"); code != 0 {
		t.Fatal("passwd -D failed")
	}
	p.Signal(syscall.SIGHUP)
	if err := ended(t, c); code(err) != 0x87 {
		t.Errorf("the connection ended with %v", err)
	}
	if run(pub, "-u", "ann", "-P", "s3cret-of-ann", "-t", "a/x", "-m", "x") == nil || run(sub, "-u", "bob", "-P", "s3cret-of-bob", "-t", "a/x", "-C", "1") == nil {
		t.Error("an old password is still good")
	}
	if err := run(pub, "-u", "ann", "-P", "s3cret-new", "-t", "a/x", "-m", "x", "-q", "1"); err != nil {
		t.Error(err)
	}
	write(rules, "nonsense\n")
	p.Signal(syscall.SIGHUP)
	waitFor(t, p, "going on with the old ones", 1)
	if err := run(pub, "-u", "ann", "-P", "s3cret-new", "-t", "a/x", "-m", "x", "-q", "1"); err != nil {
		t.Error(err)
	}
	if strings.Contains(p.Log(), "s3cret") {
		t.Error("a password was logged")
	}
}

// The name in a client's certificate is its user's: no password is asked for, and no other name is believed.
func TestUsersOfCertificates(t *testing.T) {
	t.Parallel()
	ca := testcert.NewCA(t)
	server, meter := ca.Issue("broker"), ca.Issue("meter-7")
	rules := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(rules, []byte("user meter-7 allow both meters/%u/#\nuser ann allow both #\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var list []map[string]any
	for _, typ := range []string{"tls", "wss"} {
		list = append(list, map[string]any{
			"name": typ, "type": typ, "address": "127.0.0.1:0", "cert": server.Cert, "key": server.Key, "client_ca": ca.File, "client_cert": "request",
		})
	}
	b, err := json.Marshal(list) // which is YAML
	if err != nil {
		t.Fatal(err)
	}
	broker := testbroker.Run(t, testbroker.Options{Set: []string{"listeners=" + string(b), "auth.tls_identity=cn", "auth.acl_file=" + rules}})
	for name, url := range map[string]string{"tls": "mqtts://" + broker.Broker.Addr("tls"), "wss": "wss://" + broker.Broker.Addr("wss") + "/mqtt"} {
		versions(t, func(t *testing.T, v client.Version) {
			o := clean(v)
			o.URL, o.TLS = url, client.TLS{CAFile: ca.File}
			if c, err := client.Dial(patience(t), o); err == nil {
				_ = c.Close()
				t.Errorf("%s: let in without a certificate", name)
			}
			o.User, o.Password = "ann", "x" // which does not make it ann
			o.TLS.CertFile, o.TLS.KeyFile = meter.Cert, meter.Key
			c, err := client.Dial(patience(t), o)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			subscribe(t, c, "meters/meter-7/#")
			publish(t, c, "meters/meter-7/x", "mine")
			expect(t, c, []string{"mine"})
			if err := c.Subscribe(patience(t), client.Subscription{Filter: "meters/meter-8/#", QoS: 1}); err == nil {
				t.Errorf("%s: may subscribe to another's", name)
			}
		})
	}
}
