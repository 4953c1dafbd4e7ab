package transport

import (
	"context"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// How a connection on which nothing is heard is probed: package net's values.
const (
	probeAfter = 15 // seconds of silence
	probeEvery = 15 // seconds
	probes     = 9
)

// listenTCP opens a TCP address. An accepted socket inherits the options of the one that listens. So what package net would set on each
// with four system calls is set once.
func listenTCP(address string) (net.Listener, error) {
	lc := net.ListenConfig{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = setKeepAlive(int(fd)) }); e != nil {
			return e
		}
		return err
	}}
	l, err := lc.Listen(context.Background(), "tcp", address)
	if err != nil { // the address, or a kernel that does not know the options here: package net can say which
		return net.Listen("tcp", address)
	}
	return l, nil
}

func setKeepAlive(fd int) error {
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, probeAfter},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, probeEvery},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, probes},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return err
		}
	}
	return nil
}
