//go:build unix

package conn

import (
	"net"
	"syscall"
)

// pollable tells whether a connection's descriptor can be read directly.
func pollable(c net.Conn) bool {
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn:
		return true
	}
	return false
}

// readSocket reads without waiting; again means that there is nothing to read.
func readSocket(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, err = syscall.Read(int(fd), p)
		switch err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return 0, true, nil
		}
		return max(n, 0), false, err
	}
}
