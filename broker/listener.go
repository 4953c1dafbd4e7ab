package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/listeners"

	"github.com/edgemq/edgemq/broker/conn"
	"github.com/edgemq/edgemq/broker/session"
	"github.com/edgemq/edgemq/broker/transport"
	"github.com/edgemq/edgemq/hooks"
)

// acceptor is what a transport.Listener does for us.
type acceptor interface {
	Accept() (net.Conn, error)
	Handshake(raw net.Conn, by time.Time) (net.Conn, error)
	Addr() string
	Close() error
}

// loop is what poll.Loop does for us.
type loop interface {
	Run()
	Close()
}

// listener is a listeners.Listener whose connections are ours. It differs from mochi's own in that an accept that fails for a
// while (no file descriptors left) does not end it, and a panic ends one connection and not the process.
type listener struct {
	opt    Listener
	conn   conn.Options
	door   *hooks.Handshake
	m      *session.Manager
	total  *atomic.Int64 // connections of all listeners
	limit  int64         // of them; 0 for none
	logger *slog.Logger

	net                acceptor
	open               atomic.Int64
	wg                 sync.WaitGroup // of connections
	closed             chan struct{}
	loop               loop // nil if every connection is a goroutine
	porters            porters
	refusals, failures seldom

	mu      sync.Mutex
	closing bool                  // nothing is added to pending any more
	pending map[net.Conn]struct{} // accepted and not yet a conn.Conn
}

// Init implements listeners.Listener: it opens the address.
func (l *listener) Init(*slog.Logger) error {
	l.closed, l.pending = make(chan struct{}), map[net.Conn]struct{}{}
	o := l.opt
	t, err := transport.Listen(transport.Options{
		Type: o.Type, Address: o.Address, Mode: o.Mode, TLS: o.TLS, Path: o.Path, Origins: o.Origins,
		Logger: l.logger.With("listener", o.Name),
	})
	if err != nil {
		return fmt.Errorf("listener %q: %w", o.Name, err)
	}
	l.net = t
	l.watch(t)
	return nil
}

// ID implements listeners.Listener.
func (l *listener) ID() string { return l.opt.Name }

// Protocol implements listeners.Listener.
func (l *listener) Protocol() string { return l.opt.Type }

// Address implements listeners.Listener.
func (l *listener) Address() string {
	if l.net != nil {
		return l.net.Addr()
	}
	return l.opt.Address
}

// Serve implements listeners.Listener: it accepts until Close, and returns when the goroutines that did have ended.
func (l *listener) Serve(listeners.EstablishFn) {
	if l.loop != nil {
		l.loop.Run()
		return
	}
	l.porters.call(l.keep)
	l.porters.wg.Wait()
}

// keep is the goroutine of a porter.
func (l *listener) keep(p *porter) {
	for {
		raw := l.accept()
		if raw == nil {
			l.porters.dismiss()
			return
		}
		l.porters.call(l.keep)
		l.serve(raw)
		if !l.porters.rest(p) {
			return
		}
	}
}

// accept returns the next connection, nil when the listener is closed. It is called by one goroutine at a time.
func (l *listener) accept() net.Conn {
	wait := time.Duration(0)
	for {
		raw, err := l.net.Accept()
		if err != nil {
			if l.isClosed() || errors.Is(err, net.ErrClosed) {
				return nil
			}
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			l.acceptFailed(err, wait)
			select {
			case <-time.After(wait):
				continue
			case <-l.closed:
				return nil
			}
		}
		wait = 0
		if l.refuses(raw) {
			refuse(raw)
			continue
		}
		if !l.begin(raw) {
			_ = raw.Close()
			return nil
		}
		return raw
	}
}

func (l *listener) acceptFailed(err error, wait time.Duration) {
	l.failures.note(l.logger, "accepting a connection failed, trying again", "listener", l.opt.Name, "err", err, "wait", wait)
}

// refuses tells whether the listener has its maximum of connections, and if so notes that raw is refused.
func (l *listener) refuses(raw net.Conn) bool {
	if !l.full() {
		return false
	}
	l.refusals.note(l.logger, "connection refused, the listener has its maximum", "listener", l.opt.Name, "remote", raw.RemoteAddr())
	return true
}

// seldom logs what strangers can bring about, a line a second at most: who floods a listener must not fill a gateway's disk
// with lines about it. It belongs to the goroutine that accepts.
type seldom struct {
	logged time.Time
	since  int // that were not logged
}

func (s *seldom) note(to *slog.Logger, msg string, attrs ...any) {
	s.since++
	if now := time.Now(); now.Sub(s.logged) >= time.Second {
		to.Warn(msg, append(attrs, "times", s.since)...)
		s.logged, s.since = now, 0
	}
}

// refuse closes a connection that nothing was written to: it need not linger.
func refuse(raw net.Conn) {
	if s, ok := raw.(*transport.Socket); ok {
		raw = s.Raw()
	}
	_ = raw.Close()
}

