package broker_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/internal/wire"
)

// user returns a user property of a delivery, "" if it has none.
func user(d testbroker.Delivery, name string) string {
	v, _ := packet.FindUser(d.Props, name)
	return string(v)
}

func TestReplayThenLive(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "pub", Clean: true})
	for i := range 10 {
		pub.Publish("r/a", fmt.Sprint(i))
		pub.Publish("other", "x")
	}
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		for start, first := range map[string]int{"earliest": 0, "offset:5": 2, "1h": 0, "latest": 10} {
			t.Run(fmt.Sprintf("%d/%s", v, start), func(t *testing.T) {
				sub := testbroker.ConnectRaw(t, b.Addr, v, &packet.Connect{ClientID: fmt.Sprintf("sub-%d-%s", v, start), Clean: true})
				if code := sub.Subscribe("$s/"+start+"/r/+", 1); code != 1 {
					t.Fatalf("SUBACK %#x", code)
				}
				for i := first; i < 10; i++ {
					d := sub.Delivery()
					sub.Ack(d)
					if d.Payload != fmt.Sprint(i) {
						t.Fatalf("got %q, want %d", d.Payload, i)
					}
					if off := user(d, wire.Offset); v == packet.V5 && off != fmt.Sprint(1+2*i) {
						t.Fatalf("%s %q, want %d", wire.Offset, off, 1+2*i)
					}
				}
				if d, ok := sub.DeliveryWithin(50 * time.Millisecond); ok {
					t.Fatalf("an unexpected %q", d.Payload)
				}
			})
		}
	}
	sub := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "prop", Clean: true})
	sub.Send(packet.AppendSubscribe(nil, packet.V5, &packet.Subscribe{
		PacketID: 7, User: []packet.UserProperty{{Name: "stream-offset", Value: "earliest"}}, Filters: []packet.Subscription{{Filter: "r/#", QoS: 1}},
	}))
	sub.Expect(packet.TypeSuback)
	for i := range 10 {
		d := sub.Delivery()
		sub.Ack(d)
		if d.Payload != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d", d.Payload, i)
		}
	}
	pub.Publish("r/a", "live")
	if d := sub.Delivery(); d.Payload != "live" {
		t.Fatalf("got %q", d.Payload)
	}
}

func TestExclusive(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	one := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "one", Clean: true})
	two := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "two", Clean: true})
	if code := one.Subscribe("$exclusive/job", 1); code != 1 {
		t.Fatalf("first: %#x", code)
	}
	if code := two.Subscribe("$exclusive/job", 1); code != packet.CodeQuotaExceeded {
		t.Fatalf("second: %#x", code)
	}
	two.Publish("job", "go")
	if d := one.Delivery(); d.Payload != "go" {
		t.Fatalf("got %q", d.Payload)
	}
	one.Close()
	deadline := time.Now().Add(5 * time.Second)
	for two.Subscribe("$exclusive/job", 1) != 1 {
		if time.Now().After(deadline) {
			t.Fatal("the filter was not free after its holder had gone")
		}
	}
}

func TestDelayed(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: "c", Clean: true})
	c.Subscribe("later/#", 1)
	start := time.Now()
	for i := range 5 {
		c.Publish("$delayed/1/later/x", strconv.Itoa(i))
	}
	for i := range 5 {
		d := c.Delivery()
		c.Ack(d)
		if d.Payload != strconv.Itoa(i) {
			t.Fatalf("got %q, want %d", d.Payload, i)
		}
		if since := time.Since(start); since < time.Second {
			t.Fatalf("early: after %v", since)
		}
	}
}

func TestEnvelope(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	v3 := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: "v3", Clean: true})
	v5 := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "v5", Clean: true})
	v3.Subscribe("$v5/e/#", 1)
	v5.Subscribe("e/#", 1)
	out := packet.Outgoing{Props: packet.AppendUser(nil, "k", "v"), Payload: []byte("body")}
	v3.Publish("$v5/e/1", string(packet.AppendEnvelope(nil, &out)))
	d := v5.Delivery()
	v5.Ack(d)
	if d.Payload != "body" || user(d, "k") != "v" {
		t.Fatalf("v5 got %q %q", d.Payload, d.Props)
	}
	d = v3.Delivery()
	v3.Ack(d)
	var p packet.Publish
	if err := packet.ParseEnvelope([]byte(d.Payload), &p); err != nil {
		t.Fatal(err)
	}
	if v, _ := packet.FindUser(p.Props, "k"); string(v) != "v" || string(p.Payload) != "body" || d.Topic != "e/1" {
		t.Fatalf("v3 got %q %q %q", d.Topic, p.Props, p.Payload)
	}
}

func TestCaughtUpMark(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: "c", Clean: true})
	for i := range 100 {
		c.Publish("$queue/q", strconv.Itoa(i))
	}
	c.Subscribe("$v5/$queue/q", 1)
	for i := range 100 {
		d := c.Delivery()
		c.Ack(d)
		var p packet.Publish
		if err := packet.ParseEnvelope([]byte(d.Payload), &p); err != nil {
			t.Fatal(err)
		}
		if string(p.Payload) != strconv.Itoa(i) {
			t.Fatalf("got %q, want %d", p.Payload, i)
		}
	}
	if d := c.Delivery(); d.Topic != "$queue/q/$caught-up" || d.QoS != 0 {
		t.Fatalf("instead of the mark: %q", d.Topic)
	}
	empty := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: "e", Clean: true})
	empty.Subscribe("$v5/$queue/empty", 1)
	if d := empty.Delivery(); d.Topic != "$queue/empty/$caught-up" {
		t.Fatalf("instead of the mark: %q", d.Topic)
	}
	// Subscribing again asks again: for what waits by then, and for what a binding brings.
	c.Publish("more", "old")
	c.Subscribe("$v5/$queue/q", 1)
	if d := c.Delivery(); d.Topic != "$queue/q/$caught-up" {
		t.Fatalf("instead of the second mark: %q", d.Topic)
	}
	c.Subscribe("$v5/$queue/q/more", 1)
	if d := c.Delivery(); d.Topic != "more" {
		t.Fatalf("instead of what the binding brings: %q", d.Topic)
	}
	if d := c.Delivery(); d.Topic != "$queue/q/$caught-up" {
		t.Fatalf("instead of the third mark: %q", d.Topic)
	}
}

func TestMessageIDStoredOnce(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "c", Clean: true})
	c.Subscribe("d/#", 0)
	send := func(id string) []byte {
		c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{
			QoS: 1, PacketID: c.NextID(), Topic: "d/1", Props: packet.AppendUser(nil, wire.MessageID, id), Payload: []byte(id),
		}))
		for {
			f := c.Next()
			if packet.TypeOf(f) == packet.TypePuback {
				return f
			}
		}
	}
	send("a")
	send("b")
	var a packet.Ack
	if err := packet.ParseAck(packet.V5, send("a"), &a); err != nil || a.Code != 0 {
		t.Fatal(err, a.Code)
	}
	if off, _ := packet.FindUser(a.Props, wire.Offset); string(off) != "1" {
		t.Fatalf("the duplicate's PUBACK has %s %q, want 1", wire.Offset, off)
	}
	if next := b.Store().Next(); next != 3 {
		t.Fatalf("next offset %d, want 3: two messages", next)
	}
}
