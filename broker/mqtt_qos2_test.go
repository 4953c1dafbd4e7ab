package broker_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// versions runs a test with both protocol versions.
func versions(t *testing.T, test func(t *testing.T, v packet.Version)) {
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		t.Run(fmt.Sprintf("mqtt-%d", v), func(t *testing.T) { test(t, v) })
	}
}

// keeper is the CONNECT of a client whose session stays.
func keeper(id string) *packet.Connect {
	return &packet.Connect{ClientID: id, HasSessionExpiry: true, SessionExpiry: 0xFFFFFFFF}
}

// clean is the CONNECT of a client whose session ends with its connection.
func clean(id string) *packet.Connect { return &packet.Connect{ClientID: id, Clean: true} }

// publish sends a PUBLISH of QoS 2 and takes the PUBREC.
func publish2(c *testbroker.Raw, v packet.Version, id uint16, topic, payload string, dup bool) byte {
	c.Send(packet.AppendPublish(nil, v, &packet.Outgoing{QoS: 2, PacketID: id, Topic: topic, Payload: []byte(payload), Dup: dup}))
	return c.ExpectAck(packet.TypePubrec, id)
}

func ack(c *testbroker.Raw, v packet.Version, t packet.Type, id uint16) {
	c.Send(packet.AppendAck(nil, v, t, id, 0, ""))
}

// receive takes a delivery, which must be the one given.
func receive(t *testing.T, c *testbroker.Raw, qos byte, payload string, dup bool) testbroker.Delivery {
	t.Helper()
	d := c.Delivery()
	if d.QoS != qos || d.Payload != payload || d.Dup != dup {
		t.Fatalf("got %q QoS %d DUP %v, want %q QoS %d DUP %v", d.Payload, d.QoS, d.Dup, payload, qos, dup)
	}
	return d
}

// What is in flight to a client keeps its packet id across connections, whichever ids those are. [MQTT-4.4.0-1]
func TestInFlightKeepsItsPacketID(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		c := testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		c.Subscribe("t", 2)
		pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
		var ids [50]uint16
		for i := range ids { // many at once, so that ids far apart are in flight together
			publish2(pub, v, uint16(1000+i), "t", fmt.Sprint(i), false)
		}
		for i := range ids {
			ids[i] = receive(t, c, 2, fmt.Sprint(i), false).PacketID
		}
		for i := range ids {
			if i%16 != 3 {
				ack(c, v, packet.TypePubrec, ids[i])
				c.ExpectAck(packet.TypePubrel, ids[i])
			}
			if i%16 > 4 {
				ack(c, v, packet.TypePubcomp, ids[i])
			}
		}
		c.Ping()
		c.Close()

		c = testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		for i := range ids {
			if i%16 <= 4 && i%16 != 3 {
				c.ExpectAck(packet.TypePubrel, ids[i])
			}
		}
		for i := range ids {
			if i%16 == 3 {
				if d := receive(t, c, 2, fmt.Sprint(i), true); d.PacketID != ids[i] {
					t.Errorf("packet id %d, was %d", d.PacketID, ids[i])
				}
			}
		}
		publish2(pub, v, 2001, "t", "new", false)
		receive(t, c, 2, "new", false) // and nothing else before it
	})
}

// An acknowledgement of the wrong kind ends the connection: the delivery would never be over. [MQTT-4.13.1-1], 3.1.1: [MQTT-4.8.0-1]
func TestAckOfTheWrongKind(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
		for _, tt := range []struct {
			name    string
			qos     byte
			answers []packet.Type
			ends    bool
		}{
			{"PUBREC to QoS 1", 1, []packet.Type{packet.TypePubrec}, true},
			{"PUBCOMP to QoS 1", 1, []packet.Type{packet.TypePubcomp}, true},
			{"PUBACK to QoS 2", 2, []packet.Type{packet.TypePuback}, true},
			{"PUBCOMP before PUBREC", 2, []packet.Type{packet.TypePubcomp}, true},
			{"PUBACK to PUBREL", 2, []packet.Type{packet.TypePubrec, packet.TypePuback}, true},
			{"PUBREC again", 2, []packet.Type{packet.TypePubrec, packet.TypePubrec, packet.TypePubcomp}, false},
			{"PUBACK again", 1, []packet.Type{packet.TypePuback, packet.TypePuback}, false},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := testbroker.ConnectRaw(t, b.Addr, v, clean("c"))
				c.Subscribe("t", tt.qos)
				publish2(pub, v, pub.NextID(), "t", "x", false)
				d := receive(t, c, tt.qos, "x", false)
				for _, a := range tt.answers {
					ack(c, v, a, d.PacketID)
				}
				if !tt.ends {
					for range tt.answers[1:] {
						if tt.qos == 2 {
							c.ExpectAck(packet.TypePubrel, d.PacketID)
						}
					}
					c.Ping()
					return
				}
				want := -1
				if v == packet.V5 {
					want = int(packet.CodeProtocol)
				}
				if got := c.ExpectClosed(); got != want {
					t.Errorf("DISCONNECT 0x%X, want 0x%X", got, want)
				}
			})
		}
	})
}

