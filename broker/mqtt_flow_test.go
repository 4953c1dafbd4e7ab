package broker_test

import (
	"fmt"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// A client need not wait for its CONNACK; what it sends before is answered after. [MQTT-3.2.0-1] [MQTT-3.1.4-5]
func TestClientThatDoesNotWait(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		c := testbroker.DialRaw(t, b.Addr, v)
		p := packet.AppendConnect(nil, &packet.Connect{Version: v, ClientID: "c", Clean: true, ReceiveMaximum: 65535})
		p = packet.AppendPublish(p, v, &packet.Outgoing{Topic: "t", QoS: 1, PacketID: 1})
		p = packet.AppendSubscribe(p, v, &packet.Subscribe{PacketID: 2, Filters: []packet.Subscription{{Filter: "t", QoS: 1}}})
		p = packet.AppendPublish(p, v, &packet.Outgoing{Topic: "t", QoS: 2, PacketID: 3, Payload: []byte("x")})
		p = packet.AppendPingreq(p)
		c.Send(p)
		c.Expect(packet.TypeConnack)
		got := map[packet.Type]bool{}
		for range 5 {
			got[packet.TypeOf(c.Next())] = true
		}
		for _, want := range []packet.Type{packet.TypePuback, packet.TypeSuback, packet.TypePubrec, packet.TypePublish, packet.TypePingresp} {
			if !got[want] {
				t.Errorf("no %v", want)
			}
		}
	})
}

// Nothing that follows a CONNECT that is refused is carried out. [MQTT-3.1.4-6] 3.1.1: [MQTT-3.1.4-5]
func TestNothingAfterARefusedConnect(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	sub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("sub"))
	sub.Subscribe("t", 1)
	for _, connect := range []string{
		"10 0d 00 04 4d 51 54 54 03 02 00 00 00 01 61",                            // 3.1.1: level 3
		"10 13 00 04 4d 51 54 54 05 02 00 00 05 15 00 02 78 79 00 01 61",          // 5: an authentication method
		"10 14 00 04 4d 51 54 54 05 06 00 00 00 00 01 61 00 00 01 23 00 00",       // 5: Will to #
		"10 12 00 04 4d 51 54 54 04 06 00 00 00 01 61 00 01 23 00 00",             // 3.1.1: Will to #
		"10 0e 00 04 4d 51 54 54 05 03 00 00 00 00 01 61",                         // 5: a reserved flag
		"10 0c 00 04 4d 51 54 54 04 00 00 00 00 00",                               // 3.1.1: no id
		"10 10 00 04 4d 51 54 54 04 42 00 00 00 01 61 00 01 70",                   // 3.1.1: password alone
		"10 0f 00 04 4d 51 54 54 05 02 00 00 01 7f 00 01 61",                      // 5: an unknown property
		"10 16 00 04 4d 51 54 54 05 0e 00 00 00 00 01 61 00 00 03 24 78 79 00 00", // 5: Will to $xy
	} {
		c := testbroker.DialRaw(t, b.Addr, packet.V5)
		c.SendHex(connect + "30 04 00 01 74 78" + "30 05 00 01 74 00 78") // a PUBLISH, as it is in 3.1.1 and in 5
		c.ExpectClosed()
	}
	nothing(t, sub)
}

// A message comes at the lower of the QoS it was published with and the one granted. [MQTT-3.8.4-8] [MQTT-4.8.2-3]
func TestLowerQoS(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
		for _, filter := range []string{"t", "$share/g/t"} {
			for granted := range byte(3) {
				c := testbroker.ConnectRaw(t, b.Addr, v, clean("c"))
				if code := c.Subscribe(filter, granted); code != granted { // [MQTT-3.8.4-7]
					t.Fatalf("SUBACK 0x%02X", code)
				}
				for qos := range byte(3) {
					o := packet.Outgoing{Topic: "t", QoS: qos, Payload: fmt.Append(nil, qos)}
					if qos > 0 {
						o.PacketID = pub.NextID()
					}
					pub.Send(packet.AppendPublish(nil, v, &o))
					if qos > 0 {
						pub.Next()
					}
					if d := receive(t, c, min(qos, granted), fmt.Sprint(qos), false); (d.PacketID == 0) != (d.QoS == 0) {
						t.Errorf("QoS %d with packet id %d", d.QoS, d.PacketID)
					}
				}
				leave(t, b, c, "c")
			}
		}
	})
}

// After its PUBACK a packet id is free: a publish under it is a new message, whatever its DUP says; and DUP is not passed on.
// [MQTT-4.3.2-5] [MQTT-3.3.1-3]
func TestPacketIDAfterPuback(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		sub := testbroker.ConnectRaw(t, b.Addr, v, clean("sub"))
		sub.Subscribe("t", 1)
		pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
		for i := range 3 {
			pub.Send(packet.AppendPublish(nil, v, &packet.Outgoing{Topic: "t", QoS: 1, PacketID: 5, Dup: i > 0, Payload: fmt.Append(nil, i)}))
			pub.ExpectAck(packet.TypePuback, 5)
			receive(t, sub, 1, fmt.Sprint(i), false)
		}
	})
}

// Names are compared as they are, byte by byte: a byte order mark, letters that look the same, control characters, spaces. [MQTT-1.5.4-3] [MQTT-4.7.3-4]
func TestNamesAreNotNormalized(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	names := []string{"a", "A", "\uFEFFa", " a", "a ", "\u00e9", "e\u0301", "a\u0001b", "a//b", "a/b/", "/a/b", "𝄞", "a\\b"}
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	for _, name := range names {
		sub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("sub"))
		sub.Subscribe(name, 0)
		sub.Subscribe("end", 0)
		for _, topic := range names {
			if code := pub.Publish(topic, topic); code != 0 {
				t.Fatalf("%q: PUBACK 0x%02X", topic, code)
			}
		}
		pub.Publish("end", "")
		if d := sub.Delivery(); d.Topic != name || d.Payload != name {
			t.Errorf("%q: received %q", name, d.Topic)
		}
		if d := sub.Delivery(); d.Topic != "end" {
			t.Errorf("%q: received %q as well", name, d.Topic)
		}
		leave(t, b, sub, "sub")
	}
}
