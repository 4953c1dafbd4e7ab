package broker_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// subscribe sends a SUBSCRIBE with options and returns its codes.
func subscribe(t *testing.T, c *testbroker.Raw, v packet.Version, id uint32, filters ...packet.Subscription) []byte {
	t.Helper()
	p := packet.Subscribe{PacketID: c.NextID(), SubscriptionID: id, Filters: filters}
	c.Send(packet.AppendSubscribe(nil, v, &p))
	ack, err := packet.ParseSuback(v, c.Expect(packet.TypeSuback))
	if err != nil || ack.PacketID != p.PacketID || len(ack.Codes) != len(filters) { // [MQTT-3.8.4-2] [MQTT-3.8.4-6]
		t.Fatalf("SUBACK %+v %v", ack, err)
	}
	return ack.Codes
}

// Messages for a session that is offline wait, however many, in order, and when they come it is for the first time. [MQTT-3.3.1-1] [MQTT-4.5.0-1]
func TestOfflineMessages(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		c := testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		c.Subscribe("t", 2)
		c.Close()
		pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
		const n, batch = 10_000, 500
		for from := 0; from < n; from += batch {
			var p []byte
			for i := range batch {
				p = packet.AppendPublish(p, v, &packet.Outgoing{Topic: "t", QoS: 1, PacketID: uint16(i + 1), Payload: fmt.Append(nil, from+i)})
			}
			pub.Send(p)
			for i := range uint16(batch) {
				pub.ExpectAck(packet.TypePuback, i+1)
			}
		}
		c = testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		for i := range n {
			c.Ack(receive(t, c, 1, fmt.Sprint(i), false))
		}
		nothing(t, c)
	})
}

// A client with a small window gets everything, never more at a time than it can hold. [MQTT-3.3.4-9]
func TestSmallWindow(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	for _, qos := range []byte{1, 2} {
		o := clean("c")
		o.ReceiveMaximum = 2
		c := testbroker.ConnectRaw(t, b.Addr, packet.V5, o)
		c.Subscribe("t", qos)
		pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
		for i := range 10 {
			publish2(pub, packet.V5, pub.NextID(), "t", fmt.Sprint(i), false)
		}
		for i := 0; i < 10; i += 2 {
			one, two := receive(t, c, qos, fmt.Sprint(i), false), receive(t, c, qos, fmt.Sprint(i+1), false)
			c.Ping() // and not a third
			if qos == 1 {
				c.Ack(one)
				c.Ack(two)
				continue
			}
			for _, d := range []testbroker.Delivery{one, two} {
				ack(c, packet.V5, packet.TypePubrec, d.PacketID)
				c.ExpectAck(packet.TypePubrel, d.PacketID)
			}
			c.Ping() // only PUBCOMP makes room [MQTT-4.9.0-2]
			for _, d := range []testbroker.Delivery{one, two} {
				ack(c, packet.V5, packet.TypePubcomp, d.PacketID)
			}
		}
	}
	// PUBREC with an error makes room as well, and is not followed by PUBREL. [MQTT-4.3.3-4]
	o := clean("c")
	o.ReceiveMaximum = 1
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, o)
	c.Subscribe("t", 2)
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	for i := range 5 {
		publish2(pub, packet.V5, pub.NextID(), "t", fmt.Sprint(i), false)
	}
	for i := range 5 {
		d := receive(t, c, 2, fmt.Sprint(i), false)
		c.Send(packet.AppendAck(nil, packet.V5, packet.TypePubrec, d.PacketID, packet.CodeImplementation, "no"))
	}
	c.Ping()
}

// An answer to a packet id that is not in use is answered 0x92 where it wants one, and else passed over.
func TestAnswersToNothing(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		c := testbroker.ConnectRaw(t, b.Addr, v, clean("c"))
		want := byte(0)
		if v == packet.V5 {
			want = packet.CodePacketIDNotFound
		}
		ack(c, v, packet.TypePubrec, 77)
		if code := c.ExpectAck(packet.TypePubrel, 77); code != want {
			t.Errorf("PUBREL 0x%02X", code)
		}
		ack(c, v, packet.TypePubrel, 78)
		if code := c.ExpectAck(packet.TypePubcomp, 78); code != want {
			t.Errorf("PUBCOMP 0x%02X", code)
		}
		ack(c, v, packet.TypePuback, 79)
		ack(c, v, packet.TypePubcomp, 80)
		c.Ping()
	})
}

