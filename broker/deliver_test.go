package broker_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Acknowledgements come in the order of the publishes, those of refused names included. [MQTT-4.6.0-2]
func TestPubackOrder(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
	var burst []byte
	topics := []string{"a", "$SYS/x", "a/b", "$share/g/x", "$queue/bad name", "a", "a/+", "x", "$queue/q", "#", strings.Repeat("l/", 200)}
	for i := range 300 {
		burst = packet.AppendPublish(burst, packet.V5, &packet.Outgoing{QoS: 1, PacketID: uint16(i + 1), Topic: topics[i%len(topics)], Payload: []byte("x")})
	}
	c.Send(burst)
	for i := range 300 {
		name := topics[i%len(topics)]
		var want byte
		if strings.ContainsAny(name, "+# ") || strings.HasPrefix(name, "$S") || strings.HasPrefix(name, "$s") || len(name) > 100 {
			want = packet.CodeTopicInvalid
		}
		if code := c.ExpectAck(packet.TypePuback, uint16(i+1)); code != want {
			t.Errorf("PUBACK 0x%X to %q, want 0x%X", code, name, want)
		}
	}
}

// What was sent and not acknowledged comes again on the next connection, in order, with the same packet ids and DUP; also after a restart.
func TestResume(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		versions(t, func(t *testing.T, v packet.Version) {
			o := testbroker.Options{Dir: t.TempDir()}
			b := testbroker.Run(t, o)
			c := testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
			c.Subscribe("t", 1)
			pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
			for i := range 40 {
				pub.Publish("t", fmt.Sprint(i))
			}
			ids := map[string]uint16{}
			var unacked []string
			for i := range 40 {
				d := receive(t, c, 1, fmt.Sprint(i), false)
				ids[d.Payload] = d.PacketID
				if i%3 == 0 {
					c.Ack(d)
				} else {
					unacked = append(unacked, d.Payload)
				}
			}
			c.Ping() // the acks have been taken
			leave(t, b, c, "c")
			pub.Publish("t", "new")
			if restart {
				b.Stop()
				b = testbroker.Run(t, o)
			}
			c = testbroker.DialRaw(t, b.Addr, v)
			if ack := c.Connect(keeper("c")); !ack.SessionPresent {
				t.Fatal("the session is gone")
			}
			for _, payload := range unacked {
				if d := receive(t, c, 1, payload, true); d.PacketID != ids[payload] {
					t.Errorf("%q has packet id %d, had %d", payload, d.PacketID, ids[payload])
				}
			}
			if d := receive(t, c, 1, "new", false); slices.Contains(slices.Collect(mapValues(ids, unacked)), d.PacketID) {
				t.Errorf("packet id %d is in use", d.PacketID)
			}
			c.Ping()
		})
	}
}

// mapValues are the ids of some payloads.
func mapValues(ids map[string]uint16, of []string) func(func(uint16) bool) {
	return func(yield func(uint16) bool) {
		for _, p := range of {
			if !yield(ids[p]) {
				return
			}
		}
	}
}

// The window has bytes as well: a client is sent so much without an acknowledgement, and one message more.
func TestByteWindow(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	o := diskOptions(d)
	o.WindowBytes = 50_000
	b := runWith(t, d, o)
	c := testbroker.ConnectRaw(t, b.addr, packet.V311, keeper("c"))
	c.Subscribe("t", 1)
	pub := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("pub"))
	for range 20 {
		pub.Publish("t", strings.Repeat("x", 10_000))
	}
	var got []testbroker.Delivery
	for range 5 {
		got = append(got, c.Delivery())
	}
	c.Ping()
	c.Ack(got[0])
	got = append(got, c.Delivery())
	c.Ping()
	for i := 1; len(got) < 20; i++ {
		c.Ack(got[i])
		got = append(got, c.Delivery())
	}
	pub.Publish("t", strings.Repeat("x", 200_000)) // alone larger than the window
	for _, d := range got[15:] {
		c.Ack(d)
	}
	if d := c.Delivery(); len(d.Payload) != 200_000 {
		t.Errorf("%d bytes came", len(d.Payload))
	}
}

