package bench

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
)

// fake is a broker that does what a test says with the messages that come: it is to be caught.
type fake struct {
	addr    string
	deliver func(n int, m packet.Outgoing) []packet.Outgoing // of the n-th message: what is sent instead; nil is all as it should be
	deaf    bool                                             // acknowledges nothing
	refuse  int                                              // refuses this message (from 1)

	mu    sync.Mutex
	subs  []*fakeClient
	count int
}

type fakeClient struct {
	conn    net.Conn
	version packet.Version
	filters []string
	next    uint16
}

func newFake(t *testing.T, f *fake) *fake {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	var wg sync.WaitGroup
	var open sync.Map
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Store(c, nil)
			wg.Go(func() { f.serve(c); _ = c.Close() })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		open.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
		wg.Wait()
	})
	return f
}

func (f *fake) serve(raw net.Conn) {
	c := &conn{Conn: raw, buf: make([]byte, smallBuffer)}
	me := &fakeClient{conn: raw}
	for {
		frame, err := c.read()
		if err != nil {
			return
		}
		f.mu.Lock()
		out, over := f.frame(me, frame)
		_, err = raw.Write(out)
		f.mu.Unlock()
		if over || err != nil {
			return
		}
	}
}

// frame answers a frame.
func (f *fake) frame(me *fakeClient, frame []byte) (out []byte, over bool) {
	switch packet.TypeOf(frame) {
	case packet.TypeConnect:
		c, _ := packet.ParseConnect(frame)
		me.version = c.Version
		return packet.AppendConnack(nil, c.Version, &packet.Connack{}), false
	case packet.TypeSubscribe:
		s, _ := packet.ParseSubscribe(me.version, frame)
		ack := packet.Suback{PacketID: s.PacketID}
		for _, filter := range s.Filters {
			me.filters = append(me.filters, filter.Filter)
			ack.Codes = append(ack.Codes, filter.QoS)
		}
		f.subs = append(f.subs, me)
		return packet.AppendSuback(nil, me.version, &ack), false
	case packet.TypePublish:
		return f.publish(me, frame), false
	case packet.TypePubrec:
		return packet.AppendAck(nil, me.version, packet.TypePubrel, ackID(frame), 0, ""), false
	case packet.TypePubrel:
		return packet.AppendAck(nil, me.version, packet.TypePubcomp, ackID(frame), 0, ""), false
	case packet.TypeDisconnect:
		return nil, true
	}
	return nil, false
}

func ackID(frame []byte) uint16 {
	id, _ := parseAck(frame)
	return id
}

func (f *fake) publish(me *fakeClient, frame []byte) (out []byte) {
	var p packet.Publish
	if err := packet.ParsePublish(me.version, frame, &p); err != nil {
		panic(err)
	}
	f.count++
	if f.count == f.refuse {
		return packet.AppendAck(nil, me.version, packet.TypePuback, p.PacketID, 0x97, "")
	}
	messages := []packet.Outgoing{{QoS: p.QoS, Topic: string(p.Topic), Payload: append([]byte(nil), p.Payload...)}}
	if f.deliver != nil {
		messages = f.deliver(f.count, messages[0])
	}
	for _, m := range messages {
		for _, sub := range f.subs {
			for _, filter := range sub.filters {
				if filter == m.Topic || strings.HasSuffix(filter, "#") {
					sub.next = sub.next%1000 + 1
					m.PacketID = sub.next
					_, _ = sub.conn.Write(packet.AppendPublish(nil, sub.version, &m))
				}
			}
		}
	}
	if f.deaf {
		return nil
	}
	switch p.QoS {
	case 1:
		return packet.AppendAck(nil, me.version, packet.TypePuback, p.PacketID, 0, "")
	case 2:
		return packet.AppendAck(nil, me.version, packet.TypePubrec, p.PacketID, 0, "")
	}
	return nil
}
