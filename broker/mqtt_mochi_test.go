package broker_test

import (
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// What mochi's own sessions do otherwise and no other test has. docs/MQTT.md has the whole list.

// A message without an expiry has none when it is delivered, live, from the store or retained, and is not given one.
func TestNoExpiryIsAdded(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	live := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("live"))
	live.Subscribe("t", 1)
	offline := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("offline"))
	offline.Subscribe("t", 1)
	offline.Close()
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	retain(pub, packet.V5, "t", "x", 0)
	offline = testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("offline"))
	late := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("late"))
	late.Subscribe("t", 1)
	for name, c := range map[string]*testbroker.Raw{"live": live, "offline": offline, "retained": late} {
		if d := receive(t, c, 1, "x", false); d.HasExpiry {
			t.Errorf("%s: expires in %d s", name, d.Expiry)
		}
	}
}

// PUBACK says success and nothing else: none of the publisher's properties, no code that means something else.
func TestPubackEchoesNothing(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	for _, subscribed := range []bool{false, true} {
		if subscribed {
			testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("sub")).Subscribe("t", 1)
		}
		for _, qos := range []byte{1, 2} {
			o := packet.Outgoing{Topic: "t", QoS: qos, PacketID: 7, Extra: []packet.UserProperty{{Name: "mine", Value: "alone"}}, HasExpiry: true, Expiry: 1}
			pub.Send(packet.AppendPublish(nil, packet.V5, &o))
			want := packet.AppendAck(nil, packet.V5, []packet.Type{0, packet.TypePuback, packet.TypePubrec}[qos], 7, 0, "")
			if got := pub.Next(); string(got) != string(want) {
				t.Errorf("QoS %d, subscribed %v: % X, want % X", qos, subscribed, got, want)
			}
			ack(pub, packet.V5, packet.TypePubrel, 7)
			pub.Next() // a PUBCOMP; after QoS 1 it says that there is no such packet id
		}
	}
}

// A SUBSCRIBE may have the packet id of a delivery that is not acknowledged, and so may an UNSUBSCRIBE and a publish: the two
// directions know nothing of each other.
func TestRequestsWithTheIDOfADelivery(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		c := testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		c.Subscribe("t", 2)
		pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
		for id := uint16(1); id <= 2; id++ {
			publish2(pub, v, id, "t", "x", false)
			ack(pub, v, packet.TypePubrel, id)
			pub.ExpectAck(packet.TypePubcomp, id)
		}
		d := receive(t, c, 2, "x", false)
		receive(t, c, 2, "x", false)
		c.Send(packet.AppendSubscribe(nil, v, &packet.Subscribe{PacketID: d.PacketID, Filters: []packet.Subscription{{Filter: "u", QoS: 1}}}))
		if a, err := packet.ParseSuback(v, c.Expect(packet.TypeSuback)); err != nil || a.PacketID != d.PacketID || a.Codes[0] != 1 {
			t.Errorf("SUBACK %+v %v", a, err)
		}
		if code := publish2(c, v, d.PacketID, "elsewhere", "y", false); code != 0 {
			t.Errorf("PUBREC 0x%02X", code)
		}
		c.Send(packet.AppendUnsubscribe(nil, v, &packet.Unsubscribe{PacketID: d.PacketID, Filters: []string{"u"}}))
		if a, err := packet.ParseUnsuback(v, c.Expect(packet.TypeUnsuback)); err != nil || a.PacketID != d.PacketID {
			t.Errorf("UNSUBACK %+v %v", a, err)
		}
		ack(c, v, packet.TypePubrec, d.PacketID)
		c.ExpectAck(packet.TypePubrel, d.PacketID)
	})
}

// The count of subscriptions follows what there is, whatever is unsubscribed from.
func TestSubscriptionsAreCounted(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
	c.Subscribe("a", 1)
	c.Subscribe("a", 0)
	c.Subscribe("$share/g/a", 0)
	unsubscribe(t, c, "b", packet.CodeNoSubscription)
	unsubscribe(t, c, "b", packet.CodeNoSubscription)
	if all, shared := b.Sessions().Subscriptions(); all != 2 || shared != 1 {
		t.Errorf("%d subscriptions, %d shared", all, shared)
	}
	unsubscribe(t, c, "a", 0)
	unsubscribe(t, c, "a", packet.CodeNoSubscription)
	unsubscribe(t, c, "$share/g/a", 0)
	if all, shared := b.Sessions().Subscriptions(); all != 0 || shared != 0 {
		t.Errorf("%d subscriptions, %d shared", all, shared)
	}
}

// One connection's publishes do not wait for each other's fsync.
func TestPublishesShareACommit(t *testing.T) {
	t.Parallel()
	const n, pause = 400, 10 * time.Millisecond
	d := newDisk(t)
	b := runOn(t, d, func(*broker.Options) {})
	c := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("c"))
	c.Publish("t", "x") // the topic is known
	slowly(d, pause)
	syncs := d.Count(vfstest.Datasync)
	var batch []byte
	for id := uint16(1); id <= n; id++ {
		batch = packet.AppendPublish(batch, packet.V5, &packet.Outgoing{Topic: "t", QoS: 1, PacketID: id, Payload: []byte("x")})
	}
	c.Send(batch)
	for id := uint16(1); id <= n; id++ {
		c.ExpectAck(packet.TypePuback, id)
	}
	if got := d.Count(vfstest.Datasync) - syncs; got > n/10 {
		t.Errorf("%d publishes took %d fsyncs", n, got)
	}
}

// An idle connection costs a few KiB, not buffers for what it might do.
func TestIdleConnectionsAreSmall(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	const n, most = 400, 40 << 10 // with the client's side of it, which is in this process too
	hello := packet.AppendConnect(nil, &packet.Connect{Version: packet.V5, Clean: true, ReceiveMaximum: 65535})
	before := inUse()
	for range n {
		c, err := net.Dial("tcp", b.Addr)
		must(t, err)
		defer c.Close()
		_, err = c.Write(hello)
		must(t, err)
		_ = c.SetReadDeadline(time.Now().Add(testbroker.Patience))
		_, err = c.Read(make([]byte, 4))
		must(t, err)
	}
	if got := (inUse() - before) / n; got > most {
		t.Errorf("%d KiB each", got>>10)
	}
}

// inUse is the memory of heap and stacks.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
