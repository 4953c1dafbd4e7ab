package broker_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/internal/wire"
)

const quickQueue = `queues=[{name: q, retry_delay: [10ms], max_deliveries: 3}, {name: o, retry_delay: [30ms], ordered: true, max_deliveries: 0}]`

func TestRefusedComesAgainThenDies(t *testing.T) {
	t.Parallel()
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		t.Run(fmt.Sprint(v), func(t *testing.T) {
			b := testbroker.Run(t, testbroker.Options{Set: []string{quickQueue}})
			c := testbroker.ConnectRaw(t, b.Addr, v, &packet.Connect{ClientID: "c", Clean: true})
			c.Publish("$queue/q", "bad")
			c.Publish("$queue/q", "good")
			c.Subscribe("$queue/q", 1)
			bad, good := 0, 0
			for bad < 3 || good < 1 {
				d := c.Delivery()
				if d.Payload == "good" {
					good++
					c.Ack(d)
					continue
				}
				bad++
				if v == packet.V5 {
					c.Send(packet.AppendAck(nil, v, packet.TypePuback, d.PacketID, packet.CodeUnspecified, "no good"))
					continue
				}
				c.Send(packet.AppendPublish(nil, v, &packet.Outgoing{
					Topic: "$queue/q/$nack", Payload: fmt.Appendf(nil, "#%d 0.01 no good", d.PacketID),
				}))
				c.Ack(d)
			}
			dead := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "d", Clean: true})
			dead.Subscribe("$queue/q-dead", 1)
			d := dead.Delivery()
			dead.Ack(d)
			for name, want := range map[string]string{
				wire.Redelivered: "3", wire.Reason: "no good", wire.Queue: "q", wire.Topic: "$queue/q", wire.OriginOffset: "1",
			} {
				if got := user(d, name); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			if d.Payload != "bad" {
				t.Errorf("dead letter %q", d.Payload)
			}
			if d, ok := c.DeliveryWithin(50 * time.Millisecond); ok {
				t.Fatalf("%q came again", d.Payload)
			}
		})
	}
}

// The PUBACK of a delivery that was refused may come when the message is there again: it acknowledges nothing.
func TestLateAckOfRefused(t *testing.T) {
	t.Parallel()
	for _, qos := range []byte{1, 2} {
		b := testbroker.Run(t, testbroker.Options{Set: []string{quickQueue}})
		c := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: "c", Clean: true})
		publish2(c, packet.V311, 1, "$queue/q", "bad", false)
		ack(c, packet.V311, packet.TypePubrel, 1)
		c.ExpectAck(packet.TypePubcomp, 1)
		c.Subscribe("$queue/q", qos)
		var last *testbroker.Delivery
		for range 3 { // as often as it may be refused
			d := c.Delivery()
			switch { // only now is the one before answered
			case last == nil:
			case qos == 1:
				c.Ack(*last)
			default:
				ack(c, packet.V311, packet.TypePubrec, last.PacketID)
				c.ExpectAck(packet.TypePubrel, last.PacketID)
				ack(c, packet.V311, packet.TypePubcomp, last.PacketID)
			}
			c.Ping() // it has been read
			c.Send(packet.AppendPublish(nil, packet.V311, &packet.Outgoing{Topic: "$queue/q/$nack", Payload: fmt.Appendf(nil, "#%d 0.01", d.PacketID)}))
			last = &d
		}
		dead := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: "d", Clean: true})
		dead.Subscribe("$queue/q-dead", 1)
		if d := dead.Delivery(); d.Payload != "bad" {
			t.Errorf("dead letter %q", d.Payload)
		}
	}
}

func TestOrderedQueueHoldsBackTheKey(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{quickQueue}})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "c", Clean: true})
	other := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "other", Clean: true})
	for i := range 5 {
		c.Publish("$queue/o", fmt.Sprint("c", i))
	}
	other.Publish("$queue/o", "free")
	c.Subscribe("$queue/o", 1)
	var got []string
	refused := 0
	for len(got) < 6 {
		d := c.Delivery()
		if d.Payload == "c1" && refused < 2 {
			refused++
			c.Send(packet.AppendAck(nil, packet.V5, packet.TypePuback, d.PacketID, packet.CodeUnspecified, ""))
			continue
		}
		got = append(got, d.Payload)
		c.Ack(d)
	}
	next := 0
	for _, p := range got {
		if p != "free" && p != fmt.Sprint("c", next) {
			t.Fatalf("out of order: %q", got)
		} else if p != "free" {
			next++
		}
	}
	if refused != 2 {
		t.Fatalf("refused %d times", refused)
	}
}

