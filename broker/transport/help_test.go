package transport_test

import (
	"net"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/transport"
)

// patience is how long tests wait for what must happen.
const patience = 20 * time.Second

// server is a Listener whose connections come out of a channel.
type server struct {
	*transport.Listener
	t        testing.TB
	accepted chan result
}

type result struct {
	conn net.Conn
	err  error
	took time.Duration
}

// serve listens and does the handshake of every connection, each in a goroutine of its own, within the given time.
func serve(t testing.TB, o transport.Options, within time.Duration) *server {
	t.Helper()
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	l, err := transport.Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{Listener: l, t: t, accepted: make(chan result, 100)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				start := time.Now()
				conn, err := l.Handshake(raw, start.Add(within))
				s.accepted <- result{conn, err, time.Since(start)}
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return s
}

// next is the outcome of the next handshake that ends.
func (s *server) next() result {
	s.t.Helper()
	select {
	case r := <-s.accepted:
		if r.err == nil {
			s.t.Cleanup(func() {
				_ = r.conn.SetDeadline(time.Unix(1, 0)) // as the broker does: no waiting for the peer's goodbye
				_ = r.conn.Close()
			})
			_ = r.conn.SetReadDeadline(time.Now().Add(patience))
		}
		return r
	case <-time.After(patience):
		s.t.Fatal("the handshake does not end")
		return result{}
	}
}

// conn is the next connection, whose handshake must succeed.
func (s *server) conn() net.Conn {
	s.t.Helper()
	r := s.next()
	if r.err != nil {
		s.t.Fatal(r.err)
	}
	return r.conn
}

// dial opens a socket.
func (s *server) dial() net.Conn {
	s.t.Helper()
	network := "tcp"
	if s.Addr()[0] == '/' {
		network = "unix"
	}
	c, err := net.DialTimeout(network, s.Addr(), patience)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}
