// Package conn is a connection: frames in, and what they say carried out.
//
// It reads the socket into a buffer of its own, cuts it into frames, and validates each with the strict codec of package
// packet. mochi is given the CONNECT (TakeConnect), so it never sees anything malformed, and lets the client in or not; for what it answers a Conn is its net.Conn,
// which sends our CONNACK in place of its own. That is all that mochi has to do with the connection (Keep).
//
// From there on there is one reader. While the client is active that is a goroutine (Serve); a connection that a loop can wait for (package
// poll) is read by the loop while it is new or quiet (Look, Proceed). Either way all publishes of one read go to the store in one append, and answers join the
// queue of the link's one writer.
package conn

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/session"
)

// Options are the limits of a connection. Every field is set by the broker.
type Options struct {
	MaxPacket    int    // bytes; announced, and bounds every frame before anything is allocated
	MaxKeepAlive uint16 // seconds; 0 leaves the choice to the client
	NoAnonymous  bool   // clients need a user's name and password
	// CertificateNames makes the name in a client's certificate its user's.
	CertificateNames bool
	// Quiet is how long a client must have been silent, half of it at least, for Serve to return and a loop to wait for it, where there is one.
	Quiet time.Duration
	// Connack fills in what is announced to an MQTT 5 client besides what the connection itself knows.
	Connack packet.Connack
}

// maxConnect bounds the first packet, which comes from somebody unknown.
const maxConnect = 256 << 10

// maxClientID bounds a client id: with a topic filter it is a key in the state.
const maxClientID = 4096

// Conn is one connection. One goroutine at a time calls Await, has mochi do the handshake, and calls Serve and Finish; or Look and Proceed.
type Conn struct {
	raw  net.Conn
	link *session.Link
	m    *session.Manager
	opt  *Options
	in   input

	hand []byte // what mochi has yet to read of the CONNECT
	kept bool   // mochi has let the client in and has nothing more to do with the connection

	unsaved bool // the session may not be saved yet

	foreseen int // packets that the link has looked at already

	parsed *parsed // made at first use

	assigned  bool // the client id is ours
	keepAlive uint16
	attached  bool
	refusal   error // why the client is not let in
	present   bool  // the session was there
}

// parsed is scratch of the reader, which most idle clients never need.
type parsed struct {
	publish packet.Publish
	ack     packet.Ack
}

// New returns the Conn of a connection that has just been accepted, whose CONNECT must have come by the given time.
func New(raw net.Conn, m *session.Manager, o *Options, connectBy time.Time) *Conn {
	c := &Conn{raw: raw, link: m.NewLink(raw), m: m, opt: o}
	if _, ok := raw.(waiting); ok {
		c.in.quiet = o.Quiet
	}
	c.in.init(raw, c.link, connectBy)
	return c
}

// Link returns the connection's link.
func (c *Conn) Link() *session.Link { return c.link }

// Await reads until the CONNECT has come and is what mochi may see.
func (c *Conn) Await() error {
	for {
		need, err := c.work()
		if err == nil && len(c.hand) > 0 {
			return nil
		}
		if err == nil {
			err = c.in.fill(need)
		}
		if err != nil {
			c.fail(err)
			return err
		}
	}
}

// TakeConnect returns what mochi is to know of the CONNECT that Await has read, without its fixed header.
func (c *Conn) TakeConnect() []byte {
	body := c.hand
	c.hand = nil
	for i, b := range body {
		if i > 0 && b < 0x80 { // the last byte of the length
			return body[i+1:]
		}
	}
	return nil
}

// Read implements net.Conn. There is nothing for mochi to read.
func (c *Conn) Read([]byte) (int, error) { return 0, io.EOF }

// Keep takes the connection over from mochi, which has let its client in: what mochi does to end its part is not to
// end the connection.
func (c *Conn) Keep() { c.kept = true }

// Kept tells whether Keep was called: there is something to Serve.
func (c *Conn) Kept() bool { return c.kept }

// Serve reads what the client sends until the end of the connection. It reports false if it is not over and had better be called
// again from a new goroutine: one that waits for a client needs the smallest of stacks, and has it if it has done nothing else before.
func (c *Conn) Serve() (over bool) {
	for {
		need, err := c.work()
		if err == nil {
			if c.in.idled {
				c.in.idled = false
				return false
			}
			err = c.in.fill(need)
		}
		if err != nil {
			c.flush() // what came before it is the client's good right
			c.fail(err)
			return true
		}
	}
}

