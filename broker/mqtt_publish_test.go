package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// A DUP PUBLISH of QoS 2 is answered PUBREC again, success each time, and is one message; after its PUBREL the id is free. [MQTT-4.3.3-10] [MQTT-4.3.3-11] [MQTT-4.3.3-12]
func TestQoS2SentAgain(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		sub := testbroker.ConnectRaw(t, b.Addr, v, clean("sub"))
		sub.Subscribe("t", 0)
		c := testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		for range 3 {
			if code := publish2(c, v, 7, "t", "one", true); code != 0 {
				t.Fatalf("PUBREC 0x%02X", code)
			}
		}
		receive(t, sub, 0, "one", false)
		c.Close()
		c = testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		publish2(c, v, 7, "t", "one", true)
		for i := range 2 { // the second PUBREL is one whose PUBCOMP did not arrive
			ack(c, v, packet.TypePubrel, 7)
			if code := c.ExpectAck(packet.TypePubcomp, 7); v == packet.V5 && (code != 0) != (i > 0) {
				t.Fatalf("PUBCOMP 0x%02X", code)
			}
		}
		publish2(c, v, 7, "t", "two", false)
		receive(t, sub, 0, "two", false)
	})
}

// A name that may not be published to: refused, told so where the version can, and delivered to nobody. 3.1.1: [MQTT-3.3.5-2]
func TestTopicRefused(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{"limits.max_topic_levels=8", "limits.max_topic_bytes=100"}})
	sub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("sub"))
	for _, f := range []string{"#", "+/+"} {
		sub.Subscribe(f, 2)
	}
	for _, topic := range []string{
		"$SYS/broker/uptime", "$share/g/t", "$queue", "$s/x", "$edgemq", "$queue/", "$queue/no good", "t/#", "+", "a/+/b", strings.Repeat("/", 8), strings.Repeat("x", 101),
	} {
		c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
		if code := c.Publish(topic, "x"); code != packet.CodeTopicInvalid && code != packet.CodeNotAuthorized {
			t.Errorf("%q: PUBACK 0x%02X", topic, code)
		}
		if code := publish2(c, packet.V5, 100, topic, "x", false); code != packet.CodeTopicInvalid && code != packet.CodeNotAuthorized {
			t.Errorf("%q: PUBREC 0x%02X", topic, code)
		}
		if code := publish2(c, packet.V5, 100, "fine", "fine", false); code != 0 { // a refused id is free again [MQTT-4.3.3-9]
			t.Errorf("PUBREC 0x%02X", code)
		}
		if d := sub.Delivery(); d.Payload != "fine" {
			t.Fatalf("%q was delivered on %q", d.Payload, d.Topic)
		} else {
			ack(sub, packet.V5, packet.TypePubrec, d.PacketID)
			sub.ExpectAck(packet.TypePubrel, d.PacketID)
			ack(sub, packet.V5, packet.TypePubcomp, d.PacketID)
		}
		for qos := range byte(3) {
			old := testbroker.ConnectRaw(t, b.Addr, packet.V311, clean("old"))
			o := packet.Outgoing{Topic: topic, QoS: qos, Payload: []byte("x")}
			if qos > 0 {
				o.PacketID = 1
			}
			old.Send(packet.AppendPublish(nil, packet.V311, &o))
			if qos > 0 || strings.ContainsAny(topic, "+#") { // there is no answer to QoS 0
				old.ExpectClosed()
			}
		}
	}
	nothing(t, sub)
}

// A refused publish gives its place in Receive Maximum back, and PUBREC with an error is not followed by a PUBREL. [MQTT-4.9.0-1] [MQTT-4.9.0-2]
func TestReceiveMaximumOfTheBroker(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{"limits.receive_maximum=3"}})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
	for i := range uint16(20) {
		publish2(c, packet.V5, i+1, "$SYS/x", "x", false)
		c.Publish("t", "x")
	}
	for i := range uint16(3) {
		publish2(c, packet.V5, 100+i, "t", "x", false)
	}
	ack(c, packet.V5, packet.TypePubrel, 100)
	c.ExpectAck(packet.TypePubcomp, 100)
	publish2(c, packet.V5, 100, "t", "x", false)
	c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "t"})) // QoS 0 does not count
	c.Ping()
	c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "t", QoS: 1, PacketID: 9}))
	if code := c.ExpectClosed(); code != int(packet.CodeReceiveMaximum) { // [MQTT-3.3.4-9]
		t.Errorf("DISCONNECT 0x%X", code)
	}
}

