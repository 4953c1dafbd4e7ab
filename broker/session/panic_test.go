package session

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// bomb is a source of deliveries that panics.
type bomb struct{}

func (bomb) Take([]feed.Item, int, int) []feed.Item { panic("bomb") }
func (bomb) Settle(...uint64)                       {}
func (bomb) SetQoS(byte)                            {}
func (bomb) Leave()                                 {}

// brittle is a connection that panics when it is written to.
type brittle struct {
	hidden
	armed atomic.Bool
}

func (b *brittle) Write(p []byte) (int, error) {
	if b.armed.Load() {
		panic("brittle")
	}
	return b.hidden.Write(p)
}

func TestPanicInAWriterCostsOneConnection(t *testing.T) {
	m := manager(t, store.Options{})
	m.opt.Window, m.opt.WindowBytes = 10, 1000
	m.workers.most = 1
	var log bytes.Buffer
	m.logger = slog.New(slog.NewTextHandler(&log, nil))
	link := func(way string) (*Link, io.Reader) {
		ours, theirs := pair(t)
		if way != "its worker" {
			ours = hidden{ours}
		}
		if way == "the socket" {
			b := &brittle{hidden: ours.(hidden)}
			b.armed.Store(true)
			ours = b
		}
		_ = theirs.SetReadDeadline(time.Now().Add(10 * time.Second))
		l := m.NewLink(ours)
		t.Cleanup(func() { m.links.remove(l) })
		return l, theirs
	}
	for i, way := range []string{"its worker", "a goroutine of its own", "the socket"} {
		t.Run(way, func(t *testing.T) {
			good, reads := link("its worker")
			bad, sees := link(way)
			s := &Session{m: m, id: "x", link: bad, members: []*membership{{source: bomb{}}}}
			bad.session.Store(s)
			if way == "the socket" {
				bad.Send([]byte("hello"))
			} else {
				bad.live.Store(true)
				bad.Wake()
			}
			if b, err := io.ReadAll(sees); err != nil || len(b) > 0 {
				t.Fatalf("the bad connection: %q, %v", b, err)
			}
			good.Send([]byte("hello"))
			b := make([]byte, 5)
			if _, err := io.ReadFull(reads, b); err != nil || string(b) != "hello" {
				t.Fatalf("the other connection: %q, %v", b, err)
			}
			bad.Send([]byte("more")) // starts no writer
			good.Close()
			m.Wait()
			if got := m.Stats().Panics; got != int64(i+1) {
				t.Errorf("%d panics are counted", got)
			}
			if s := log.String(); !strings.Contains(s, "panic_test.go") || !strings.Contains(s, "client=x") {
				t.Errorf("no client or stack in the log:\n%s", s)
			}
			log.Reset()
		})
	}
}

// A panic while a client subscribes leaves no lock behind for which all others would wait.
func TestPanicLeavesNoLock(t *testing.T) {
	m := manager(t, store.Options{})
	l := &Link{m: m}
	s := &Session{m: &Manager{log: m.log}, id: "x", link: l}
	for name, do := range map[string]func(){
		"SUBSCRIBE":   func() { s.Subscribe(l, &packet.Subscribe{Filters: []packet.Subscription{{Filter: "a"}}}) },
		"UNSUBSCRIBE": func() { s.Unsubscribe(l, []string{"$queue/q/a"}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			do()
		}()
		if !s.mu.TryLock() {
			t.Fatalf("%s: the session is still locked", name)
		}
		s.mu.Unlock()
	}
}

// loud is a completion that panics if it is a reader that commits.
type loud struct {
	m    *Manager
	done chan struct{}
}

func (x loud) Committed(uint64, error) {
	defer close(x.done)
	x.m.workers.mu.Lock()
	held := x.m.workers.held
	x.m.workers.mu.Unlock()
	if held > 0 {
		panic("loud")
	}
}

// A panic while a reader commits its own message ends the store, and leaves workers to tell the connections so.
func TestPanicInAReaderThatCommits(t *testing.T) {
	log := openStore(t)
	m := newManager(t, log)
	msg := store.Message{Topic: 1, Client: 1, Flags: record.Flags(0).WithQoS(1)}
	l := &Link{m: m}
	l.unanswered.Store(1)
	panicked := false
	for range 1000 { // the first is for the committer, and whenever it is at work; the disk is in memory
		x := loud{m, make(chan struct{})}
		func() {
			defer func() { panicked = recover() != nil }()
			if err := l.hand(&ingest{msgs: []store.Message{msg}, durable: true}, x); err != nil {
				t.Fatal(err)
			}
		}()
		if <-x.done; panicked {
			break
		}
	}
	if !panicked {
		t.Fatal("no reader has committed its own message in 1000 tries")
	}
	if m.workers.held != 0 {
		t.Error("nobody writes any more")
	}
	if err := log.Append([]store.Message{msg}, nil, true, nil); !errors.Is(err, store.ErrFailed) {
		t.Errorf("an append after it: %v", err)
	}
}
