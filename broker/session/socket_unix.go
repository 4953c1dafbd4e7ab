//go:build unix

package session

import (
	"net"
	"syscall"
)

// direct returns the way to a connection's descriptor, nil if its bytes go through more than a socket.
func direct(c net.Conn) syscall.RawConn {
	if s, ok := c.(interface{ Raw() net.Conn }); ok {
		c = s.Raw()
	}
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn:
		if sys, err := c.(syscall.Conn).SyscallConn(); err == nil {
			return sys
		}
	}
	return nil
}

// writeSocket writes without waiting; again means that the socket takes no more for now.
func writeSocket(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, err = syscall.Write(int(fd), p)
		switch err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return 0, true, nil
		}
		return max(n, 0), false, err
	}
}