// work deals with the whole frames that have come in. It returns the size of the one that is not whole yet, 0 if unknown,
// or with something in hand for mochi.
func (c *Conn) work() (need int, err error) {
	for {
		size, err := c.split()
		if err != nil {
			return 0, err
		}
		if size == 0 || size > c.in.len() {
			c.flush()
			if !c.link.WaitRoom() {
				return 0, io.EOF
			}
			return size, nil
		}
		if c.foreseen <= 0 {
			c.foreseen = c.link.Foresee(c.in.bytes())
		}
		c.foreseen--
		if err := c.frame(c.in.take(size)); err != nil || len(c.hand) > 0 {
			return 0, err
		}
	}
}

// flush hands on what was collected of earlier frames.
func (c *Conn) flush() {
	c.link.Flush()
	c.link.FlushAcks()
}

// split returns the size of the frame that the input begins with, 0 if that is not known yet.
func (c *Conn) split() (int, error) {
	v, limit := c.link.Version, c.opt.MaxPacket
	if c.link.Connect == nil {
		v, limit = 0, min(limit, maxConnect)
	}
	size, _, err := packet.Split(c.in.bytes(), v, limit)
	return size, err
}

// frame deals with one whole frame, or leaves it, the CONNECT, in hand for mochi.
func (c *Conn) frame(f []byte) error {
	t := packet.TypeOf(f)
	if c.link.Connect == nil {
		if t != packet.TypeConnect {
			return &packet.Error{Code: packet.CodeProtocol, Rule: "MQTT-3.1.0-1", Msg: "the first packet is not CONNECT"}
		}
		return c.connect(f)
	}
	if c.link.Session() == nil {
		return io.EOF // it could not be attached; the CONNACK said so
	}
	if c.unsaved && t != packet.TypeSubscribe {
		if err := c.link.Enter(); err != nil {
			return err
		}
		c.unsaved = false
	}
	switch v := c.link.Version; t {
	case packet.TypePublish:
		p := &c.scratch().publish
		if err := packet.ParsePublish(v, f, p); err != nil {
			e, ok := errors.AsType[*packet.Error](err)
			if !ok || e.Code != packet.CodeTopicInvalid || v != packet.V5 || p.QoS == 0 {
				return err
			} // else a wildcard in the topic: the link refuses the name in the PUBACK or PUBREC
		}
		return c.link.Publish(p)
	case packet.TypePuback, packet.TypePubrec, packet.TypePubcomp:
		a := &c.scratch().ack
		if err := packet.ParseAck(v, f, a); err != nil {
			return err
		}
		c.link.Ack(t, a)
		return nil
	case packet.TypePubrel:
		a := &c.scratch().ack
		if err := packet.ParseAck(v, f, a); err != nil {
			return err
		}
		c.link.Release(a)
		return nil
	case packet.TypePingreq:
		if err := packet.Check(v, f); err != nil {
			return err
		}
		c.answer(packet.AppendPingresp(nil)) // [MQTT-3.12.4-1]
		return nil
	case packet.TypeSubscribe:
		p, err := packet.ParseSubscribe(v, f)
		if err == nil {
			c.subscribe(p)
		}
		return err
	case packet.TypeUnsubscribe:
		p, err := packet.ParseUnsubscribe(v, f)
		if err == nil {
			c.unsubscribe(p)
		}
		return err
	case packet.TypeDisconnect:
		return c.disconnect(f)
	case packet.TypeConnect:
		return &packet.Error{Code: packet.CodeProtocol, Rule: "MQTT-3.1.0-2", Msg: "second CONNECT"}
	}
	if err := packet.Check(c.link.Version, f); err != nil {
		return err
	}
	return &packet.Error{Code: packet.CodeProtocol, Msg: fmt.Sprintf("%v is not expected", t)}
}

func (c *Conn) scratch() *parsed {
	if c.parsed == nil {
		c.parsed = new(parsed)
	}
	return c.parsed
}

