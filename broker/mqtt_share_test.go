package broker_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// nothingFor is how long a test looks for a delivery that must not come, where nothing else can tell.
const nothingFor = 100 * time.Millisecond

func nothing(t *testing.T, c *testbroker.Raw) {
	t.Helper()
	if d, ok := c.DeliveryWithin(nothingFor); ok {
		t.Fatalf("received %q on %s", d.Payload, d.Topic)
	}
}

// take takes and acknowledges what comes to a client until nothing does.
func take(c *testbroker.Raw) (got []string) {
	for {
		d, ok := c.DeliveryWithin(nothingFor)
		if !ok {
			return got
		}
		got = append(got, d.Payload)
		c.Ack(d)
	}
}

func numbers(from, to int) (ns []string) {
	for i := from; i <= to; i++ {
		ns = append(ns, fmt.Sprint(i))
	}
	return ns
}

func equal(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// Each message goes to one member, each publisher's to one, in order. Members who are offline get nothing while others are there.
func TestShareOnlineMembersFirst(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		one := testbroker.ConnectRaw(t, b.Addr, v, keeper("one"))
		two := testbroker.ConnectRaw(t, b.Addr, v, keeper("two"))
		for _, c := range []*testbroker.Raw{one, two} {
			if code := c.Subscribe("$share/g/t/#", 1); code != 1 {
				t.Fatalf("SUBACK 0x%02X", code)
			}
		}
		var pubs []*testbroker.Raw
		for i := range 8 {
			pubs = append(pubs, testbroker.ConnectRaw(t, b.Addr, v, clean(fmt.Sprint("pub", i))))
		}
		for n := range 10 {
			for i, p := range pubs {
				p.Publish("t/a", fmt.Sprintf("%d-%d", i, n))
			}
		}
		first, second := take(one), take(two)
		if len(first)+len(second) != 80 || len(first) == 0 || len(second) == 0 {
			t.Fatalf("%d and %d of 80", len(first), len(second))
		}
		for i := range pubs {
			got := slices.DeleteFunc(append(slices.Clone(first), second...), func(s string) bool { return s[:2] != fmt.Sprintf("%d-", i) })
			var want []string
			for n := range 10 {
				want = append(want, fmt.Sprintf("%d-%d", i, n))
			}
			equal(t, got, want)
		}
		leave(t, b, two, "two")
		for n := range 100 {
			pubs[n%8].Publish("t/a", fmt.Sprint(n))
		}
		if got := take(one); len(got) != 100 {
			t.Fatalf("the member who is there got %d of 100", len(got))
		}
		leave(t, b, one, "one")
		for n := range 20 {
			pubs[0].Publish("t/a", fmt.Sprint(n))
		}
		two = testbroker.ConnectRaw(t, b.Addr, v, keeper("two"))
		equal(t, take(two), numbers(0, 19)) // kept for whoever comes first
	})
}

// What a member leaves unacknowledged at QoS 1 goes to the others, in order, however it leaves.
func TestShareHandsOver(t *testing.T) {
	t.Parallel()
	for name, quit := range map[string]func(t *testing.T, addr string, c *testbroker.Raw){
		"network": func(_ *testing.T, _ string, c *testbroker.Raw) { c.Close() },
		"unsubscribe": func(_ *testing.T, _ string, c *testbroker.Raw) {
			c.Send(packet.AppendUnsubscribe(nil, packet.V5, &packet.Unsubscribe{PacketID: 99, Filters: []string{"$share/g/t"}}))
		},
		"disconnect": func(_ *testing.T, _ string, c *testbroker.Raw) {
			c.Send(packet.AppendDisconnect(nil, packet.V5, &packet.Disconnect{}))
		},
		"session ends": func(t *testing.T, addr string, c *testbroker.Raw) {
			testbroker.ConnectRaw(t, addr, packet.V5, clean("first"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := testbroker.Run(t, testbroker.Options{})
			first := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("first"))
			first.Subscribe("$share/g/t", 1)
			pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
			for _, n := range numbers(1, 20) {
				pub.Publish("t", n)
			}
			for _, n := range numbers(1, 20) {
				d := receive(t, first, 1, n, false)
				if n <= "5" && len(n) == 1 {
					first.Ack(d)
				}
			}
			first.Ping() // the acks are in
			second := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("second"))
			second.Subscribe("$share/g/t", 1)
			quit(t, b.Addr, first)
			for _, n := range numbers(21, 30) {
				pub.Publish("t", n)
			}
			equal(t, take(second), numbers(6, 30))
		})
	}
}

