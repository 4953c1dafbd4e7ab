package sdk

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"github.com/edgemq/edgemq/broker/packet"
)

// maxFrame bounds what the broker may send at once; a broken one must not cost all memory.
const maxFrame = 64 << 20

// socket stands between the network and paho. Reading takes PUBLISH and PUBACK out of the stream and hands paho
// the rest, one frame at a time; it runs in paho's reading goroutine. Writing is open to paho and to the outbox:
// both write whole packets, under one lock.
//
// Why not let paho have them: a token of paho's completes without a PUBACK after a reconnect, its Ack does
// nothing once the connection has changed, a handler that waits stalls the keep-alive, and every message passes
// five goroutines and two to four system calls.
type socket struct {
	net.Conn
	in           inbound
	writeTimeout time.Duration

	wmu sync.Mutex

	buf        []byte // read from the network; buf[start:end] is not looked at yet
	start, end int
	pass       []byte // what paho has still to read of its frame
}

// inbound is told what comes, in order, by the reading goroutine. An error ends the connection.
type inbound interface {
	published(frame []byte) error // valid during the call
	acknowledged(id uint16)
	granted(ok bool) // the subscription to receipts
	quiet()          // all that was read has been handed over
}

// errEnded is what paho is told when we have closed the connection: it takes net.ErrClosed for its own doing, and
// leaves its goroutines waiting.
var errEnded = errors.New("edgemq: the connection was ended")

// Read gives paho its frames.
func (s *socket) Read(p []byte) (int, error) {
	for len(s.pass) == 0 {
		frame, err := s.next()
		if errors.Is(err, net.ErrClosed) {
			err = errEnded
		}
		if err != nil {
			return 0, err
		}
		switch packet.TypeOf(frame) {
		case packet.TypePublish:
			if err := s.in.published(frame); err != nil {
				return 0, err
			}
		case packet.TypePuback:
			var a packet.Ack
			if err := packet.ParseAck(packet.V311, frame, &a); err != nil {
				return 0, err
			}
			s.in.acknowledged(a.PacketID)
		case packet.TypeSuback:
			if a, err := packet.ParseSuback(packet.V311, frame); err != nil {
				return 0, err
			} else if a.PacketID != receiptsID {
				s.pass = frame
			} else {
				s.in.granted(a.Codes[0] < packet.CodeUnspecified)
			}
		default:
			s.pass = frame
		}
	}
	n := copy(p, s.pass)
	s.pass = s.pass[n:]
	return n, nil
}

// next returns the next frame, valid until the next call.
func (s *socket) next() ([]byte, error) {
	for {
		size, _, err := packet.Split(s.buf[s.start:s.end], packet.V311, maxFrame)
		if err != nil {
			return nil, err
		}
		if size > 0 && size <= s.end-s.start {
			frame := s.buf[s.start : s.start+size : s.start+size]
			s.start += size
			return frame, nil
		}
		s.in.quiet()
		if err := s.fill(size); err != nil {
			return nil, err
		}
	}
}

// fill reads more. size is that of the frame begun, if it is known.
func (s *socket) fill(size int) error {
	const buffer = 64 << 10
	if s.start > 0 || len(s.buf) < size || s.buf == nil {
		into := s.buf
		if want := max(buffer, size); len(into) < want || len(into) > 4*want {
			into = make([]byte, want)
		}
		s.end = copy(into, s.buf[s.start:s.end])
		s.buf, s.start = into, 0
	}
	if s.end == len(s.buf) { // a header longer than the buffer cannot be
		return io.ErrShortBuffer
	}
	n, err := s.Conn.Read(s.buf[s.end:])
	s.end += n
	if n > 0 {
		return nil
	}
	return err
}

// Write writes whole packets.
func (s *socket) Write(p []byte) (int, error) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if err := s.Conn.SetWriteDeadline(time.Now().Add(s.writeTimeout)); err != nil {
		return 0, err
	}
	return s.Conn.Write(p)
}

// SetDeadline leaves the deadline for writing to Write: paho sets one for its handshake.
func (s *socket) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

// SetWriteDeadline does nothing: Write sets its own.
func (s *socket) SetWriteDeadline(time.Time) error { return nil }

// dial opens the network connection.
func dial(ctx context.Context, o *settings) (net.Conn, error) {
	d := &net.Dialer{Timeout: o.connectTimeout}
	u := o.url
	host := func(port string) string {
		if u.Port() == "" {
			return net.JoinHostPort(u.Hostname(), port)
		}
		return u.Host
	}
	switch u.Scheme {
	case "mqtt", "tcp":
		return d.DialContext(ctx, "tcp", host("1883"))
	case "mqtts", "ssl", "tls":
		t := tls.Dialer{NetDialer: d, Config: o.tls}
		return t.DialContext(ctx, "tcp", host("8883"))
	case "unix":
		return d.DialContext(ctx, "unix", u.Host+u.Path)
	default: // ws, wss
		plain := *u
		plain.User = nil
		return mqtt.NewWebsocket(plain.String(), o.tls, o.connectTimeout, o.header, nil)
	}
}