// No Local keeps back what only that subscription would bring; overlapping subscriptions bring one copy with every identifier, at
// the highest QoS. [MQTT-3.8.3-3] [MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4]
func TestOverlappingSubscriptions(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c"))
	other := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("other"))
	subscribe(t, c, packet.V5, 1, packet.Subscription{Filter: "n/#", QoS: 2, NoLocal: true})
	subscribe(t, c, packet.V5, 2, packet.Subscription{Filter: "n/both", QoS: 1})
	subscribe(t, c, packet.V5, 0, packet.Subscription{Filter: "n/none", QoS: 0, NoLocal: true})
	for _, tt := range []struct {
		topic string
		own   bool
		qos   byte
		ids   []uint32
	}{
		{"n/both", true, 1, []uint32{2}},
		{"n/both", false, 2, []uint32{1, 2}},
		{"n/x", true, 0, nil},
		{"n/x", false, 2, []uint32{1}},
		{"n/none", true, 0, nil},
		{"n/none", false, 2, []uint32{1}},
	} {
		from, id := other, other.NextID()
		if tt.own {
			from = c
		}
		from.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: tt.topic, QoS: 2, PacketID: id, Payload: []byte("p")}))
		var d testbroker.Delivery
		if tt.own { // PUBREC and PUBLISH in either order
			for range map[bool]int{true: 2, false: 1}[tt.ids != nil] {
				if frame := c.Next(); packet.TypeOf(frame) == packet.TypePublish {
					if err := packet.ParseDelivery(packet.V5, frame, &d.Publish); err != nil {
						t.Fatal(err)
					}
				}
			}
			if tt.ids == nil {
				nothing(t, c)
				continue
			}
		} else {
			other.ExpectAck(packet.TypePubrec, id)
			d = c.Delivery()
		}
		ids := d.SubscriptionIDs(nil)
		if slices.Sort(ids); d.QoS != tt.qos || !slices.Equal(ids, tt.ids) {
			t.Errorf("%s, own %v: QoS %d, subscription identifiers %v, want %d, %v", tt.topic, tt.own, d.QoS, ids, tt.qos, tt.ids)
		}
	}
}

// Whose messages are left out is still known after a restart, and to a filter that is added later. [MQTT-3.8.3-3]
func TestNoLocalLater(t *testing.T) {
	t.Parallel()
	b := testbroker.Start(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c"))
	subscribe(t, c, packet.V5, 0, packet.Subscription{Filter: "l/all", QoS: 1})
	subscribe(t, c, packet.V5, 0, packet.Subscription{Filter: "n/#", QoS: 1, NoLocal: true})
	for _, when := range []string{"before", "after"} {
		c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "n/own", QoS: 1, PacketID: 7, Payload: []byte(when)}))
		c.ExpectAck(packet.TypePuback, 7)
		other := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("other"))
		other.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "n/other", QoS: 1, PacketID: 8, Payload: []byte(when)}))
		other.ExpectAck(packet.TypePuback, 8)
		if d := c.Delivery(); string(d.Topic) != "n/other" || string(d.Payload) != when {
			t.Errorf("%s the restart: %s %s", when, d.Topic, d.Payload)
		} else {
			ack(c, packet.V5, packet.TypePuback, d.PacketID)
		}
		c.Ping()
		if when == "before" {
			b.Stop()
			b.Restart()
			c = testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c"))
		}
	}
}

