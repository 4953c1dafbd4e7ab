//go:build !unix

package session

import (
	"net"
	"syscall"
)

// direct returns the way to a connection's descriptor: there is none here.
func direct(net.Conn) syscall.RawConn { return nil }

func writeSocket(uintptr, []byte) (n int, again bool, err error) {
	panic("session: no direct writes here")
}
