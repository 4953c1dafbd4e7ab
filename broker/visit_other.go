//go:build !linux

package broker

import (
	"net"

	"github.com/edgemq/edgemq/broker/conn"
	"github.com/edgemq/edgemq/broker/transport"
)

// watch is for systems that have epoll: here every connection is a goroutine.
func (l *listener) watch(*transport.Listener) {}

func (l *listener) park(net.Conn, *conn.Conn) bool { return false }