// The largest packet a client takes, and the largest that it may send.
func TestMaximumPacketSize(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{"limits.max_packet=64KiB"}})
	hello := keeper("c")
	hello.MaximumPacketSize = 100
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, hello)
	c.Subscribe("t", 1)
	c.Subscribe("$queue/q", 1)
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	pub.Publish("t", "before")
	pub.Publish("t", strings.Repeat("x", 100))
	pub.Publish("t", strings.Repeat("x", 95)+"y")
	pub.Publish("t", strings.Repeat("y", 89)) // with 11 bytes more just so
	c.Ack(receive(t, c, 1, "before", false))
	c.Ack(receive(t, c, 1, strings.Repeat("y", 89), false))
	// No answer is longer either: reasons are left out.
	if code := c.Publish("$queue/"+strings.Repeat("bad name", 6), "x"); code != packet.CodeTopicInvalid {
		t.Errorf("PUBACK 0x%X", code)
	}
	c.Send(packet.AppendSubscribe(nil, packet.V5, &packet.Subscribe{PacketID: 99, Filters: []packet.Subscription{{Filter: "$edgemq/" + strings.Repeat("x", 80)}}}))
	frame := c.Expect(packet.TypeSuback)
	if a, err := packet.ParseSuback(packet.V5, frame); err != nil || a.Codes[0] != packet.CodeFilterInvalid || len(frame) > 100 {
		t.Errorf("SUBACK of %d bytes: %+v, %v", len(frame), a, err)
	}
	c.Close()
	c = testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c")) // that takes more now
	c.Ping()

	c.SendPublish(1, 1, "t", strings.Repeat("x", 64<<10))
	if code := c.ExpectClosed(); code != int(packet.CodeTooLarge) {
		t.Errorf("DISCONNECT 0x%X", code)
	}
}

// Subscription identifiers: those of all filters that match, of the last SUBSCRIBE to each, also after a restart. [MQTT-3.3.4-3]
func TestSubscriptionIDs(t *testing.T) {
	t.Parallel()
	o := testbroker.Options{Dir: t.TempDir()}
	b := testbroker.Run(t, o)
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c"))
	sub := func(filter string, id uint32) {
		pid := c.NextID()
		c.Send(packet.AppendSubscribe(nil, packet.V5, &packet.Subscribe{PacketID: pid, SubscriptionID: id, Filters: []packet.Subscription{{Filter: filter, QoS: 1}}}))
		c.Expect(packet.TypeSuback)
	}
	sub("a/#", 1)
	sub("a/+", 268_435_455)
	sub("a/b", 3)
	sub("a/b", 4)
	sub("x", 0)
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	want := func(topic string, ids ...uint32) {
		t.Helper()
		pub.Publish(topic, topic)
		d := c.Delivery()
		c.Ack(d)
		got := d.SubscriptionIDs(nil)
		slices.Sort(got)
		if d.Payload != topic || !slices.Equal(got, ids) {
			t.Errorf("%q has the identifiers %v, want %v", d.Payload, got, ids)
		}
	}
	all := func() {
		t.Helper()
		want("a/b", 1, 4, 268_435_455)
		want("a/b/c", 1)
		want("x")
	}
	all()
	c.Ping()
	b.Stop()
	b = testbroker.Run(t, o)
	c = testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c"))
	pub = testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	all()
}

