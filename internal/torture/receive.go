package torture

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/edgemq/edgemq/broker/packet"
)

// read takes what the broker sends until the connection ends.
func (c *Client) read(nc net.Conn, in *input, n int, ended chan struct{}) {
	defer close(ended)
	var why error
	for why == nil {
		var f []byte
		if f, why = in.next(); why == nil {
			why = c.take(f, n)
		}
	}
	_ = nc.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	e := Event{Kind: Gone, By: c.ID, Conn: n}
	if c.leaving {
		// That the broker closes the connection shows that it has taken the goodbye, unless it has reasons of its own.
		e.Kind, e.Present = Left, errors.Is(why, io.EOF) && !c.dismissed
	}
	if e.Kind == Gone && !c.silent && !ordinary(why) {
		c.h.Add(Event{Kind: Damaged, By: c.ID, Conn: n, Note: "the broker sent what no broker sends: " + why.Error()})
	}
	c.h.Add(e)
	if c.n == n || c.conn == nc {
		c.conn = nil
	}
}

// ordinary says whether a connection ended like that is no wonder.
func ordinary(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, errNoConnection) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrUnexpectedEOF)
}

// take deals with one frame.
func (c *Client) take(f []byte, n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.silent {
		return errNoConnection
	}
	t := packet.TypeOf(f)
	switch t {
	case packet.TypePublish:
		return c.delivery(f, n)
	case packet.TypePuback, packet.TypePubrec, packet.TypePubrel, packet.TypePubcomp:
		var a packet.Ack
		if err := packet.ParseAck(c.Version, f, &a); err != nil {
			return err
		}
		return c.answer(t, &a, n)
	case packet.TypeSuback, packet.TypeUnsuback, packet.TypePingresp:
		if t == packet.TypePingresp {
			c.h.Add(Event{Kind: Seen, By: c.ID, Conn: n, Of: c.pinged})
		}
		if ch := c.waiting[t]; ch != nil {
			delete(c.waiting, t)
			ch <- f
		}
		return nil
	case packet.TypeDisconnect:
		c.dismissed = true
		return nil
	}
	return fmt.Errorf("unexpected % .40X", f)
}

// delivery notes a PUBLISH and answers it.
func (c *Client) delivery(f []byte, n int) error {
	var p packet.Publish
	if err := packet.ParseDelivery(c.Version, f, &p); err != nil {
		return err
	}
	if bytes.HasPrefix(p.Topic, []byte("$queue/")) && bytes.HasSuffix(p.Topic, []byte("/$gap")) {
		return nil // the broker says that messages are missing: what it has lost, it admits
	}
	if p.QoS == 2 && c.took[p.PacketID] { // it is taken already, and the broker does not know that yet
		return c.write(packet.AppendAck(nil, c.Version, packet.TypePubrec, p.PacketID, 0, ""))
	}
	e := Event{Kind: Delivered, By: c.ID, Conn: n, Reader: c.Reader, QoS: p.QoS, Of: int(p.PacketID), Present: p.Dup}
	var err error
	if e.Msg, err = messageOf(c.h.Message, string(p.Topic), p.Payload); err != nil {
		e.Kind, e.Note = Damaged, err.Error()
	}
	at := c.h.Add(e)
	switch p.QoS {
	case 1:
		return c.acknowledge(p.PacketID, at, n, e.Kind == Delivered)
	case 2:
		c.took[p.PacketID] = true
		return c.write(packet.AppendAck(nil, c.Version, packet.TypePubrec, p.PacketID, 0, ""))
	}
	return nil
}

func (c *Client) acknowledge(id uint16, at, n int, sound bool) error {
	switch x := c.rng.Float64(); {
	case !sound:
	case x < c.Late:
		c.held = append(c.held, heldAck{id, at})
		return nil
	case x < c.Late+c.Refuse && c.Version == packet.V5:
		c.h.Add(Event{Kind: Refusing, By: c.ID, Conn: n, Of: at})
		return c.write(packet.AppendAck(nil, c.Version, packet.TypePuback, id, codeUnspecified, ""))
	default:
		c.h.Add(Event{Kind: Settling, By: c.ID, Conn: n, Of: at})
	}
	return c.write(packet.AppendAck(nil, c.Version, packet.TypePuback, id, 0, ""))
}

// answer deals with the packets of the QoS 1 and 2 handshakes.
func (c *Client) answer(t packet.Type, a *packet.Ack, n int) error {
	if t == packet.TypePubrel {
		c.h.Add(Event{Kind: Releasing, By: c.ID, Conn: n, Of: int(a.PacketID)})
		delete(c.took, a.PacketID)
		return c.write(packet.AppendAck(nil, c.Version, packet.TypePubcomp, a.PacketID, 0, ""))
	}
	for i, f := range c.out {
		if f.id != a.PacketID {
			continue
		}
		switch {
		case t == packet.TypePubcomp:
		case a.Code >= 0x80:
			c.h.Add(Event{Kind: Refused, By: c.ID, Conn: n, Msg: f.msg, Code: a.Code})
		case t == packet.TypePubrec:
			if !f.released {
				c.h.Add(Event{Kind: Acked, By: c.ID, Conn: n, Msg: f.msg})
			}
			f.released = true
			return c.write(packet.AppendAck(nil, c.Version, packet.TypePubrel, f.id, 0, ""))
		default:
			c.h.Add(Event{Kind: Acked, By: c.ID, Conn: n, Msg: f.msg})
		}
		c.out = append(c.out[:i], c.out[i+1:]...)
		return nil
	}
	if t == packet.TypePubrec { // a PUBREL that was lost with the broker
		return c.write(packet.AppendAck(nil, c.Version, packet.TypePubrel, a.PacketID, 0, ""))
	}
	return nil
}
