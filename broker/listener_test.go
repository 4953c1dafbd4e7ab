package broker

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/transport"
	"github.com/edgemq/edgemq/hooks"
	"github.com/edgemq/edgemq/internal/testcert"
	"github.com/edgemq/edgemq/store"
)

const patience = 20 * time.Second

// run runs a broker; before may change it while nothing is served yet. stop stops it and waits.
func run(t *testing.T, o Options, before func(*Broker)) (b *Broker, stop func()) {
	t.Helper()
	o.Store = store.Options{Dir: t.TempDir(), JournalFileBytes: 8 << 20}
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if before != nil {
		before(b)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	stopped := false
	stop = func() {
		t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Fatal("the broker does not end")
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return b, stop
}

func dial(t *testing.T, network, addr string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout(network, addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// connect sends CONNECT and returns the CONNACK, an error if the connection ends without one.
func connect(t *testing.T, c net.Conn, id string) (*packet.Connack, error) {
	t.Helper()
	if _, err := c.Write(packet.AppendConnect(nil, &packet.Connect{Version: packet.V5, Clean: true, ClientID: id, ReceiveMaximum: 65535})); err != nil {
		return nil, err
	}
	var b []byte
	for {
		size, _, err := packet.Split(b, packet.V5, 0)
		if err != nil {
			t.Fatal(err)
		}
		if size > 0 && size <= len(b) {
			ack, err := packet.ParseConnack(packet.V5, b[:size])
			if err != nil || ack.Code != 0 {
				t.Fatalf("CONNACK %+v, %v", ack, err)
			}
			return ack, nil
		}
		var one [1]byte
		if _, err := io.ReadFull(c, one[:]); err != nil {
			return nil, err
		}
		b = append(b, one[0])
	}
}

func mustConnect(t *testing.T, c net.Conn, id string) *packet.Connack {
	t.Helper()
	ack, err := connect(t, c, id)
	if err != nil {
		t.Fatal(err)
	}
	return ack
}

// failing is an acceptor that fails now and then.
type failing struct {
	acceptor
	accepts atomic.Int32
	panics  atomic.Int32 // handshakes that are yet to panic
}

func (f *failing) Accept() (net.Conn, error) {
	if n := f.accepts.Add(1); n%2 == 1 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", []error{syscall.EMFILE, syscall.ECONNABORTED, syscall.ENOBUFS}[n/2%3])}
	}
	return f.acceptor.Accept()
}

func (f *failing) Handshake(raw net.Conn, by time.Time) (net.Conn, error) {
	if f.panics.Add(-1) >= 0 {
		panic("a bug in a handshake")
	}
	return f.acceptor.Handshake(raw, by)
}

// Accepting goes on after errors that pass, and after a panic in a connection.
func TestAcceptGoesOn(t *testing.T) {
	t.Parallel()
	f := &failing{}
	f.panics.Store(2)
	b, _ := run(t, Options{Listeners: []Listener{{Name: "a", Type: transport.Unix, Address: filepath.Join(t.TempDir(), "s")}}}, func(b *Broker) {
		f.acceptor = b.listeners[0].net
		b.listeners[0].net = f
	})
	for range 2 {
		if _, err := connect(t, dial(t, "unix", b.Addr("a")), "x"); err == nil {
			t.Error("connected through a panic")
		}
	}
	for range 6 {
		c := dial(t, "unix", b.Addr("a"))
		mustConnect(t, c, "x") // each takes over from the one before
		_ = c.Close()
	}
	if n := f.accepts.Load(); n < 8 {
		t.Errorf("%d accepts", n)
	}
	for deadline := time.Now().Add(patience); b.listeners[0].open.Load() != 0; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are counted", b.listeners[0].open.Load())
		}
	}
}

// A panic while the loop deals with a connection ends that one.
func TestPanicInLoop(t *testing.T) {
	t.Parallel()
	b, _ := run(t, Options{Listeners: []Listener{{Name: "a", Address: "127.0.0.1:0"}}}, func(b *Broker) {
		b.listeners[0].door = &hooks.Handshake{} // which has no server
	})
	for range 3 {
		if _, err := connect(t, dial(t, "tcp", b.Addr("a")), "x"); err == nil {
			t.Error("connected through a panic")
		}
	}
	for deadline := time.Now().Add(patience); b.listeners[0].open.Load() != 0; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are counted", b.listeners[0].open.Load())
		}
	}
	if n := b.sessions.Stats().Panics; n < 3 {
		t.Errorf("%d panics are counted", n)
	}
}

// fragile panics when something is to be logged as a warning.
type fragile struct{ slog.Handler }

func (f fragile) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		panic("no warnings")
	}
	return f.Handler.Handle(ctx, r)
}

