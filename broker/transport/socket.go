package transport

import (
	"net"
	"sync"
	"time"
)

// socket is what TLS and WebSocket take for the network. Deadlines are the connection's affair: they are set on the
// stream, and what the layers between set themselves counts only as far as it comes earlier. (crypto/tls gives its
// close_notify five seconds, by which one client that does not read would hold up a shutdown.)
type socket struct {
	net.Conn
	mu    sync.Mutex
	limit time.Time // for writes; zero is none
}

// SetDeadline and SetReadDeadline are those of the layers above.
func (s *socket) SetDeadline(t time.Time) error   { return s.SetWriteDeadline(t) }
func (s *socket) SetReadDeadline(time.Time) error { return nil }

func (s *socket) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.limit.IsZero() && (t.IsZero() || t.After(s.limit)) {
		t = s.limit
	}
	return s.Conn.SetWriteDeadline(t)
}

func (s *socket) limitWrites(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = t
	return s.Conn.SetWriteDeadline(t)
}

// stream is the connection as the broker has it: the outermost layer, and the deadlines of the socket under it.
type stream struct {
	net.Conn
	socket *socket
	peer   string
}

// Under returns the connection that everything goes through in the end.
func (s *stream) Under() net.Conn { return s.socket.Conn }

// PeerName returns the common name in the client's certificate, which has been verified; "" if there is none.
func (s *stream) PeerName() string { return s.peer }

func (s *stream) SetDeadline(t time.Time) error {
	if err := s.SetReadDeadline(t); err != nil {
		return err
	}
	return s.SetWriteDeadline(t)
}

func (s *stream) SetReadDeadline(t time.Time) error  { return s.socket.Conn.SetReadDeadline(t) }
func (s *stream) SetWriteDeadline(t time.Time) error { return s.socket.limitWrites(t) }
