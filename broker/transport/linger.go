package transport

import (
	"io"
	"net"
	"sync/atomic"
	"time"
)

const lingerTime = 500 * time.Millisecond

// MaxLinger is how many sockets may linger at once: a flood of connections that come and go must not hold on to as many.
const MaxLinger = 1024

var lingering, lingerLimit atomic.Int32

func init() { lingerLimit.Store(MaxLinger) }

// LimitLinger lowers MaxLinger for this process, which has few file descriptors.
func LimitLinger(n int) { lingerLimit.Store(int32(min(n, MaxLinger))) }

// Linger asks for leave to let one more socket linger; Lingered gives it back.
func Linger() bool {
	if lingering.Add(1) > lingerLimit.Load() {
		lingering.Add(-1)
		return false
	}
	return true
}

// Lingered is the end of what Linger allowed.
func Lingered() { lingering.Add(-1) }

// Socket is an accepted TCP or unix socket. Its Close says goodbye first and then, for a short time, takes what the peer is
// still sending: a socket that is closed with something unread is reset, and the reset overtakes what was written last, which
// is where the broker says why it closes.
type Socket struct {
	half
	closed atomic.Bool
}

// half is what *net.TCPConn and *net.UnixConn have in common.
type half interface {
	net.Conn
	CloseWrite() error
}

// Raw returns the connection as package net made it.
func (s *Socket) Raw() net.Conn { return s.half }

// Close implements net.Conn. It does not wait. Whoever reads is told at once.
func (s *Socket) Close() error { return s.close(lingerTime) }

func (s *Socket) close(linger time.Duration) error {
	switch {
	case s.closed.Swap(true):
		return nil
	case !Linger():
		return s.half.Close()
	case s.CloseWrite() != nil:
		Lingered()
		return s.half.Close()
	}
	_ = s.SetReadDeadline(time.Unix(1, 0))                        // an error shows in the read
	late := time.AfterFunc(linger, func() { _ = s.half.Close() }) // whoever still has the connection may set a deadline
	go func() {
		defer Lingered()
		// There is one reader at a time, so this one returns, with nothing, when an earlier one has. Without it the deadline would be taken back
		// before that one has woken up, and it would sleep on: the client's next connection waits for it.
		_, _ = s.half.Read(make([]byte, 1))
		_ = s.SetReadDeadline(time.Time{})
		_, _ = io.Copy(io.Discard, struct{ io.Reader }{s.half}) // until the peer closes
		late.Stop()
		_ = s.half.Close()
	}()
	return nil
}