func (l *listener) full() bool {
	return l.opt.MaxConnections > 0 && l.open.Load() >= int64(l.opt.MaxConnections) || l.limit > 0 && l.total.Load() >= l.limit
}

// begin counts a connection that was accepted, unless the listener is closing.
func (l *listener) begin(raw net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return false
	}
	l.pending[raw] = struct{}{}
	l.wg.Add(1)
	l.open.Add(1)
	l.total.Add(1)
	return true
}

func (l *listener) end(raw net.Conn) {
	l.mu.Lock()
	if _, panicked := l.pending[raw]; panicked {
		delete(l.pending, raw)
		_ = raw.Close()
	}
	l.mu.Unlock()
	l.open.Add(-1)
	l.total.Add(-1)
	l.wg.Done()
}

// serve is what a porter does for a new connection: the handshakes of its transport, then mochi's, which is the one of MQTT, and what follows
// at once.
func (l *listener) serve(raw net.Conn) {
	if c, err := l.greet(raw); err != nil || c == nil {
		l.finish(raw, c, err)
	} else {
		l.welcome(raw, c)
	}
}

// welcome is for a connection whose CONNECT has come.
func (l *listener) welcome(raw net.Conn, c *conn.Conn) {
	if err := l.admit(raw, c); err != nil {
		l.finish(raw, c, err)
	} else {
		l.run(raw, c)
	}
}

// run is the goroutine of a connection whose client is in.
func (l *listener) run(raw net.Conn, c *conn.Conn) {
	if l.read(raw, c) {
		l.finish(raw, c, nil)
	} else if !l.park(raw, c) {
		go l.run(raw, c)
	}
}

func (l *listener) read(raw net.Conn, c *conn.Conn) (over bool) {
	over = true
	defer l.caught(raw)
	return c.Serve()
}

// caught ends a panic, which ends one connection and not the process.
func (l *listener) caught(raw net.Conn) {
	if p := recover(); p != nil {
		l.m.Fault("panic in a connection, which was closed", p, "listener", l.opt.Name, "remote", raw.RemoteAddr())
	}
}

var errNotIn = errors.New("the client was not let in")

// greet does the handshakes of the transport and has the CONNECT come. The Conn is nil if it did not come as far as MQTT.
func (l *listener) greet(raw net.Conn) (c *conn.Conn, err error) {
	err = errNotIn // after a panic
	defer l.caught(raw)
	connectBy := time.Now().Add(l.opt.ConnectTimeout)
	stream, shook := l.net.Handshake(raw, connectBy)
	if c = l.established(raw, stream, shook, connectBy); c == nil {
		return nil, shook
	}
	return c, c.Await()
}

// admit does the handshake of MQTT. Without an error the client is in.
func (l *listener) admit(raw net.Conn, c *conn.Conn) (err error) {
	err = errNotIn // after a panic
	defer l.caught(raw)
	if err := l.door.Establish(l.opt.Name, c); err != nil {
		return err
	}
	if !c.Kept() {
		return errNotIn
	}
	return nil
}

// finish is the end of a connection.
func (l *listener) finish(raw net.Conn, c *conn.Conn, err error) {
	defer l.end(raw)
	defer l.caught(raw)
	if c == nil {
		attrs := []any{"listener", l.opt.Name, "remote", raw.RemoteAddr()}
		if err != nil {
			attrs = append(attrs, "err", err)
		}
		l.logger.Debug("connection ended before it began", attrs...)
		return
	}
	c.Finish()
	if id := c.ClientID(); id != "" {
		attrs := []any{"client", id, "remote", raw.RemoteAddr()}
		if cause := c.Link().Cause(); cause != "" {
			attrs = append(attrs, "cause", cause)
		}
		if err != nil {
			attrs = append(attrs, "err", err)
		}
		l.logger.Debug("connection ended", attrs...)
	}
}

// established makes a Conn of a connection after its handshakes, nil if they failed or the listener is closing. Whoever has
// closed the listener then either finds the Conn's link with the manager or has closed raw.
func (l *listener) established(raw, stream net.Conn, err error, connectBy time.Time) *conn.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pending, raw)
	if err != nil {
		return nil
	}
	if l.closing {
		_ = stream.Close()
		return nil
	}
	return conn.New(stream, l.m, &l.conn, connectBy)
}

func (l *listener) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// Close implements listeners.Listener. Connections that have not come as far as MQTT are closed.
func (l *listener) Close(closeClients listeners.CloseFn) {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		return
	}
	l.closing = true
	close(l.closed)
	for raw := range l.pending {
		_ = raw.Close()
	}
	l.mu.Unlock()
	if l.loop != nil {
		l.loop.Close()
	}
	if l.net != nil {
		_ = l.net.Close() // the accept loop ends either way
	}
	closeClients(l.opt.Name)
}