// SUBSCRIBE again replaces the options, and loses nothing meanwhile. [MQTT-3.8.4-3]
func TestSubscribeAgain(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	for i, s := range []packet.Subscription{{Filter: "t", QoS: 0}, {Filter: "t", QoS: 1}, {Filter: "t", QoS: 2}, {Filter: "t", QoS: 1}} {
		if codes := subscribe(t, c, packet.V5, uint32(i+1), s); codes[0] != s.QoS {
			t.Errorf("SUBACK 0x%02X", codes[0])
		}
		publish2(pub, packet.V5, pub.NextID(), "t", fmt.Sprint(i), false)
		d := receive(t, c, s.QoS, fmt.Sprint(i), false)
		if ids := d.SubscriptionIDs(nil); !slices.Equal(ids, []uint32{uint32(i + 1)}) {
			t.Errorf("subscription identifiers %v", ids)
		}
	}
	nothing(t, c)
}

// Several filters in one SUBSCRIBE are answered one by one, the bad ones apart. [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.9.3-1]
func TestSubackAnswersEachFilter(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		c := testbroker.ConnectRaw(t, b.Addr, v, clean("c"))
		codes := subscribe(t, c, v, 0, packet.Subscription{Filter: "a", QoS: 2}, packet.Subscription{Filter: "a/#/b", QoS: 1},
			packet.Subscription{Filter: "b", QoS: 1}, packet.Subscription{Filter: "$share//x"}, packet.Subscription{Filter: "c"})
		bad := packet.CodeFilterInvalid
		if v != packet.V5 {
			bad = 0x80 // 3.1.1: [MQTT-3.9.3-2]
		}
		if want := []byte{2, bad, 1, bad, 0}; !slices.Equal(codes, want) {
			t.Errorf("% X, want % X", codes, want)
		}
		pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
		pub.Publish("b", "x")
		receive(t, c, 1, "x", false)
	})
}

// UNSUBSCRIBE tells of each filter whether there was a subscription; what has been taken for sending still comes. [MQTT-3.10.4-1] [MQTT-3.11.3-2]
func TestUnsubscribe(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c"))
	c.Subscribe("t", 1)
	c.Subscribe("u/+", 1)
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	pub.Publish("t", "before")
	before := receive(t, c, 1, "before", false)
	p := packet.Unsubscribe{PacketID: 500, Filters: []string{"t", "never", "u/a", "u/+", "t"}}
	c.Send(packet.AppendUnsubscribe(nil, packet.V5, &p))
	ack, err := packet.ParseUnsuback(packet.V5, c.Expect(packet.TypeUnsuback))
	if err != nil || ack.PacketID != 500 || !slices.Equal(ack.Codes, []byte{0, 0x11, 0x11, 0, 0x11}) {
		t.Errorf("UNSUBACK %+v %v", ack, err)
	}
	pub.Publish("t", "after")
	pub.Publish("u/a", "after")
	c.Close()
	c = testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c")) // [MQTT-3.10.4-3]
	if d := receive(t, c, 1, "before", true); d.PacketID != before.PacketID {
		t.Errorf("packet id %d, was %d", d.PacketID, before.PacketID)
	}
	nothing(t, c)
	old := testbroker.ConnectRaw(t, b.Addr, packet.V311, clean("old"))
	old.Send(packet.AppendUnsubscribe(nil, packet.V311, &packet.Unsubscribe{PacketID: 9, Filters: []string{"never"}})) // 3.1.1: [MQTT-3.10.4-5]
	if frame := old.Expect(packet.TypeUnsuback); len(frame) != 4 {
		t.Errorf("UNSUBACK % X", frame)
	}
}