// A publisher that does not read its answers stalls nobody but itself.
func TestPublisherThatDoesNotRead(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	sub := testbroker.ConnectRaw(t, b.Addr, packet.V311, clean("sub"))
	sub.Subscribe("t", 1)
	deaf := testbroker.ConnectRaw(t, b.Addr, packet.V311, clean("deaf"))
	stuck := make(chan struct{})
	go func() {
		defer close(stuck)
		var p []byte
		for i := range 1000 {
			p = packet.AppendPublish(p, packet.V311, &packet.Outgoing{Topic: "other", QoS: 1, PacketID: uint16(i + 1)})
		}
		for range 5000 { // until the sockets' buffers are full of answers
			if deaf.TrySend(p) != nil {
				return
			}
		}
	}()
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V311, clean("pub"))
	for i := range 100 {
		pub.Publish("t", fmt.Sprint(i))
		sub.Ack(receive(t, sub, 1, fmt.Sprint(i), false))
	}
	again := testbroker.ConnectRaw(t, b.Addr, packet.V311, clean("deaf")) // its takeover works at once
	again.Publish("t", "back")
	receive(t, sub, 1, "back", false)
	deaf.Close()
	<-stuck
}

// One answer per publish, in the order of the publishes, for either QoS, and nothing but the code in it. [MQTT-4.6.0-2] [MQTT-4.6.0-3]
func TestAnswersInOrder(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		c := testbroker.ConnectRaw(t, b.Addr, v, clean("c"))
		var p []byte
		for i := range uint16(500) {
			p = packet.AppendPublish(p, v, &packet.Outgoing{Topic: "t", QoS: byte(1 + i%2), PacketID: i + 1, Extra: []packet.UserProperty{{Name: "k", Value: "v"}}})
		}
		c.Send(p)
		for i := range uint16(500) {
			frame := c.Next()
			want := packet.AppendAck(nil, v, []packet.Type{packet.TypePuback, packet.TypePubrec}[i%2], i+1, 0, "")
			if string(frame) != string(want) {
				t.Fatalf("answer % X, want % X", frame, want)
			}
		}
	})
}

// Packet ids of the two directions are apart. [MQTT-2.2.1-3] [MQTT-2.2.1-4]
func TestPacketIDsOfBothDirections(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		c := testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		c.Subscribe("t", 2) // takes id 1
		pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
		publish2(pub, v, 1, "t", "a", false)
		pub.Publish("t", "b")
		one, two := receive(t, c, 2, "a", false), receive(t, c, 1, "b", false)
		// The client uses the same ids, in publishes, in SUBSCRIBE and in UNSUBSCRIBE.
		publish2(c, v, one.PacketID, "u", "x", false)
		c.Send(packet.AppendPublish(nil, v, &packet.Outgoing{Topic: "u", QoS: 1, PacketID: two.PacketID}))
		c.ExpectAck(packet.TypePuback, two.PacketID)
		c.Send(packet.AppendSubscribe(nil, v, &packet.Subscribe{PacketID: one.PacketID, Filters: []packet.Subscription{{Filter: "w", QoS: 1}}}))
		if ack, err := packet.ParseSuback(v, c.Expect(packet.TypeSuback)); err != nil || ack.PacketID != one.PacketID || ack.Codes[0] != 1 {
			t.Fatalf("SUBACK %+v %v", ack, err)
		}
		c.Send(packet.AppendUnsubscribe(nil, v, &packet.Unsubscribe{PacketID: two.PacketID, Filters: []string{"w"}}))
		c.Expect(packet.TypeUnsuback)
		c.Close()
		c = testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		if again := receive(t, c, 2, "a", true); again.PacketID != one.PacketID {
			t.Errorf("packet id %d, was %d", again.PacketID, one.PacketID)
		}
		if again := receive(t, c, 1, "b", true); again.PacketID != two.PacketID {
			t.Errorf("packet id %d, was %d", again.PacketID, two.PacketID)
		}
		ack(c, v, packet.TypePubrel, one.PacketID)
		c.ExpectAck(packet.TypePubcomp, one.PacketID)
		ack(c, v, packet.TypePubrec, one.PacketID)
		c.ExpectAck(packet.TypePubrel, one.PacketID)
	})
}

