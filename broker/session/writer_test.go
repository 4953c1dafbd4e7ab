package session

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/store"
)

// pair returns both ends of a TCP connection.
func pair(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if theirs, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if ours, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

// hidden is a connection that can be written in one way only.
type hidden struct{ net.Conn }

func TestWritersWaitForNoClient(t *testing.T) {
	m := &Manager{links: links{all: map[*Link]struct{}{}}, workers: workers{most: 2}}
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // more than a socket takes
	stuck := map[*Link]net.Conn{}
	for range 5 {
		ours, theirs := pair(t)
		_ = ours.(*net.TCPConn).SetWriteBuffer(16 << 10)
		_ = theirs.(*net.TCPConn).SetReadBuffer(16 << 10)
		l := m.NewLink(ours)
		l.Send(big)
		stuck[l] = theirs
	}
	var wg sync.WaitGroup
	for i := range 20 {
		ours, theirs := pair(t)
		if i%2 == 0 {
			ours = hidden{ours}
		}
		l := m.NewLink(ours)
		wg.Go(func() {
			b := make([]byte, 5)
			for range 100 {
				l.Send([]byte("hello"))
				_ = theirs.SetReadDeadline(time.Now().Add(10 * time.Second))
				if _, err := io.ReadFull(theirs, b); err != nil || string(b) != "hello" {
					t.Errorf("got %q, %v", b, err)
					return
				}
			}
			l.Send([]byte("last"))
			l.Close()
			if b, err := io.ReadAll(theirs); err != nil || string(b) != "last" {
				t.Errorf("at the end: %q, %v", b, err)
			}
		})
	}
	wg.Wait()
	for l, theirs := range stuck { // what was stuck comes whole, and what was queued behind it after it
		l.Send([]byte("last"))
		l.Close()
		wg.Go(func() {
			b, err := io.ReadAll(theirs)
			if err != nil || !bytes.Equal(b, append(bytes.Clone(big), "last"...)) {
				t.Errorf("%d bytes, %v", len(b), err)
			}
		})
	}
	wg.Wait()
	m.Wait()
	if m.workers.busy != 0 {
		t.Errorf("%d workers are left", m.workers.busy)
	}
}

// restless is a source of deliveries that never has any and asks to be looked at again until it is stopped.
type restless struct {
	l    *Link
	over atomic.Bool
}

func (r *restless) Take([]feed.Item, int, int) []feed.Item {
	if !r.over.Load() {
		r.l.Wake()
	}
	return nil
}
func (*restless) Settle(...uint64) {}
func (*restless) SetQoS(byte)      {}
func (*restless) Leave()           {}

// A reader that does a worker's part goes back to its own client, also while some connection always has something to be written.
func TestReaderIsNotAWorkerForLong(t *testing.T) {
	m := manager(t, store.Options{})
	m.opt.Window, m.opt.WindowBytes = 10, 1000
	ours, _ := pair(t)
	l := m.NewLink(ours)
	r := &restless{l: l}
	l.session.Store(&Session{m: m, id: "x", link: l, members: []*membership{{source: r}}})
	l.live.Store(true)
	m.workers.hold()
	l.Wake()
	back := make(chan struct{})
	go func() {
		defer close(back)
		m.workers.release(m)
	}()
	select {
	case <-back:
	case <-time.After(10 * time.Second):
		t.Error("the reader is kept for as long as others have something")
	}
	r.over.Store(true)
	<-back
	l.Close()
	m.Wait()
	m.links.remove(l)
}
