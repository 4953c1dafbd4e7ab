// Package testbroker runs whole brokers for tests: the real binary as a process that can be killed, and a
// socket client that says what it is told, byte for byte.
package testbroker

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Patience is how long tests wait for what must happen. It is long, because CI machines are slow and only
// failing tests ever wait for it.
const Patience = 30 * time.Second

// Options say how to start a broker. The zero value is a broker with an empty data directory.
type Options struct {
	Dir    string   // data directory; default t.TempDir()
	Config string   // YAML
	Set    []string // key=value
	Env    []string
}

// Process is the real edgemq binary, running.
type Process struct {
	t    testing.TB
	o    Options
	cmd  *exec.Cmd
	gone chan struct{} // closed when the process has ended
	err  error         // how; valid once gone is closed
	log  *log
	Addr string // host:port, the same after a restart
}

// Start starts a broker and waits until it listens. It is killed when the test ends.
func Start(t testing.TB, o Options) *Process {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	p := &Process{t: t, o: o, log: &log{}, Addr: freeAddr(t)}
	p.Restart()
	t.Cleanup(func() {
		p.Kill()
		if strings.Contains(p.Log(), "DATA RACE") {
			t.Error("the race detector found something in the broker")
		}
		if t.Failed() {
			t.Logf("broker's log:\n%s", p.Log())
		}
	})
	return p
}

// freeAddr finds a port nobody listens on. Somebody else may take it before the broker does; nobody has yet.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Restart starts the broker again, on the same port and data, and waits until it listens.
func (p *Process) Restart() {
	p.t.Helper()
	p.Launch()
	p.WaitListening()
}

// Launch starts the process and does not wait.
func (p *Process) Launch() {
	p.t.Helper()
	args := []string{"serve", "--listen", p.Addr, "--data", p.o.Dir, "--set", "store.journal_file=" + journalFile, "--set", "admin.listen=off"}
	if file := configFile(p.t, p.o); file != "" {
		args = append(args, "--config", file)
	}
	for _, s := range p.o.Set {
		args = append(args, "--set", s)
	}
	cmd := exec.Command(Binary(p.t), args...)
	cmd.Env = append(os.Environ(), p.o.Env...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = p.log, p.log, attributes()
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	gone := make(chan struct{})
	p.cmd, p.gone = cmd, gone
	go func() {
		p.err = cmd.Wait()
		close(gone)
	}()
}

// journalFile is the size of journal files in tests. Many brokers run side by side: files of the default size
// would fill the disks of CI machines.
const journalFile = "8MiB"

// configFile writes the settings to a file and returns its name, "" if there are none.
func configFile(t testing.TB, o Options) string {
	t.Helper()
	if o.Config == "" {
		return ""
	}
	file := filepath.Join(t.TempDir(), "edgemq.yaml")
	if err := os.WriteFile(file, []byte(o.Config), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// WaitListening waits until the broker accepts connections.
func (p *Process) WaitListening() {
	p.t.Helper()
	deadline := time.Now().Add(Patience)
	for {
		if conn, err := net.DialTimeout("tcp", p.Addr, time.Second); err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-p.gone:
			p.t.Fatalf("the broker did not start: %v\n%s", p.err, p.Log())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("the broker does not listen on %s\n%s", p.Addr, p.Log())
		}
	}
}

// Kill ends the process as kill -9 does. It may be called on an ended one.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}

// Stop asks the process to end cleanly and waits; anything but exit code 0 fails the test.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	if code := p.Wait(); code != 0 {
		p.t.Fatalf("exit code %d after SIGTERM\n%s", code, p.Log())
	}
}

// Signal sends a signal.
func (p *Process) Signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// Wait waits for the process to end and returns its exit code (-1: by a signal).
func (p *Process) Wait() int {
	p.t.Helper()
	select {
	case <-p.gone:
	case <-time.After(Patience):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines go to the log
		<-p.gone
		p.t.Fatalf("the broker does not end\n%s", p.Log())
	}
	return p.cmd.ProcessState.ExitCode()
}

// Running reports whether the process still runs.
func (p *Process) Running() bool {
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Dir is the data directory.
func (p *Process) Dir() string { return p.o.Dir }

// Log is all that the broker has written to standard output and error, over all its lives.
func (p *Process) Log() string { return p.log.String() }

type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var build struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// Binary builds the edgemq command once a test run, with the race detector if the test has it, and returns
// its path. Main removes it.
func Binary(t testing.TB) string {
	t.Helper()
	build.once.Do(func() {
		if build.dir, build.err = os.MkdirTemp("", "edgemq-test"); build.err != nil {
			return
		}
		build.path = filepath.Join(build.dir, "edgemq")
		args := []string{"build", "-o", build.path}
		if raceEnabled {
			args = append(args, "-race")
		}
		_, here, _, _ := runtime.Caller(0)
		cmd := exec.Command("go", append(args, "./cmd/edgemq")...)
		cmd.Dir = filepath.Join(filepath.Dir(here), "..", "..")
		if out, err := cmd.CombinedOutput(); err != nil {
			build.err = fmt.Errorf("build edgemq: %w\n%s", err, out)
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return build.path
}

// Main runs the tests of a package that uses Binary: func TestMain(m *testing.M) { os.Exit(testbroker.Main(m)) }.
func Main(m interface{ Run() int }) int {
	defer func() {
		if build.dir != "" {
			_ = os.RemoveAll(build.dir)
		}
	}()
	return m.Run()
}

// Tool finds a program the test needs. Without it the test is skipped; in CI it fails.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if os.Getenv("CI") != "" || !errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("%s is needed: %v (Debian: apt-get install mosquitto-clients)", name, err)
	}
	t.Skipf("%s is not installed (Debian: apt-get install mosquitto-clients)", name)
	return ""
}

// Exec runs a program to its end and returns its standard output; a failure fails the test.
func Exec(t testing.TB, stdin []byte, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(2*Patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, errs.String())
	}
	return out.String()
}