// A message that a member was sent at QoS 2 stays its own: it is completed when the member comes back, whoever else is there, and goes
// to nobody if the member's session ends. [MQTT-4.8.2-4] [MQTT-4.8.2-5]
func TestShareExactlyOnce(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		dir := t.TempDir()
		b := testbroker.Run(t, testbroker.Options{Dir: dir})
		first := testbroker.ConnectRaw(t, b.Addr, v, keeper("first"))
		first.Subscribe("$share/g/t", 2)
		pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
		var ids [5]uint16
		for i := range ids {
			publish2(pub, v, uint16(i+1), "t", fmt.Sprint(i), false)
		}
		for i := range ids {
			ids[i] = receive(t, first, 2, fmt.Sprint(i), false).PacketID
		}
		for _, i := range []int{0, 1} {
			ack(first, v, packet.TypePubrec, ids[i])
			first.ExpectAck(packet.TypePubrel, ids[i])
		}
		ack(first, v, packet.TypePubcomp, ids[0])
		first.Ping()
		for round := range 3 {
			second := testbroker.ConnectRaw(t, b.Addr, v, keeper("second"))
			second.Subscribe("$share/g/t", 2)
			switch round {
			case 0:
				leave(t, b, first, "first")
			case 1: // takeover
			case 2:
				second.Close()
				b.Stop()
				b = testbroker.Run(t, testbroker.Options{Dir: dir})
				pub = testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
				second = testbroker.ConnectRaw(t, b.Addr, v, keeper("second"))
			}
			publish2(pub, v, uint16(100+round), "t", fmt.Sprint("new", round), false)
			if round != 1 {
				d := receive(t, second, 2, fmt.Sprint("new", round), false)
				ack(second, v, packet.TypePubrec, d.PacketID)
				second.ExpectAck(packet.TypePubrel, d.PacketID)
				ack(second, v, packet.TypePubcomp, d.PacketID)
				nothing(t, second)
			}
			leave(t, b, second, "second") // or what waits for it may be sent to it, and be its own from then on
			first = testbroker.ConnectRaw(t, b.Addr, v, keeper("first"))
			first.ExpectAck(packet.TypePubrel, ids[1])
			for i := 2; i < 5; i++ {
				if d := receive(t, first, 2, fmt.Sprint(i), true); d.PacketID != ids[i] {
					t.Fatalf("packet id %d, was %d", d.PacketID, ids[i])
				}
			}
			if round == 1 {
				d := first.Delivery() // the new one, which may have been on its way to the second
				if d.Payload != "new1" {
					t.Fatalf("got %q", d.Payload)
				}
				ack(first, v, packet.TypePubrec, d.PacketID)
				first.ExpectAck(packet.TypePubrel, d.PacketID)
				ack(first, v, packet.TypePubcomp, d.PacketID)
			}
			nothing(t, first)
		}
		for i := 2; i < 4; i++ {
			ack(first, v, packet.TypePubrec, ids[i])
			first.ExpectAck(packet.TypePubrel, ids[i])
			ack(first, v, packet.TypePubcomp, ids[i])
		}
		first.Ping()
		second := testbroker.ConnectRaw(t, b.Addr, v, keeper("second"))
		testbroker.ConnectRaw(t, b.Addr, v, clean("first")) // its session ends, with 1 and 4 open
		nothing(t, second)
	})
}

