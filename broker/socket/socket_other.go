//go:build !unix

package socket

import (
	"net"
	"syscall"
)

// Direct returns the way to a connection's descriptor: there is none here.
func Direct(net.Conn) syscall.RawConn { return nil }

// Read is for what Direct returned, which is nothing.
func Read(uintptr, []byte) (n int, again bool, err error) { panic("socket: no direct reads here") }

// Write is for what Direct returned, which is nothing.
func Write(uintptr, []byte) (n int, again bool, err error) { panic("socket: no direct writes here") }
