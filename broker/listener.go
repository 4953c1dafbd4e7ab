package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/listeners"

	"github.com/edgemq/edgemq/broker/conn"
	"github.com/edgemq/edgemq/broker/session"
)

// listener is a listeners.Listener whose connections are ours. It differs from mochi's own in that an accept that fails for a
// while (no file descriptors left) does not end it, and a panic ends one connection and not the process.
type listener struct {
	opt    Listener
	conn   *conn.Options
	m      *session.Manager
	total  *atomic.Int64 // connections of all listeners
	limit  int64         // of them; 0 for none
	logger *slog.Logger

	net     net.Listener
	open    atomic.Int64
	closing atomic.Bool
	wg      sync.WaitGroup
}

// Init implements listeners.Listener: it opens the address.
func (l *listener) Init(*slog.Logger) error {
	var err error
	if l.net, err = net.Listen("tcp", l.opt.Address); err != nil {
		return fmt.Errorf("listener %q: %w", l.opt.Name, err)
	}
	return nil
}

// ID implements listeners.Listener.
func (l *listener) ID() string { return l.opt.Name }

// Protocol implements listeners.Listener.
func (l *listener) Protocol() string { return l.opt.Type }

// Address implements listeners.Listener.
func (l *listener) Address() string {
	if l.net != nil {
		return l.net.Addr().String()
	}
	return l.opt.Address
}

// Serve implements listeners.Listener: it accepts until Close.
func (l *listener) Serve(establish listeners.EstablishFn) {
	wait := time.Duration(0)
	for {
		raw, err := l.net.Accept()
		switch {
		case err == nil:
			wait = 0
		case l.closing.Load() || errors.Is(err, net.ErrClosed):
			return
		default:
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			l.logger.Warn("accepting a connection failed, trying again", "listener", l.opt.Name, "err", err, "wait", wait)
			time.Sleep(wait)
			continue
		}
		if l.full() {
			l.logger.Warn("connection refused, the listener has its maximum", "listener", l.opt.Name, "remote", raw.RemoteAddr())
			_ = raw.Close()
			continue
		}
		l.wg.Add(1)
		l.open.Add(1)
		l.total.Add(1)
		go l.serve(raw, establish)
	}
}

func (l *listener) full() bool {
	return l.opt.MaxConnections > 0 && l.open.Load() >= int64(l.opt.MaxConnections) || l.limit > 0 && l.total.Load() >= l.limit
}

// serve is the goroutine of one connection: mochi reads from it until its end.
func (l *listener) serve(raw net.Conn, establish listeners.EstablishFn) {
	c := conn.New(raw, l.m, l.conn)
	defer l.wg.Done()
	defer l.total.Add(-1)
	defer l.open.Add(-1)
	defer c.Finish()
	defer func() {
		if p := recover(); p != nil {
			l.logger.Error("panic in a connection, which was closed", "remote", raw.RemoteAddr(), "panic", p, "stack", string(debug.Stack()))
		}
	}()
	err := establish(l.opt.Name, c)
	if id := c.ClientID(); id != "" {
		l.logger.Debug("connection ended", "client", id, "remote", raw.RemoteAddr(), "cause", c.Link().Cause(), "err", err)
	}
}

// Close implements listeners.Listener.
func (l *listener) Close(closeClients listeners.CloseFn) {
	if l.closing.Swap(true) {
		return
	}
	_ = l.net.Close() // the accept loop ends either way
	closeClients(l.opt.Name)
}
