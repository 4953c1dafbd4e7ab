package session

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// hungUp tells whether the other side of a connection has closed it, though what it sent before may not have been read.
func hungUp(c net.Conn) (closed bool) {
	for {
		if l, ok := c.(interface{ Under() net.Conn }); ok { // TLS, WebSocket
			c = l.Under()
		} else if s, ok := c.(interface{ Raw() net.Conn }); ok {
			c = s.Raw()
		} else {
			break
		}
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	sys, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	_ = sys.Control(func(fd uintptr) { // an error means that we have closed it
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		closed = err == nil && n > 0
	})
	return closed
}
