//go:build !unix

package conn

import "net"

// pollable tells whether a connection's descriptor can be read directly: not here.
func pollable(net.Conn) bool { return false }

func readSocket(uintptr, []byte) (n int, again bool, err error) { panic("conn: no direct reads here") }
