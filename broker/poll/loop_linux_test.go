package poll

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const patience = 30 * time.Second

// echo is a guest that sends back what comes. A line that begins with g has a goroutine do so until the next one, x ends the
// connection; whoever is silent for too long is sent a t.
type echo struct {
	s       *Socket
	silence time.Duration
	ended   *atomic.Int32
}

func (e *echo) Ready(now time.Time) {
	var b [64]byte
	n, again, err := e.s.ReadNow(b[:])
	switch {
	case again:
		if e.silence > 0 && now.Sub(e.s.loop.born) >= e.silence {
			_, _ = e.s.Write([]byte("t"))
			e.end()
		}
	case err != nil || n == 0 || b[0] == 'x':
		e.end()
	case b[0] == 'g':
		e.s.Leave()
		go e.serve(b[:n])
	default:
		_, _ = e.s.Write(b[:n])
	}
}

func (e *echo) serve(first []byte) {
	_, _ = e.s.Write(first)
	var b [64]byte
	n, err := e.s.Read(b[:])
	if n > 0 {
		_, _ = e.s.Write(b[:n])
	}
	if err != nil {
		e.ended.Add(1)
		_ = e.s.Close()
		return
	}
	e.s.Park(e)
}

func (e *echo) end() {
	e.ended.Add(1)
	e.s.Leave()
	_ = e.s.Close()
}

// bench is a loop of echoes.
type bench struct {
	*Loop
	addr    string
	ended   atomic.Int32
	failed  atomic.Int32
	linger  atomic.Int32
	silence time.Duration
	refuse  atomic.Bool
	mu      sync.Mutex
	last    *Socket
}

func newBench(t *testing.T, silence time.Duration) *bench {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{addr: l.Addr().String(), silence: silence}
	b.Loop, err = New(l.(*net.TCPListener), Options{
		Accepted: func(s *Socket) Guest {
			if b.refuse.Load() {
				return nil
			}
			b.mu.Lock()
			b.last = s
			b.mu.Unlock()
			if silence > 0 {
				s.Until(b.born.Add(silence))
			}
			return &echo{s, silence, &b.ended}
		},
		Failed:   func(error, time.Duration) { b.failed.Add(1) },
		Linger:   func() bool { b.linger.Add(1); return true },
		Lingered: func() { b.linger.Add(-1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) start(t *testing.T) {
	done := make(chan struct{})
	go func() { defer close(done); b.Run() }()
	t.Cleanup(func() {
		b.Close()
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("the loop does not end")
		}
		if n := b.linger.Load(); n != 0 {
			t.Errorf("%d linger", n)
		}
	})
}

func (b *bench) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func say(t *testing.T, c net.Conn, line string) {
	t.Helper()
	if _, err := io.WriteString(c, line); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(line))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != line {
		t.Fatalf("got %q, %v", got, err)
	}
}

// A connection goes to a goroutine and back, any number of times, and nothing that it says is lost.
func TestBackAndForth(t *testing.T) {
	t.Parallel()
	b := newBench(t, 0)
	b.start(t)
	var wg sync.WaitGroup
	for range 8 {
		c := b.dial(t)
		wg.Go(func() {
			for i := range 200 {
				if say(t, c, "hello"); i%3 == 0 {
					say(t, c, "go")
					say(t, c, "there")
				}
			}
			_, _ = io.WriteString(c, "x")
			if rest, err := io.ReadAll(c); len(rest) > 0 || err != nil {
				t.Errorf("got %q, %v", rest, err)
			}
		})
	}
	wg.Wait()
	if n := b.ended.Load(); n != 8 {
		t.Errorf("%d ended", n)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last.RemoteAddr().(*net.TCPAddr).Port == 0 {
		t.Error("a peer without a port")
	}
}

// Time is up for who says nothing.
func TestUntil(t *testing.T) {
	t.Parallel()
	b := newBench(t, 50*time.Millisecond)
	b.start(t)
	c := b.dial(t)
	if got, err := io.ReadAll(c); string(got) != "t" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// While accepting fails the loop is not busy with it, and then it goes on.
func TestAcceptFails(t *testing.T) {
	t.Parallel()
	b := newBench(t, 0)
	var calls atomic.Int32
	b.accept4 = func(fd, flags int) (int, syscall.Sockaddr, error) {
		if n := calls.Add(1); n <= 4 {
			return -1, nil, []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ECONNABORTED}[n-1]
		}
		return syscall.Accept4(fd, flags)
	}
	b.start(t)
	say(t, b.dial(t), "hello")
	if n, f := calls.Load(), b.failed.Load(); n != 5 || f != 3 {
		t.Errorf("%d accepts, %d failures", n, f)
	}
	b.refuse.Store(true)
	c := b.dial(t)
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("read %d, %v from a connection that nobody wants", n, err)
	}
	b.refuse.Store(false)
	say(t, b.dial(t), "hello")
}

// What was written before Close arrives, though the peer goes on sending; and the descriptor does not stay for longer than a moment if it does not stop.
func TestLinger(t *testing.T) {
	t.Parallel()
	b := newBench(t, 0)
	b.start(t)
	c := b.dial(t)
	say(t, c, "hello")
	if _, err := c.Write(append([]byte("x"), make([]byte, 100_000)...)); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c); len(rest) > 0 || err != nil {
		t.Errorf("got %q, %v", rest, err)
	}
	begun := time.Now()
	for {
		if _, err := c.Write([]byte("more")); err != nil {
			break
		}
		if time.Sleep(10 * time.Millisecond); time.Since(begun) > patience {
			t.Fatal("it takes more for ever")
		}
	}
}

// Others close a connection and set deadlines, whoever reads: a guest, or a goroutine.
func TestOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t, 0)
	b.start(t)
	for i := range 20 {
		c := b.dial(t)
		say(t, c, "hello")
		b.mu.Lock()
		s := b.last
		b.mu.Unlock()
		if i%2 == 0 {
			say(t, c, "go")
		}
		if err := s.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		_ = s.SetWriteDeadline(time.Now().Add(time.Second))
		sys, err := s.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
		if rest, err := io.ReadAll(c); len(rest) > 0 || err != nil {
			t.Fatalf("got %q, %v", rest, err)
		}
		_ = c.Close()
		for begun := time.Now(); sys.Control(func(uintptr) {}) == nil; time.Sleep(time.Millisecond) {
			if time.Since(begun) > patience {
				t.Fatal("the descriptor stays open")
			}
		}
		if _, err := s.Write([]byte("late")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write: %v", err)
		}
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read: %v", err)
		}
	}
}