// connect takes the CONNECT, gives the client an id if it has none, and hands mochi what mochi is to know of it: not the Will.
func (c *Conn) connect(f []byte) error {
	p, err := packet.ParseConnect(f)
	if err != nil {
		c.refuse(p, err)
		return err
	}
	if p.AuthMethod != "" {
		err := &packet.Error{Code: packet.CodeBadAuthMethod, Rule: "MQTT-4.12.0-1", Msg: "no authentication method is supported"}
		c.refuse(p, err)
		return err
	}
	if w := p.Will; w != nil && w.QoS > c.opt.Connack.MaximumQoS {
		err := &packet.Error{Code: packet.CodeQoSNotSupported, Rule: "MQTT-3.2.2-12", Msg: "Will QoS is not supported"}
		c.refuse(p, err)
		return err
	}
	if w := p.Will; w != nil && w.Retain && c.opt.Connack.NoRetain {
		err := &packet.Error{Code: packet.CodeRetainNotSupported, Rule: "MQTT-3.2.2-13", Msg: "retained messages are not supported"}
		c.refuse(p, err)
		return err
	}
	if len(p.ClientID) > maxClientID {
		err := &packet.Error{Code: packet.CodeClientIDInvalid, Rule: "MQTT-3.1.3-8", Msg: "client id is longer than 4096 bytes"}
		c.refuse(p, err)
		return err
	}
	if p.ClientID == "" { // [MQTT-3.1.3-6]
		p.ClientID, c.assigned = newClientID(), true
	}
	c.keepAlive = p.KeepAlive
	if most := c.opt.MaxKeepAlive; p.Version == packet.V5 && most > 0 && (p.KeepAlive == 0 || p.KeepAlive > most) {
		c.keepAlive = most // [MQTT-3.1.2-21]
	}
	c.link.Connect, c.link.Version = p, p.Version
	c.in.keepAlive(c.keepAlive)
	c.hand = p.AppendWithoutWill(nil)
	return nil
}

// refuse answers a CONNECT that is not accepted, as far as its version has an answer.
func (c *Conn) refuse(p *packet.Connect, err error) {
	var pe *packet.Error
	if p == nil || !errors.As(err, &pe) {
		return
	}
	code, ok := packet.ConnackCode(p.Version, pe.Code)
	if !ok {
		return
	}
	a := packet.Connack{Code: code}
	if p.Version == packet.V5 && !p.NoProblemInfo && (p.MaximumPacketSize == 0 || len(pe.Msg)+16 <= int(p.MaximumPacketSize)) {
		a.ReasonString = pe.Msg // [MQTT-3.2.2-19]
	}
	c.link.Version = p.Version
	c.link.Send(packet.AppendConnack(nil, p.Version, &a))
}

// disconnect does what a DISCONNECT says, and ends the connection.
func (c *Conn) disconnect(f []byte) error {
	d, err := packet.ParseDisconnect(c.link.Version, f)
	if err != nil {
		return err
	}
	if d.SessionExpiry > 0 && c.link.Connect.SessionExpiry == 0 {
		return &packet.Error{Code: packet.CodeProtocol, Msg: "session expiry set in DISCONNECT after 0 in CONNECT"} // 3.14.2.2.2
	}
	c.link.Goodbye(d)
	return io.EOF
}

// fail ends the connection after an error of reading: the client's, the network's, or none (the end).
func (c *Conn) fail(err error) {
	var pe *packet.Error
	switch {
	case errors.As(err, &pe):
		c.link.Kick(pe.Code, pe.Msg)
	case errors.Is(err, errKeepAlive):
		c.link.Kick(packet.CodeKeepAliveTimeout, "nothing received within 1.5 times the keep-alive") // [MQTT-3.1.2-22]
	case c.link.Draining():
	default:
		c.link.Close()
	}
}

// Authenticate tells whether the client of the CONNECT is let in; the hook for it asks.
func (c *Conn) Authenticate() bool {
	c.refusal = c.link.Login(c.door())
	return c.refusal == nil
}

func (c *Conn) door() session.Door {
	d := session.Door{NoAnonymous: c.opt.NoAnonymous, Assigned: c.assigned}
	if c.opt.CertificateNames {
		if s, ok := c.raw.(interface{ PeerName() string }); ok {
			d.Certificate = s.PeerName()
		}
	}
	return d
}

