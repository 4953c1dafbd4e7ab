package torture

import (
	"fmt"
	"net"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

// looker is a connection that only wants retained messages.
type looker struct {
	*input
}

// dialRetained connects a client with a clean session.
func dialRetained(addr, filter string) (*looker, error) {
	nc, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	l := &looker{&input{conn: nc, v: packet.V5}}
	_ = nc.SetDeadline(time.Now().Add(patience))
	_, err = nc.Write(packet.AppendConnect(nil, &packet.Connect{Version: packet.V5, Clean: true, ClientID: "look", ReceiveMaximum: 65535}))
	if err == nil {
		_, err = l.next()
	}
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	return l, nil
}

// collect subscribes and returns the retained messages up to the one of the last topic.
func (l *looker) collect(filter, last string, registry func(string) *Message) (map[string]*Message, error) {
	found := map[string]*Message{}
	b := packet.AppendSubscribe(nil, packet.V5, &packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: filter}}})
	if _, err := l.conn.Write(b); err != nil {
		return nil, err
	}
	for {
		f, err := l.next()
		if err != nil {
			return nil, err
		}
		if packet.TypeOf(f) != packet.TypePublish {
			continue
		}
		var p packet.Publish
		if err := packet.ParseDelivery(packet.V5, f, &p); err != nil {
			return nil, err
		}
		if !p.Retain {
			continue // published just now
		}
		m, err := messageOf(registry, string(p.Topic), p.Payload)
		if err != nil {
			return nil, fmt.Errorf("retained: %w", err)
		}
		found[m.Topic] = m
		if m.Topic == last {
			return found, nil
		}
	}
}
