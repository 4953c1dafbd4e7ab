package broker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// What was sent when the client unsubscribed is sent again on its next connection until it is acknowledged, wherever it came from: a
// retained message, a replay, an exclusive subscription, one in the form of $v5/. Neither a kill nor a restart in between changes anything. [MQTT-3.10.4-3]
func TestUnsubscribeInFlight(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Start(t, testbroker.Options{})
		pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
		for i := range 3 {
			for _, o := range []packet.Outgoing{{Topic: fmt.Sprintf("r/%d", i), Retain: true}, {Topic: fmt.Sprintf("s/%d", i)}} {
				o.QoS, o.PacketID, o.Payload = 2, 1, []byte("of "+o.Topic)
				pub.Send(packet.AppendPublish(nil, v, &o))
				pub.ExpectAck(packet.TypePubrec, 1)
				ack(pub, v, packet.TypePubrel, 1)
				pub.ExpectAck(packet.TypePubcomp, 1)
			}
		}
		type client struct {
			id, filter string
			qos        byte
		}
		var clients []client
		sent := map[client][]testbroker.Delivery{}
		for _, filter := range []string{"r/#", "$v5/r/#", "$s/earliest/s/#", "$v5/$s/earliest/s/#", "$exclusive/r/#"} {
			for qos := byte(1); qos <= 2; qos++ {
				if qos == 2 && strings.HasPrefix(filter, "$exclusive") {
					continue // there is one already
				}
				clients = append(clients, client{fmt.Sprintf("%s at %d", filter, qos), filter, qos})
			}
		}
		for _, cl := range clients {
			c := testbroker.ConnectRaw(t, b.Addr, v, keeper(cl.id))
			c.Subscribe(cl.filter, cl.qos)
			for range 3 {
				sent[cl] = append(sent[cl], c.Delivery())
			}
			unsubscribe2(t, c, v, cl.filter)
			c.Close()
		}
		retain(pub, v, "r/2", "another", 0) // the first one has been unsubscribed from
		for round := range 3 {
			if round > 0 {
				pub.Publish("barrier", "x") // what was acknowledged before is on disk
				pub.Close()
				if round == 1 {
					b.Kill()
				} else {
					b.Stop()
				}
				b.Restart()
				pub = testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
			}
			for _, cl := range clients {
				c := testbroker.ConnectRaw(t, b.Addr, v, keeper(cl.id))
				for i, was := range sent[cl] {
					if i < round {
						continue // acknowledged in an earlier round
					}
					d := c.Delivery()
					if !d.Dup || d.PacketID != was.PacketID || d.QoS != cl.qos || d.Topic != was.Topic || d.Payload != was.Payload || d.Retain != was.Retain {
						t.Errorf("%s, round %d: %+v, was %+v", cl.id, round, d, was)
					}
				}
				switch was := sent[cl][round]; cl.qos {
				case 1:
					ack(c, v, packet.TypePuback, was.PacketID)
				case 2:
					ack(c, v, packet.TypePubrec, was.PacketID)
					c.ExpectAck(packet.TypePubrel, was.PacketID)
					ack(c, v, packet.TypePubcomp, was.PacketID)
				}
				c.Ping()
				nothing(t, c)
				c.Close()
			}
		}
		for _, cl := range clients {
			c := testbroker.ConnectRaw(t, b.Addr, v, keeper(cl.id))
			nothing(t, c)
			c.Close()
		}
	})
}

// unsubscribe2 unsubscribes from a filter that was subscribed to.
func unsubscribe2(t *testing.T, c *testbroker.Raw, v packet.Version, filter string) {
	t.Helper()
	c.Send(packet.AppendUnsubscribe(nil, v, &packet.Unsubscribe{PacketID: 999, Filters: []string{filter}}))
	if ack, err := packet.ParseUnsuback(v, c.Expect(packet.TypeUnsuback)); err != nil || v == packet.V5 && ack.Codes[0] != 0 {
		t.Fatalf("UNSUBACK %+v %v", ack, err)
	}
}

// What was on its way when a client unsubscribed and was acknowledged since does not come again after a crash.
func TestAcknowledgedAfterUnsubscribe(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} { // over a reconnection
		p := testbroker.Start(t, testbroker.Options{})
		c := testbroker.ConnectRaw(t, p.Addr, packet.V5, keeper("c"))
		c.Subscribe("t", 1)
		pub := testbroker.ConnectRaw(t, p.Addr, packet.V5, clean("pub"))
		for _, m := range []string{"1", "2", "3"} {
			pub.Publish("t", m)
		}
		var ds []testbroker.Delivery
		for range 3 {
			ds = append(ds, c.Delivery())
		}
		unsubscribe2(t, c, packet.V5, "t")
		if again {
			c.Close()
			c = testbroker.ConnectRaw(t, p.Addr, packet.V5, keeper("c"))
			for range ds {
				c.Delivery()
			}
		}
		c.Ack(ds[0])
		c.Ack(ds[2])
		c.Ping()
		pub.Publish("other", "behind it in the journal")
		p.Kill()
		p.Restart()
		c = testbroker.ConnectRaw(t, p.Addr, packet.V5, keeper("c"))
		if d := c.Delivery(); d.Payload != "2" || !d.Dup {
			t.Errorf("again %v: got %q, want the one that was not acknowledged", again, d.Payload)
		}
		c.Ping() // nothing else came first
	}
}