// Attach gives the connection its session; the hook for it calls it once the client is authenticated.
func (c *Conn) Attach() error {
	present, err := c.m.Attach(c.link)
	if c.present, c.attached, c.unsaved = present, err == nil, !present; err != nil {
		c.refusal = err
	}
	return err
}

func (c *Conn) subscribe(p *packet.Subscribe) {
	c.flush()
	c.link.HoldDeliveries(true)
	defer c.link.HoldDeliveries(false)
	codes, reason := c.link.Session().Subscribe(c.link, p)
	if codes != nil {
		a := packet.Suback{PacketID: p.PacketID, Codes: codes, ReasonString: c.link.Reason(reason, len(codes))}
		c.answer(packet.AppendSuback(nil, c.link.Version, &a))
	}
	c.in.idled = true
}

func (c *Conn) unsubscribe(p *packet.Unsubscribe) {
	c.flush()
	codes, reason := c.link.Session().Unsubscribe(c.link, p.Filters)
	if codes != nil {
		a := packet.Suback{PacketID: p.PacketID, Codes: codes, ReasonString: c.link.Reason(reason, len(codes))}
		c.answer(packet.AppendUnsuback(nil, c.link.Version, &a))
	}
	c.in.idled = true
}

// Write implements net.Conn for mochi, which writes one whole packet at a time. It never blocks.
func (c *Conn) Write(p []byte) (int, error) {
	if len(p) < 2 {
		return 0, io.ErrShortWrite
	}
	if packet.TypeOf(p) == packet.TypeConnack { // there is nothing else it would have to say
		c.connack(p)
	}
	return len(p), nil
}

// connack sends our CONNACK for mochi's.
func (c *Conn) connack(p []byte) {
	if len(p) < 4 {
		return
	}
	v := c.link.Version
	if code := p[3]; code != 0 || !c.attached {
		if _, ok := errors.AsType[*packet.Error](c.refusal); ok {
			c.refuse(c.link.Connect, c.refusal)
			return
		}
		if code == 0 {
			code = packet.CodeServerUnavailable
		}
		if code, ok := packet.ConnackCode(v, code); ok {
			c.link.Send(packet.AppendConnack(nil, v, &packet.Connack{Code: code}))
		}
		return
	}
	a := c.opt.Connack
	a.SessionPresent = c.present // [MQTT-3.2.2-2] [MQTT-3.2.2-3]
	if v == packet.V5 {
		req := c.link.Connect
		if c.assigned {
			a.AssignedClientID = req.ClientID // [MQTT-3.2.2-16]
		}
		if expiry := c.m.Expiry(c.link); expiry != req.SessionExpiry {
			a.HasSessionExpiry, a.SessionExpiry = true, expiry
		}
		if c.keepAlive != req.KeepAlive {
			a.HasServerKeepAlive, a.ServerKeepAlive = true, c.keepAlive
		}
	}
	c.link.Accept(packet.AppendConnack(nil, v, &a))
}

// answer sends what the client is waiting for.
func (c *Conn) answer(p []byte) { c.link.Answer(p) }

// Finish ends whatever is left of the connection; its reader has ended.
func (c *Conn) Finish() {
	c.link.Drain()
	c.link.Close()
	c.m.Detach(c.link)
	c.in.free()
}

// Close implements net.Conn for mochi: what is queued is written first.
func (c *Conn) Close() error {
	if !c.kept && !c.link.Draining() {
		c.link.Close()
	}
	return nil
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.raw.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.raw.RemoteAddr() }

// SetDeadline implements net.Conn. The connection keeps time itself: mochi's arithmetic overflows.
func (c *Conn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn like SetDeadline.
func (c *Conn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn like SetDeadline.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }

// Denied tells whether it was the client's fault that Attach failed.
func (c *Conn) Denied() bool {
	_, ok := errors.AsType[*packet.Error](c.refusal)
	return ok
}

// Attached tells whether Attach succeeded.
func (c *Conn) Attached() bool { return c.attached }

// ClientID returns the client's id once it has sent its CONNECT, "" before.
func (c *Conn) ClientID() string {
	if c.link.Connect == nil {
		return ""
	}
	return c.link.Connect.ClientID
}