// Topic aliases of a publisher.
func TestTopicAlias(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	sub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("sub"))
	sub.Subscribe("#", 1)
	c := testbroker.DialRaw(t, b.Addr, packet.V5)
	most := c.Connect(clean("c")).TopicAliasMaximum
	if most == 0 {
		t.Fatal("no aliases are offered")
	}
	put := func(topic string, alias uint16, payload string) {
		c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: topic, Alias: alias, Payload: []byte(payload)}))
	}
	put("a", 1, "1")
	put("", 1, "2")
	put("b", most, "3")
	put("", most, "4")
	put("c", 1, "5") // maps it anew
	put("", 1, "6")
	for i, topic := range []string{"a", "a", "b", "b", "c", "c"} {
		if d := receive(t, sub, 0, fmt.Sprint(i+1), false); d.Topic != topic || d.Alias != 0 {
			t.Errorf("%q came on %q, alias %d", d.Payload, d.Topic, d.Alias)
		}
	}
	put("", 2, "unmapped")
	if code := c.ExpectClosed(); code != int(packet.CodeAliasInvalid) {
		t.Errorf("an unmapped alias: DISCONNECT 0x%X", code)
	}
	c = testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
	put("", 1, "of the last connection")
	if code := c.ExpectClosed(); code != int(packet.CodeAliasInvalid) {
		t.Errorf("an alias of the last connection: DISCONNECT 0x%X", code)
	}
	c = testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
	put("a", most+1, "too high")
	if code := c.ExpectClosed(); code != int(packet.CodeAliasInvalid) {
		t.Errorf("an alias above the maximum: DISCONNECT 0x%X", code)
	}
	sub.Ping() // none of them came
}

// The session's end: by its expiry, by what DISCONNECT makes of it, by Clean Start; also over the broker's downtime.
func TestSessionExpiry(t *testing.T) {
	t.Parallel()
	expiring := func(seconds uint32) *packet.Connect {
		return &packet.Connect{ClientID: "c", HasSessionExpiry: seconds > 0, SessionExpiry: seconds}
	}
	bye := func(seconds uint32) []byte {
		return packet.AppendDisconnect(nil, packet.V5, &packet.Disconnect{HasSessionExpiry: true, SessionExpiry: seconds})
	}
	past := func() { time.Sleep(1200 * time.Millisecond) }
	for _, tc := range []struct {
		name    string
		first   *packet.Connect
		bye     []byte
		then    func()
		restart bool
		again   *packet.Connect
		present bool
	}{
		{"in time", expiring(3600), nil, nil, false, expiring(3600), true},
		{"too late", expiring(1), nil, past, false, expiring(3600), false},
		{"none", expiring(0), nil, nil, false, expiring(3600), false},
		{"clean start", expiring(3600), nil, nil, false, &packet.Connect{ClientID: "c", Clean: true}, false},
		{"ended by DISCONNECT", expiring(3600), bye(0), nil, false, expiring(3600), false},
		{"shortened by DISCONNECT", expiring(3600), bye(1), past, false, expiring(3600), false},
		{"prolonged by DISCONNECT", expiring(1), bye(3600), past, false, expiring(3600), true},
		{"over a restart", expiring(3600), nil, nil, true, expiring(3600), true},
		{"too late, over a restart", expiring(1), nil, past, true, expiring(3600), false},
		{"prolonged by DISCONNECT, over a restart", expiring(1), bye(3600), past, true, expiring(3600), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := testbroker.Options{Dir: t.TempDir()}
			b := testbroker.Run(t, o)
			c := testbroker.ConnectRaw(t, b.Addr, packet.V5, tc.first)
			c.Subscribe("t", 1)
			if tc.bye != nil {
				c.Send(tc.bye)
				c.ExpectClosed()
			}
			c.Close()
			if tc.restart {
				b.Stop()
			}
			if tc.then != nil {
				tc.then()
			}
			if tc.restart {
				b = testbroker.Run(t, o)
			}
			c = testbroker.DialRaw(t, b.Addr, packet.V5)
			if ack := c.Connect(tc.again); ack.SessionPresent != tc.present {
				t.Errorf("session present %v", ack.SessionPresent)
			}
			// And the subscriptions are there, or not.
			c.Publish("t", "x")
			_, ok := c.DeliveryWithin(50 * time.Millisecond)
			if ok != tc.present {
				t.Errorf("subscribed: %v", ok)
			}
		})
	}
	t.Run("raised from none by DISCONNECT", func(t *testing.T) {
		b := testbroker.Run(t, testbroker.Options{})
		c := testbroker.ConnectRaw(t, b.Addr, packet.V5, expiring(0))
		c.Send(bye(10))
		if code := c.ExpectClosed(); code != int(packet.CodeProtocol) {
			t.Errorf("DISCONNECT 0x%X", code)
		}
	})
}