// leave closes a client's connection and returns when the broker has noticed.
func leave(t *testing.T, b *testbroker.InProcess, c *testbroker.Raw, id string) {
	t.Helper()
	c.Close()
	for deadline := time.Now().Add(testbroker.Patience); time.Now().Before(deadline); {
		if s, err := b.Sessions().Session(id); err != nil || !s.Connected {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Fatal("the broker does not notice that a connection is closed")
}

// Unsubscribing does not take back what is on its way. [MQTT-3.10.4-3]
func TestShareUnsubscribeCompletesQoS2(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	first := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("first"))
	second := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("second"))
	first.Subscribe("$share/g/t", 2)
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	publish2(pub, packet.V5, 1, "t", "x", false)
	d := receive(t, first, 2, "x", false)
	second.Subscribe("$share/g/t", 2)
	unsubscribe(t, first, "$share/g/t", 0)
	unsubscribe(t, first, "$share/g/t", packet.CodeNoSubscription)
	first.Close()
	first = testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("first"))
	if again := receive(t, first, 2, "x", true); again.PacketID != d.PacketID {
		t.Errorf("packet id %d, was %d", again.PacketID, d.PacketID)
	}
	ack(first, packet.V5, packet.TypePubrec, d.PacketID)
	first.ExpectAck(packet.TypePubrel, d.PacketID)
	ack(first, packet.V5, packet.TypePubcomp, d.PacketID)
	pub.Publish("t", "y")
	receive(t, second, 1, "y", false)
	nothing(t, first)
	first.Close()
	first = testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("first"))
	nothing(t, first)
}

// unsubscribe unsubscribes from one filter; the UNSUBACK must have the code given.
func unsubscribe(t *testing.T, c *testbroker.Raw, filter string, want byte) {
	t.Helper()
	id := c.NextID()
	c.Send(packet.AppendUnsubscribe(nil, packet.V5, &packet.Unsubscribe{PacketID: id, Filters: []string{filter}}))
	ack, err := packet.ParseUnsuback(packet.V5, c.Expect(packet.TypeUnsuback))
	if err != nil || ack.PacketID != id || len(ack.Codes) != 1 || ack.Codes[0] != want {
		t.Fatalf("UNSUBACK %+v %v, want 0x%02X", ack, err, want)
	}
}

// A shared subscription is one of its own: beside an ordinary one it brings a second copy; it brings no retained messages and, like any
// that begins with a wildcard, nothing from under $.
func TestShareIsApart(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	pub.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 1, PacketID: 1000, Topic: "t", Payload: []byte("retained"), Retain: true}))
	pub.ExpectAck(packet.TypePuback, 1000)
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
	c.Send(packet.AppendSubscribe(nil, packet.V5, &packet.Subscribe{PacketID: 1000, SubscriptionID: 7, Filters: []packet.Subscription{{Filter: "$share/g/#", QoS: 1}}}))
	c.Expect(packet.TypeSuback)
	c.Send(packet.AppendSubscribe(nil, packet.V5, &packet.Subscribe{PacketID: 1001, SubscriptionID: 8, Filters: []packet.Subscription{{Filter: "t", QoS: 1, RetainHandling: 2}}}))
	c.Expect(packet.TypeSuback)
	pub.Publish("$queue/q", "queue")
	pub.Publish("t", "x")
	var ids []uint32
	for range 2 {
		d := receive(t, c, 1, "x", false)
		ids = d.SubscriptionIDs(ids)
		c.Ack(d)
	}
	if slices.Sort(ids); !slices.Equal(ids, []uint32{7, 8}) {
		t.Errorf("subscription identifiers %v", ids)
	}
	nothing(t, c)
	// An answer of 0x80 or more gives the message up; nobody else gets it. [MQTT-4.8.2-6]
	unsubscribe(t, c, "t", 0)
	pub.Publish("t", "refused")
	d := receive(t, c, 1, "refused", false)
	c.Send(packet.AppendAck(nil, packet.V5, packet.TypePuback, d.PacketID, packet.CodeImplementation, ""))
	other := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("other"))
	other.Subscribe("$share/g/#", 1)
	c.Close()
	nothing(t, other)
	pub.Publish("t", "y")
	receive(t, other, 1, "y", false)
}
