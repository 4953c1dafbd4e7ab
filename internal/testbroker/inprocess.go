package testbroker

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker"
	"github.com/edgemq/edgemq/internal/config"
)

// InProcess is a broker in the test's own process: quick to start, under its race detector, and its parts can be
// looked into. It cannot be killed; Process can.
type InProcess struct {
	*broker.Broker
	Addr string // of the first listener

	t    testing.TB
	log  *log
	stop context.CancelFunc
	done chan error
}

// Run starts a broker in this process. It is stopped when the test ends, if it was not before.
func Run(t testing.TB, o Options) *InProcess {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	src := config.Source{File: configFile(t, o), Env: []string{}, Set: []config.Setting{
		{Key: "data", Value: o.Dir, Origin: "test"},
		{Key: "listeners", Value: "[{name: test, address: '127.0.0.1:0'}]", Origin: "test"},
		{Key: "store.journal_file", Value: journalFile, Origin: "test"},
		{Key: "admin.listen", Value: "off", Origin: "test"},
	}}
	for _, s := range o.Set {
		key, value, _ := strings.Cut(s, "=")
		src.Set = append(src.Set, config.Setting{Key: key, Value: value, Origin: "test"})
	}
	c, err := config.Load(src)
	if err != nil {
		t.Fatal(err)
	}
	p := &InProcess{t: t, log: &log{}, done: make(chan error, 1)}
	p.Broker, err = broker.Open(c.Broker(slog.New(slog.NewTextHandler(p.log, nil))))
	if err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.Background())
	go func() { p.done <- p.Broker.Run(ctx) }()
	p.Addr = p.Addrs()[0] // open since Open; connections wait until Run accepts them
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("broker's log:\n%s", p.log.String())
		}
	})
	return p
}

// Stop stops the broker cleanly and waits for it. It may be called twice.
func (p *InProcess) Stop() {
	p.t.Helper()
	if p.done == nil {
		return
	}
	p.stop()
	select {
	case err := <-p.done:
		if err != nil {
			p.t.Errorf("the broker ended with: %v", err)
		}
	case <-time.After(Patience):
		p.t.Fatal("the broker does not end")
	}
	p.done = nil
	if err := p.Close(); err != nil {
		p.t.Errorf("close the broker: %v", err)
	}
}