func TestQueueManagement(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{quickQueue}})
	q := b.Queues()
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "c", Clean: true})
	for i := range 10 {
		c.Publish("$queue/q", fmt.Sprint(i))
	}
	if n, err := q.Depth("q"); n != 10 || err != nil {
		t.Fatalf("depth %d %v", n, err)
	}
	if recs, err := q.Peek("q", 3); len(recs) != 3 || err != nil || string(recs[2].Payload) != "2" {
		t.Fatalf("peek %v %v", recs, err)
	}
	must(t, q.Pause("q", true))
	c.Subscribe("$queue/q", 1)
	if d, ok := c.DeliveryWithin(50 * time.Millisecond); ok {
		t.Fatalf("paused, but sent %q", d.Payload)
	}
	must(t, q.Pause("q", false))
	for i := range 10 {
		d := c.Delivery()
		c.Ack(d)
		if d.Payload != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d", d.Payload, i)
		}
	}
	must(t, q.Reset("q", 0)) // on a connected consumer
	for i := range 10 {
		d := c.Delivery()
		c.Ack(d)
		if d.Payload != fmt.Sprint(i) {
			t.Fatalf("after the reset: got %q, want %d", d.Payload, i)
		}
	}
	c.Ping() // its acknowledgements have been read
	must(t, q.Reset("q", 5))
	for i := 4; i < 10; i++ { // offsets start at 1
		d := c.Delivery()
		c.Ack(d)
		if d.Payload != fmt.Sprint(i) {
			t.Fatalf("after the second reset: got %q, want %d", d.Payload, i)
		}
	}
	c.Send([]byte{byte(packet.TypeDisconnect) << 4, 0})
	c.ExpectClosed()
	for i, _ := q.Info("q"); i.Members > 0; i, _ = q.Info("q") {
		runtime.Gosched() // until the broker has noticed
	}
	must(t, q.Reset("q", 0))
	if n, err := q.Move("q", "elsewhere", 4); n != 4 || err != nil {
		t.Fatalf("moved %d %v", n, err)
	}
	for name, want := range map[string]int64{"q": 6, "elsewhere": 4} {
		if n, err := q.Depth(name); n != want || err != nil {
			t.Fatalf("depth of %s: %d %v, want %d", name, n, err, want)
		}
	}
	if n, err := q.Purge("q"); n != 6 || err != nil {
		t.Fatalf("purged %d %v", n, err)
	}
	if n, _ := q.Depth("q"); n != 0 {
		t.Fatalf("depth %d after a purge", n)
	}
	must(t, q.Reset("elsewhere", feed.Now))
	must(t, q.Delete("elsewhere"))
	if _, err := q.Info("elsewhere"); err == nil {
		t.Fatal("a deleted queue is still there")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFullQueueRejects(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{"queues=[{name: q, max_messages: 3, overflow: reject}]"}})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "c", Clean: true})
	for i := range 5 {
		code := c.Publish("$queue/q", fmt.Sprint(i))
		if want := byte(0); i < 3 && code != want || i >= 3 && code != packet.CodeQuotaExceeded {
			t.Fatalf("publish %d: %#x", i, code)
		}
	}
	c.Subscribe("$queue/q", 1)
	for i := range 3 {
		d := c.Delivery()
		c.Ack(d)
		if d.Payload != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d", d.Payload, i)
		}
	}
	c.Ping()
	if code := c.Publish("$queue/q", "again"); code != 0 {
		t.Fatalf("there is room again, but %#x", code)
	}
}

func TestQueueDropsItsOldest(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{"queues=[{name: q, topics: ['a/#'], max_messages: 10}]"}})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "c", Clean: true})
	for i := range 30 {
		c.Publish("a/b", fmt.Sprint(i))
		c.Publish("other", "x")
	}
	deadline := time.Now().Add(10 * time.Second)
	for i, _ := b.Queues().Info("q"); i.Stats.Dropped < 20; i, _ = b.Queues().Info("q") {
		if time.Now().After(deadline) {
			t.Fatalf("dropped %d, want 20", i.Stats.Dropped)
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.Subscribe("$queue/q", 1)
	gap := c.Delivery()
	if gap.Topic != "$queue/q/$gap" || gap.Payload != "1 40 20" {
		t.Fatalf("instead of the gap: %q %q", gap.Topic, gap.Payload)
	}
	for i := 20; i < 30; i++ {
		d := c.Delivery()
		c.Ack(d)
		if d.Payload != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d", d.Payload, i)
		}
	}
}

// A consumer that never acknowledges keeps what it has and the publishers of that, and what fits the window besides. It does
// not stop the rest from going to whoever takes it.
func TestStuckConsumerLeavesTheRestToOthers(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	const publishers, each = 40, 500
	stuck := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "stuck", Clean: true, ReceiveMaximum: 1})
	stuck.Subscribe("$queue/q", 1)
	busy := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "busy", Clean: true})
	busy.Subscribe("$queue/q", 1)
	for p := range publishers {
		c := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: fmt.Sprint("p", p), Clean: true})
		for i := range each {
			c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{
				QoS: 1, PacketID: uint16(i + 1), Topic: "$queue/q", Payload: fmt.Appendf(nil, "%d %d", p, i),
			}))
		}
		for i := range each {
			c.ExpectAck(packet.TypePuback, uint16(i+1))
		}
	}
	next := [publishers]int{}
	for got := 0; got < publishers*each-4096; got++ { // what the window holds may wait for the stuck one
		d := busy.Delivery()
		busy.Ack(d)
		var p, i int
		if _, err := fmt.Sscan(d.Payload, &p, &i); err != nil {
			t.Fatal(err)
		}
		if i != next[p] {
			t.Fatalf("publisher %d: got %d, want %d", p, i, next[p])
		}
		next[p]++
	}
}
