//go:build unix

package socket

import (
	"net"
	"syscall"
)

// Direct returns the way to a connection's descriptor, nil if its bytes go through more than a socket, as with TLS.
func Direct(c net.Conn) syscall.RawConn {
	if s, ok := c.(interface{ Raw() net.Conn }); ok {
		c = s.Raw()
	}
	if s, ok := c.(interface{ Direct() syscall.RawConn }); ok {
		return s.Direct()
	}
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn:
		if sys, err := c.(syscall.Conn).SyscallConn(); err == nil {
			return sys
		}
	}
	return nil
}

// Read reads once; again means that there is nothing to read for now.
func Read(fd uintptr, p []byte) (n int, again bool, err error) { return once(syscall.Read, fd, p) }

// Write writes once; again means that the socket takes no more for now.
func Write(fd uintptr, p []byte) (n int, again bool, err error) { return once(syscall.Write, fd, p) }

func once(do func(int, []byte) (int, error), fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, err = do(int(fd), p)
		switch err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return 0, true, nil
		}
		return max(n, 0), false, err
	}
}