// A deadline holds for whoever reads after it, too.
func TestReadAfterDeadline(t *testing.T) {
	t.Parallel()
	b := newBench(t, 0)
	b.start(t)
	b.dial(t) // and says nothing, so nobody has waited for the socket yet
	var s *Socket
	for begun := time.Now(); s == nil; time.Sleep(time.Millisecond) {
		if time.Since(begun) > patience {
			t.Fatal("nobody is let in")
		}
		b.mu.Lock()
		s = b.last
		b.mu.Unlock()
	}
	if err := s.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read: %v", err)
	}
}

// A peer that does not read holds up who writes to it, and nobody else; a deadline frees the writer.
func TestSlowPeer(t *testing.T) {
	t.Parallel()
	b := newBench(t, 0)
	b.start(t)
	c := b.dial(t)
	say(t, c, "hello")
	b.mu.Lock()
	s := b.last
	b.mu.Unlock()
	wrote := make(chan error, 1)
	go func() {
		for {
			if _, err := s.Write(bytes.Repeat([]byte("much"), 1<<16)); err != nil {
				wrote <- err
				return
			}
		}
	}()
	say(t, b.dial(t), "hello")
	_ = s.SetWriteDeadline(time.Now())
	if err := <-wrote; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Write: %v", err)
	}
	_ = s.Close()
}

// Closed before it has run, it leaves nothing behind.
func TestNeverRun(t *testing.T) {
	t.Parallel()
	b := newBench(t, 0)
	b.Close()
	b.Run()
	if c, err := net.Dial("tcp", b.addr); err == nil {
		_ = c.Close()
		t.Error("somebody listens")
	}
}

func TestTimers(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	var h timers
	all := make([]*Socket, 50)
	for i := range all {
		all[i] = &Socket{}
	}
	for range 5000 {
		h.set(all[r.IntN(len(all))], time.Duration(r.IntN(20)))
		n := 0
		for i, s := range h {
			if int(s.place) != i+1 || i > 0 && h[(i-1)/2].due > s.due {
				t.Fatalf("%d is in place %d, due %d after %d", i, s.place, s.due, h[(i-1)/2].due)
			}
		}
		for _, s := range all {
			if s.place > 0 {
				n++
			}
		}
		if n != len(h) {
			t.Fatalf("%d have places, of %d", n, len(h))
		}
	}
}
