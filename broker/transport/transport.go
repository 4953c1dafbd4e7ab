// Package transport opens the addresses that clients connect to and makes of what is accepted a plain stream of MQTT
// bytes: a TCP or unix socket as it is, or through TLS, WebSocket, or both. It knows nothing of MQTT but the names of its
// subprotocols.
//
// Accept is quick and Handshake need not be: a peer that stalls in a handshake has a goroutine of its own to stall.
package transport

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"sync/atomic"
	"time"
)

// The types of listeners.
const (
	TCP  = "tcp"
	TLS  = "tls"
	WS   = "ws"
	WSS  = "wss"
	Unix = "unix"
)

// Options say what to listen on. Every zero is a default.
type Options struct {
	Type    string // TCP, TLS, WS, WSS or Unix; "" means TCP
	Address string // host:port, of Unix the path of the socket

	Mode fs.FileMode // Unix: permissions of the socket; 0 means 0660

	TLS TLSOptions // TLS and WSS

	Path    string   // WS and WSS: where clients are upgraded; "" means /mqtt
	Origins []string // WS and WSS: hosts of web pages that may connect, "*" for all; a page of the same host always may

	Logger *slog.Logger // nil discards
}

// secure and web tell what a connection goes through.
func (o *Options) secure() bool { return o.Type == TLS || o.Type == WSS }
func (o *Options) web() bool    { return o.Type == WS || o.Type == WSS }

// Listener is an open address.
type Listener struct {
	opt     Options
	net     net.Listener
	addr    string
	certs   *certificates // nil without TLS
	closing atomic.Bool
}

// Listen opens the address.
func Listen(o Options) (*Listener, error) {
	if o.Type == "" {
		o.Type = TCP
	}
	if o.Mode == 0 {
		o.Mode = 0o660
	}
	if o.Path == "" {
		o.Path = "/mqtt"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Listener{opt: o}
	var err error
	if o.secure() {
		if l.certs, err = loadCertificates(o.TLS, o.web(), o.Logger); err != nil {
			return nil, err
		}
	}
	switch o.Type {
	case TCP, TLS, WS, WSS:
		l.net, err = listenTCP(o.Address)
	case Unix:
		l.net, err = ListenUnix(o.Address, o.Mode)
	default:
		err = fmt.Errorf("type %q is not tcp, tls, ws, wss or unix", o.Type)
	}
	if err != nil {
		return nil, err
	}
	l.addr = l.net.Addr().String()
	return l, nil
}

// Addr returns the address, with the port that the system chose.
func (l *Listener) Addr() string {
	return l.addr
}

// Accept waits for the next connection, which is to go through Handshake.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.net.Accept()
	if h, ok := c.(half); ok && err == nil {
		return &Socket{half: h}, nil
	}
	return c, err
}

// Handshake does what comes before the first byte of MQTT, which must be over at the given time. If it fails it closes raw. The read
// deadline of what it returns is for the caller to set.
func (l *Listener) Handshake(raw net.Conn, by time.Time) (net.Conn, error) {
	if !l.opt.secure() && !l.opt.web() {
		return raw, nil
	}
	s := &socket{Conn: raw}
	out := &stream{Conn: s, socket: s}
	if err := l.handshake(out, by); err != nil {
		return nil, errors.Join(err, ignoreClosed(out.Close()))
	}
	s.limitWrites(time.Time{})
	return out, nil
}

func (l *Listener) handshake(out *stream, by time.Time) error {
	_ = out.SetDeadline(by)
	if l.certs != nil {
		conn, err := l.certs.handshake(out.Conn)
		if err != nil {
			return fmt.Errorf("TLS handshake: %w", err)
		}
		if chains := conn.ConnectionState().VerifiedChains; len(chains) > 0 {
			out.peer = chains[0][0].Subject.CommonName
		}
		out.Conn = conn
	}
	if l.opt.web() {
		conn, err := l.upgrade(out.Conn)
		if err != nil {
			return fmt.Errorf("WebSocket handshake: %w", err)
		}
		out.Conn = conn
	}
	return nil
}

// Close ends accepting. Connections live on; a WebSocket that is closed from now on says that the server goes away.
func (l *Listener) Close() error {
	l.closing.Store(true)
	return l.net.Close()
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// TCP returns the listener if connections come by TCP and through nothing else, nil otherwise.
func (l *Listener) TCP() *net.TCPListener {
	if t, ok := l.net.(*net.TCPListener); ok && l.opt.Type == TCP {
		return t
	}
	return nil
}