// Reason strings come with refusals, unless the client wants none or could not take them. [MQTT-3.1.2-29] [MQTT-3.4.2-2]
func TestReasonStrings(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	for name, tt := range map[string]struct {
		c    packet.Connect
		want bool
	}{
		"default":      {packet.Connect{}, true},
		"not wanted":   {packet.Connect{NoProblemInfo: true}, false},
		"small packet": {packet.Connect{MaximumPacketSize: 100}, false},
	} {
		t.Run(name, func(t *testing.T) {
			tt.c.Clean = true
			c := testbroker.ConnectRaw(t, b.Addr, packet.V5, &tt.c)
			c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "$SYS/x", QoS: 1, PacketID: 1}))
			var a packet.Ack
			if err := packet.ParseAck(packet.V5, c.Expect(packet.TypePuback), &a); err != nil || (a.Reason() != "") != tt.want {
				t.Errorf("PUBACK with %q %v", a.Reason(), err)
			}
			c.Send(packet.AppendSubscribe(nil, packet.V5, &packet.Subscribe{PacketID: 2, Filters: []packet.Subscription{{Filter: "$edgemq/#"}}}))
			ack, err := packet.ParseSuback(packet.V5, c.Expect(packet.TypeSuback))
			if err != nil || (ack.ReasonString != "") != tt.want || ack.Codes[0] != packet.CodeFilterInvalid {
				t.Errorf("SUBACK %+v %v", ack, err)
			}
		})
	}
	for size, want := range map[uint32]bool{0: true, 30: false} { // [MQTT-3.2.2-19]
		c := testbroker.DialRaw(t, b.Addr, packet.V5)
		if ack := c.Connect(&packet.Connect{Clean: true, AuthMethod: "x", MaximumPacketSize: size}); ack.Code != packet.CodeBadAuthMethod || (ack.ReasonString != "") != want {
			t.Errorf("CONNACK %+v to a client that takes %d bytes", ack, size)
		}
	}
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{Clean: true, MaximumPacketSize: 20})
	c.SendHex("10 00")
	if d, err := packet.ParseServerDisconnect(c.Expect(packet.TypeDisconnect)); err != nil || d.ReasonString != "" {
		t.Errorf("DISCONNECT %+v %v to a client that takes 20 bytes", d, err)
	}
}

// An expiry counts down, and ends a message at the moment it should. [MQTT-3.3.2-5] [MQTT-3.3.2-6]
func TestExpiryOnTime(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	publish := func(payload string, expiry uint32) {
		id := pub.NextID()
		pub.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "t", QoS: 1, PacketID: id, HasExpiry: true, Expiry: expiry, Payload: []byte(payload)}))
		pub.ExpectAck(packet.TypePuback, id)
	}
	connect := func() *testbroker.Raw { return testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c")) }
	c := connect()
	c.Subscribe("t", 1)
	c.Close()
	start := time.Now()
	publish("0", 0)
	publish("1", 1)
	publish("9", 9)
	stored := time.Now() // by now: a busy disk takes its time
	<-time.After(time.Until(start.Add(600 * time.Millisecond)))
	c = connect()
	d := c.Delivery()
	if d.Payload == "1" { // a slow machine may come too late for it
		if d.Expiry != 1 { // begun, not over
			t.Errorf("expiry %d", d.Expiry)
		}
		d = c.Delivery()
	}
	if d.Payload != "9" || d.Expiry > 9 {
		t.Fatalf("%q, expiry %d", d.Payload, d.Expiry)
	}
	c.Ping()
	c.Close()
	<-time.After(time.Until(stored.Add(1100 * time.Millisecond)))
	c = connect() // what had been sent and not acknowledged may come again; the expired one need not
	for {
		if d = c.Delivery(); d.Payload == "9" {
			break
		}
	}
	if d.Expiry > 8 {
		t.Errorf("after more than a second the expiry is %d", d.Expiry)
	}
}