// So does one before the connection is anybody's.
func TestPanicAtTheDoor(t *testing.T) {
	t.Parallel()
	b, _ := run(t, Options{Listeners: []Listener{{Name: "a", Address: "127.0.0.1:0", MaxConnections: 1}}}, func(b *Broker) {
		b.listeners[0].logger = slog.New(fragile{b.listeners[0].logger.Handler()})
	})
	first := dial(t, "tcp", b.Addr("a"))
	if _, err := connect(t, first, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := connect(t, dial(t, "tcp", b.Addr("a")), "b"); err == nil { // that it is refused is logged
		t.Error("connected through a panic")
	}
	_ = first.Close()
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		if _, err := connect(t, dial(t, "tcp", b.Addr("a")), "c"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody is let in any more")
		}
	}
	if b.sessions.Stats().Panics == 0 {
		t.Error("no panic is counted")
	}
}

// Each listener has limits of its own.
func TestListenerLimits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b, _ := run(t, Options{
		MaxPacket: 100_000, ConnectTimeout: time.Hour,
		Listeners: []Listener{
			{Name: "a", Address: "127.0.0.1:0"},
			{Name: "b", Type: transport.Unix, Address: filepath.Join(dir, "s"), MaxPacket: 5000, MaxConnections: 1, ConnectTimeout: 100 * time.Millisecond},
		},
	}, nil)
	first := dial(t, "unix", b.Addr("b"))
	if _, err := first.Read(make([]byte, 1)); err != io.EOF { // it sends no CONNECT
		t.Fatalf("got %v", err)
	}
	var limited net.Conn
	for limited == nil { // the count of the first may come down a moment later
		limited = dial(t, "unix", b.Addr("b"))
		if ack, err := connect(t, limited, "b"); err != nil {
			limited = nil
		} else if ack.MaximumPacketSize != 5000 {
			t.Errorf("announced %d", ack.MaximumPacketSize)
		}
	}
	if _, err := connect(t, dial(t, "unix", b.Addr("b")), "c"); err == nil {
		t.Error("a second connection was accepted")
	}
	if ack := mustConnect(t, dial(t, "tcp", b.Addr("a")), "a"); ack.MaximumPacketSize != 100_000 {
		t.Errorf("announced %d", ack.MaximumPacketSize)
	}
	if _, err := limited.Write(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "t", Payload: make([]byte, 6000)})); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(limited)
	if d, perr := packet.ParseServerDisconnect(got); perr != nil || d.Code != packet.CodeTooLarge {
		t.Errorf("got % X, %v", got, err)
	}
}

// Handshakes that hang hold up nobody: not other clients, and not a stop.
func TestHangingHandshakes(t *testing.T) {
	t.Parallel()
	ca := testcert.NewCA(t)
	cert := ca.Issue("server")
	files := transport.TLSOptions{Cert: cert.Cert, Key: cert.Key}
	b, stop := run(t, Options{
		Listeners: []Listener{
			{Name: "tls", Type: transport.TLS, Address: "127.0.0.1:0", TLS: files},
			{Name: "ws", Type: transport.WS, Address: "127.0.0.1:0"},
			{Name: "wss", Type: transport.WSS, Address: "127.0.0.1:0", TLS: files},
		},
	}, nil)
	for _, name := range []string{"tls", "ws", "wss"} {
		for range 5 {
			dial(t, "tcp", b.Addr(name))
		}
	}
	c := tls.Client(dial(t, "tcp", b.Addr("tls")), &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"})
	mustConnect(t, c, "x")
	start := time.Now()
	stop()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("stopped after %v", took)
	}
	got, err := io.ReadAll(c)
	if d, perr := packet.ParseServerDisconnect(got); perr != nil || d.Code != packet.CodeShuttingDown {
		t.Errorf("got % X, %v", got, err)
	}
}

// What cannot be opened says which listener it is.
func TestListenerThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	b, _ := run(t, Options{Listeners: []Listener{{Name: "a", Address: "127.0.0.1:0"}}}, nil)
	for _, l := range []Listener{
		{Name: "taken", Address: b.Addr("a")},
		{Name: "uncertified", Type: transport.TLS, Address: "127.0.0.1:0"},
		{Name: "strange", Type: "udp", Address: "127.0.0.1:0"},
	} {
		_, err := Open(Options{Store: store.Options{Dir: t.TempDir(), JournalFileBytes: 8 << 20}, Listeners: []Listener{{Name: "first", Address: "127.0.0.1:0"}, l}})
		if err == nil || !strings.Contains(err.Error(), `listener "`+l.Name+`"`) {
			t.Errorf("got %v", err)
		}
	}
}