// How long a session is kept after its connection. [MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.1.2-23]
func TestSessionLifetime(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	for _, tt := range []struct {
		name  string
		v     packet.Version
		first packet.Connect
		bye   *packet.Disconnect
		wait  time.Duration
		again bool // Clean Start
		kept  bool
	}{
		{"3.1.1, clean", packet.V311, packet.Connect{Clean: true}, nil, 0, false, false},
		{"3.1.1, not clean", packet.V311, packet.Connect{}, nil, 0, false, true},
		{"3.1.1, not clean, then clean", packet.V311, packet.Connect{}, nil, 0, true, false},
		{"no expiry", packet.V5, packet.Connect{}, nil, 0, false, false},
		{"expiry 0", packet.V5, packet.Connect{HasSessionExpiry: true}, nil, 0, false, false},
		{"Clean Start with an expiry", packet.V5, packet.Connect{Clean: true, HasSessionExpiry: true, SessionExpiry: 100}, nil, 0, false, true},
		{"expiry, then Clean Start", packet.V5, packet.Connect{HasSessionExpiry: true, SessionExpiry: 100}, nil, 0, true, false},
		{"expiry 1, in time", packet.V5, packet.Connect{HasSessionExpiry: true, SessionExpiry: 2}, nil, 0, false, true},
		{"expiry 1, too late", packet.V5, packet.Connect{HasSessionExpiry: true, SessionExpiry: 1}, nil, 1200 * time.Millisecond, false, false},
		{"for ever", packet.V5, packet.Connect{HasSessionExpiry: true, SessionExpiry: 0xFFFFFFFF}, nil, 1200 * time.Millisecond, false, true},
		{"ended in DISCONNECT", packet.V5, packet.Connect{HasSessionExpiry: true, SessionExpiry: 100}, &packet.Disconnect{HasSessionExpiry: true}, 0, false, false},
		{"shortened in DISCONNECT", packet.V5, packet.Connect{HasSessionExpiry: true, SessionExpiry: 100}, &packet.Disconnect{HasSessionExpiry: true, SessionExpiry: 1}, 1200 * time.Millisecond, false, false},
		{"lengthened in DISCONNECT", packet.V5, packet.Connect{HasSessionExpiry: true, SessionExpiry: 1}, &packet.Disconnect{HasSessionExpiry: true, SessionExpiry: 100}, 1200 * time.Millisecond, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.first.ClientID = tt.name
			c := testbroker.ConnectRaw(t, b.Addr, tt.v, &tt.first)
			c.Subscribe("life/"+tt.name, 1)
			if tt.bye != nil {
				c.Send(packet.AppendDisconnect(nil, tt.v, tt.bye))
				c.ExpectClosed()
			}
			leave(t, b, c, tt.name)
			pub := testbroker.ConnectRaw(t, b.Addr, tt.v, nil)
			pub.Publish("life/"+tt.name, "offline")
			<-time.After(tt.wait)
			c = testbroker.DialRaw(t, b.Addr, tt.v)
			again := packet.Connect{ClientID: tt.name, Clean: tt.again}
			if present := c.Connect(&again).SessionPresent; present != tt.kept {
				t.Errorf("session present %v", present)
			}
			if tt.kept {
				receive(t, c, 1, "offline", false)
				return
			}
			pub.Publish("life/"+tt.name, "online") // the subscription is gone with the session
			nothing(t, c)
		})
	}
}

// What a delivery is too large for counts as sent. [MQTT-3.1.2-24] [MQTT-3.1.2-25]
func TestTooLargeForTheClient(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	for _, qos := range []byte{0, 1, 2} {
		o := keeper("c")
		o.MaximumPacketSize = 100
		c := testbroker.ConnectRaw(t, b.Addr, packet.V5, o)
		c.Subscribe("t", qos)
		pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
		for i := range 3 {
			publish2(pub, packet.V5, pub.NextID(), "t", string(make([]byte, 200)), false)
			publish2(pub, packet.V5, pub.NextID(), "t", fmt.Sprint(i), false)
			d := receive(t, c, qos, fmt.Sprint(i), false)
			if qos == 2 {
				ack(c, packet.V5, packet.TypePubrec, d.PacketID)
				c.ExpectAck(packet.TypePubrel, d.PacketID)
				ack(c, packet.V5, packet.TypePubcomp, d.PacketID)
			} else {
				c.Ack(d)
			}
		}
		c.Ping()
		leave(t, b, c, "c")
		c = testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c")) // one that takes more
		nothing(t, c)
		unsubscribe(t, c, "t", 0)
	}
}
