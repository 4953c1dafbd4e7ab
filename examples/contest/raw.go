package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/sdk"
)

// The raw clients are what shows the broker's own speed: sockets, and no more work than the protocol asks for.

func rawDial(ctx context.Context, addr, id string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	if _, err := conn.Write(packet.AppendConnect(nil, &packet.Connect{Version: packet.V311, ClientID: id, Clean: true})); err != nil {
		return nil, err
	}
	var ack [4]byte
	if _, err := io.ReadFull(conn, ack[:]); err != nil {
		return nil, err
	}
	if ack[3] != 0 {
		return nil, fmt.Errorf("CONNACK % X", ack)
	}
	return conn, nil
}

// rawWindow is how many publishes may be unacknowledged.
const rawWindow = 16384

// rawProduce is one producer on a socket. Flush is waiting for the last PUBACK.
func rawProduce(ctx context.Context, addr string, p *plan, k int) error {
	conn, err := rawDial(ctx, addr, fmt.Sprintf("raw-producer-%d", k))
	if err != nil {
		return err
	}
	defer conn.Close()
	acks := make(chan int, 1024)
	go func() { // counts PUBACKs, which are all that comes
		defer close(acks)
		buf, rest := make([]byte, 32<<10), 0
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			if rest += n; rest >= 4 {
				acks <- rest / 4
				rest %= 4
			}
		}
	}()
	var (
		msg   content
		frame packet.Outgoing
		next  = make([]int, p.names())
		buf   = make([]byte, 0, 80<<10)
		out   = newEncoder(p)
		free  = rawWindow
	)
	wait := func() error { // for at least one PUBACK
		n, ok := <-acks
		if !ok {
			return fmt.Errorf("producer %d: the broker closed the connection", k)
		}
		free += n
		return nil
	}
	for n := range p.count(k) {
		to := p.to(k, n)
		p.fill(&msg, k, to, next[to])
		next[to]++
		frame = packet.Outgoing{
			QoS: 1, PacketID: uint16(1 + n%65535), Topic: "$v5/" + out.topic[to], Props: out.props(&msg), Payload: msg.body, Envelope: true,
		}
		buf = packet.AppendPublish(buf, packet.V311, &frame)
		free--
		if len(buf) >= 64<<10 || free == 0 {
			if _, err := conn.Write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
		for free == 0 {
			if err := wait(); err != nil {
				return err
			}
		}
	}
	if _, err := conn.Write(buf); err != nil {
		return err
	}
	for free < rawWindow {
		if err := wait(); err != nil {
			return err
		}
	}
	return nil
}

// encoder makes the property blocks of messages.
type encoder struct {
	p     *plan
	topic []string
	block []byte
}

func newEncoder(p *plan) *encoder {
	e := &encoder{p: p}
	for i := range p.Topics {
		e.topic = append(e.topic, p.topic(i))
	}
	for i := range p.Queues {
		e.topic = append(e.topic, "$queue/"+p.queue(i))
	}
	return e
}

func (e *encoder) props(c *content) []byte {
	b := packet.AppendUser(e.block[:0], "@MessageId", c.id)
	b = packet.AppendUser(b, "PRO_OFFSET", c.offset)
	types := ""
	for i := range c.n {
		b = packet.AppendUser(b, c.names[i], c.values[i].String())
		if tag := map[sdk.Kind]string{sdk.KindInt32: "i", sdk.KindInt64: "l", sdk.KindFloat64: "d"}[c.values[i].Kind()]; tag != "" {
			types += "," + c.names[i] + ":" + tag
		}
	}
	if types != "" {
		b = packet.AppendUser(b, "@types", types[1:])
	}
	e.block = b
	return b
}

// rawConsume is one consumer on a socket. The broker's marker says when the backlog is through.
func rawConsume(ctx context.Context, addr string, p *plan, consumer int) (*check, error) {
	conn, err := rawDial(ctx, addr, fmt.Sprintf("raw-consumer-%d", consumer))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	q := "$v5/$queue/" + p.queue(consumer)
	sub := &packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: q, QoS: 1}}}
	for _, t := range p.topicsOf(consumer) {
		sub.Filters = append(sub.Filters, packet.Subscription{Filter: q + "/" + p.topic(t), QoS: 1})
	}
	if _, err := conn.Write(packet.AppendSubscribe(nil, packet.V311, sub)); err != nil {
		return nil, err
	}
	c := &rawConsumer{check: newCheck(p, consumer), enc: newEncoder(p)}
	buf, end := make([]byte, 256<<10), 0
	for {
		n, err := conn.Read(buf[end:])
		if err != nil {
			return c.check, err
		}
		end += n
		used, done, err := c.eat(buf[:end])
		if err != nil {
			return c.check, err
		}
		if _, err := conn.Write(c.acks); err != nil {
			return c.check, err
		}
		if c.acks = c.acks[:0]; done {
			_, err = conn.Write([]byte{0xE0, 0}) // DISCONNECT
			return c.check, err
		}
		if end = copy(buf, buf[used:end]); end == len(buf) {
			buf = append(buf, make([]byte, len(buf))...)
		}
	}
}

type rawConsumer struct {
	check *check
	enc   *encoder
	acks  []byte
	pub   packet.Publish
}

// eat deals with the whole frames in b.
func (c *rawConsumer) eat(b []byte) (used int, done bool, err error) {
	for {
		size, _, err := packet.Split(b[used:], packet.V311, 0)
		if err != nil || size == 0 || size > len(b)-used {
			return used, false, err
		}
		frame := b[used : used+size]
		used += size
		if packet.TypeOf(frame) != packet.TypePublish {
			continue
		}
		if err := packet.ParseDelivery(packet.V311, frame, &c.pub); err != nil {
			return used, false, err
		}
		if bytes.HasSuffix(c.pub.Topic, []byte("/$caught-up")) {
			return used, true, nil
		}
		name, id := string(c.pub.Topic), c.pub.PacketID
		if err := packet.ParseEnvelope(c.pub.Payload, &c.pub); err != nil {
			return used, false, err
		}
		name, queue := strings.CutPrefix(name, "$queue/")
		if _, err := c.check.expect(name, queue, c.pub.Payload); err != nil {
			return used, false, err
		}
		// The broker has added to the properties at the end; what was sent must be there unchanged.
		if want := c.enc.props(&c.check.want); !bytes.HasPrefix(c.pub.Props, want) {
			return used, false, fmt.Errorf("%s: other properties than were sent", c.check.want.id)
		}
		c.acks = packet.AppendAck(c.acks, packet.V311, packet.TypePuback, id, 0, "")
	}
}