// What has been sent at QoS 2 is brought to its end although it expires meanwhile, in both directions. [MQTT-4.3.3-7] [MQTT-4.3.3-13]
func TestExpiryDoesNotEndQoS2(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c"))
	c.Subscribe("t", 2)
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	for i, qos := range []byte{2, 2, 1} {
		id := uint16(i + 1)
		pub.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: qos, PacketID: id, Topic: "t", HasExpiry: true, Expiry: 1, Payload: fmt.Append(nil, i)}))
		pub.Next()
	}
	zero, one := receive(t, c, 2, "0", false), receive(t, c, 2, "1", false)
	receive(t, c, 1, "2", false)
	ack(c, packet.V5, packet.TypePubrec, zero.PacketID)
	c.ExpectAck(packet.TypePubrel, zero.PacketID)
	leave(t, b, c, "c")
	pub.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 2, PacketID: 9, Topic: "t", HasExpiry: true, Expiry: 1, Payload: []byte("offline")}))
	pub.ExpectAck(packet.TypePubrec, 9)
	<-time.After(1100 * time.Millisecond)
	ack(pub, packet.V5, packet.TypePubrel, 1)
	if code := pub.ExpectAck(packet.TypePubcomp, 1); code != 0 {
		t.Errorf("PUBCOMP 0x%02X", code)
	}
	pub.Publish("t", "new")
	c = testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c"))
	c.ExpectAck(packet.TypePubrel, zero.PacketID)
	if d := receive(t, c, 2, "1", true); d.PacketID != one.PacketID || d.Expiry != 0 {
		t.Errorf("packet id %d, was %d; expiry %d", d.PacketID, one.PacketID, d.Expiry)
	}
	receive(t, c, 1, "new", false) // what was sent at QoS 1 or not at all has expired
}

// A QoS 2 delivery whose message is gone is released, since the client may hold its packet id: a retained message that was taken away, and
// what another consumer of a queue has now.
func TestGoneIsReleased(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
		pub.Send(packet.AppendPublish(nil, v, &packet.Outgoing{QoS: 2, PacketID: 1, Topic: "r", Retain: true, Payload: []byte("r")}))
		pub.ExpectAck(packet.TypePubrec, 1)
		c := testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		c.Subscribe("r", 2)
		r := receive(t, c, 2, "r", false)
		c.Subscribe("$queue/q", 2)
		publish2(pub, v, 2, "$queue/q", "q", false)
		q := receive(t, c, 2, "q", false)
		other := testbroker.ConnectRaw(t, b.Addr, v, keeper("other"))
		other.Subscribe("$queue/q", 2)
		leave(t, b, c, "c")
		receive(t, other, 2, "q", false)
		leave(t, b, other, "other")
		retain(pub, v, "r", "", 0)

		c = testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		// The live message that took the retained one away, the queue's, which is back, and the release, in any order.
		var got []string
		for range 3 {
			frame := c.Next()
			switch packet.TypeOf(frame) {
			case packet.TypePubrel:
				var a packet.Ack
				if err := packet.ParseAck(v, frame, &a); err != nil || a.PacketID != r.PacketID {
					t.Fatalf("PUBREL for %d, want %d (%v)", a.PacketID, r.PacketID, err)
				}
				got = append(got, "released")
				ack(c, v, packet.TypePubcomp, a.PacketID)
			case packet.TypePublish:
				var d packet.Publish
				if err := packet.ParseDelivery(v, frame, &d); err != nil {
					t.Fatal(err)
				}
				if got = append(got, string(d.Payload)); string(d.Payload) == "q" && d.PacketID != q.PacketID {
					t.Errorf("packet id %d, was %d", d.PacketID, q.PacketID)
				}
			}
		}
		if slices.Sort(got); !slices.Equal(got, []string{"", "q", "released"}) {
			t.Errorf("got %q", got)
		}
		c.Ping()
	})
}
