package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/edgemq/edgemq/internal/client"
)

// startTime is how long a broker may take to start or to end.
const startTime = 60 * time.Second

// Launcher starts brokers of one kind.
type Launcher struct {
	Command string // for sh; {port} and {dir} stand for a port to listen on and a data directory
	Kill    bool   // SIGKILL instead of SIGTERM before a restart
}

// Launched is a broker that was started here, with a data directory of its own.
type Launched struct {
	Launcher
	Addr string
	Dir  string
	cmd  *exec.Cmd
	gone chan struct{}
}

// Start starts a broker below the directory dir and waits until it listens.
func (l Launcher) Start(ctx context.Context, dir string) (*Launched, error) {
	work, err := os.MkdirTemp(dir, "edgemq-bench-")
	if err != nil {
		return nil, err
	}
	b := &Launched{Launcher: l, Dir: work}
	if b.Addr, err = freeAddr(); err == nil {
		if err = os.Mkdir(filepath.Join(work, "data"), 0o755); err == nil {
			err = b.launch(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(work))
	}
	return b, nil
}

// freeAddr finds a port nobody listens on.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (b *Launched) launch(ctx context.Context) error {
	_, port, err := net.SplitHostPort(b.Addr)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(b.Dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	command := strings.NewReplacer("{port}", port, "{dir}", filepath.Join(b.Dir, "data")).Replace(b.Command)
	cmd := exec.Command("sh", "-c", "exec "+command)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, ownGroup()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %q: %w", command, err)
	}
	b.cmd, b.gone = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ends tells nothing: it was told to
		close(b.gone)
	}()
	if err := b.listening(ctx); err != nil {
		return errors.Join(fmt.Errorf("start %q: %w", command, err), b.end(true))
	}
	return nil
}

// listening waits until connections are accepted.
func (b *Launched) listening(ctx context.Context) error {
	deadline := time.Now().Add(startTime)
	for {
		conn, err := net.DialTimeout("tcp", b.Addr, time.Second)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.gone:
			return fmt.Errorf("it has ended; its last words:\n%s", b.words())
		case <-time.After(2 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("it does not listen on %s; its last words:\n%s", b.Addr, b.words())
		}
	}
}

// words is the end of the broker's log.
func (b *Launched) words() string {
	log, _ := os.ReadFile(filepath.Join(b.Dir, "log"))
	return strings.TrimSpace(string(log[max(0, len(log)-1000):]))
}

// Restart stops the broker and starts it again on the same port and data.
func (b *Launched) Restart(ctx context.Context) error {
	if err := b.end(b.Kill); err != nil {
		return err
	}
	return b.launch(ctx)
}

// end ends the processes of the broker.
func (b *Launched) end(kill bool) error {
	if err := signalGroup(b.cmd.Process, kill); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-b.gone:
		return nil
	case <-time.After(startTime):
		_ = signalGroup(b.cmd.Process, true)
		<-b.gone
		return fmt.Errorf("the broker did not end in %v and was killed", startTime)
	}
}

// Close ends the broker and removes its data.
func (b *Launched) Close() error { return errors.Join(b.end(false), os.RemoveAll(b.Dir)) }

// Target is the broker as one to put loads on. URL is where it listens.
func (b *Launched) Target(name string, o client.Options) *Target {
	o.URL = "mqtt://" + b.Addr
	t := &Target{Name: name, Options: o, Process: b.process()}
	t.Restarts = func(ctx context.Context) error {
		err := b.Restart(ctx)
		t.Process = b.process()
		return err
	}
	return t
}

func (b *Launched) process() *Process { return &Process{PID: b.cmd.Process.Pid, Group: true} }
