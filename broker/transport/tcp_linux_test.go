package transport

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An accepted socket has what package net would have set on it.
func TestAcceptedSocketsAreProbed(t *testing.T) {
	l, err := Listen(Options{Type: TCP, Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.DialTimeout("tcp", l.Addr(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	sys, err := c.(*Socket).Raw().(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct {
		name       string
		level, opt int
		want       int
	}{
		{"keep-alive", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"silence before a probe", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, probeAfter},
		{"between probes", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, probeEvery},
		{"probes", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, probes},
		{"no delay", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
	} {
		var got int
		if e := sys.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), o.level, o.opt) }); e != nil || err != nil {
			t.Fatal(e, err)
		}
		if got != o.want {
			t.Errorf("%s: %d, want %d", o.name, got, o.want)
		}
	}
	_ = c.(*Socket).Raw().Close()
}
