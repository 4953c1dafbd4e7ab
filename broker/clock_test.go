package broker_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker"
	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/internal/wire"
)

// A device without a battery begins in 1970, and its clock is set once the network is there. What has a time follows at once: no timer sleeps on.
func TestClockIsSet(t *testing.T) {
	t.Parallel()
	var off atomic.Int64
	b := runOn(t, newDisk(t), func(o *broker.Options) {
		o.Store.Now = func() time.Time { return time.Now().Round(0).Add(time.Duration(off.Load())) }
		o.Queues = []broker.Queue{{Name: "q", Policy: feed.Policy{RetryDelay: []time.Duration{time.Hour}}}}
	})
	sub := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("sub"))
	for _, filter := range []string{"later", "will/+", "ids"} {
		sub.Subscribe(filter, 1)
	}
	consumer := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("consumer"))
	consumer.Subscribe("$queue/q", 1)
	away := testbroker.ConnectRaw(t, b.addr, packet.V5, keeper("away"))
	away.Subscribe("short", 1)
	away.Close()
	expiring := testbroker.ConnectRaw(t, b.addr, packet.V5, &packet.Connect{ClientID: "expiring", HasSessionExpiry: true, SessionExpiry: 3600})
	expiring.Ping()
	expiring.Close()
	will := willOf("dead", packet.Connect{SessionExpiry: 7000, Will: &packet.Will{QoS: 1, Delay: 3600}})
	testbroker.ConnectRaw(t, b.addr, packet.V5, will).Close()

	pub := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("pub"))
	pub.Publish("$delayed/3600/later", "later")
	pub.Publish("$queue/q", "refused")
	refused := consumer.Delivery()
	consumer.Send(packet.AppendAck(nil, packet.V5, packet.TypePuback, refused.PacketID, packet.CodeUnspecified, ""))
	consumer.Ping()
	pub.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 1, PacketID: 9, Topic: "short", Payload: []byte("short"), HasExpiry: true, Expiry: 3600}))
	pub.ExpectAck(packet.TypePuback, 9)
	withProps(t, pub, "ids", "id", wire.MessageID, "1")
	withProps(t, pub, "ids", "id", wire.MessageID, "1")
	sub.Ack(receive(t, sub, 1, "id", false))
	for b.Sessions().Stats().Connections > 3 { // until the others have ended
		time.Sleep(time.Millisecond)
	}

	off.Store(int64(2 * time.Hour))
	withProps(t, pub, "ids", "id", wire.MessageID, "1") // the window has passed
	came := map[string]int{}
	for range 3 {
		d := sub.Delivery()
		came[d.Payload]++
		sub.Ack(d)
	}
	if came["later"] != 1 || came["gone"] != 1 || came["id"] != 1 {
		t.Errorf("came: %v", came)
	}
	consumer.Ack(receive(t, consumer, 1, "refused", false))
	if testbroker.DialRaw(t, b.addr, packet.V5).Connect(&packet.Connect{ClientID: "expiring"}).SessionPresent {
		t.Error("the session has not expired")
	}
	again := testbroker.ConnectRaw(t, b.addr, packet.V5, keeper("away"))
	pub.Publish("short", "last")
	receive(t, again, 1, "last", false)
}

// What is saved with a time while the clock is far ahead does not wait until the clock is there again, once it is set right.
func TestClockIsSetRight(t *testing.T) {
	t.Parallel()
	var off atomic.Int64
	off.Store(int64(30 * 365 * 24 * time.Hour))
	tweak := func(o *broker.Options) {
		o.Store.Now = func() time.Time { return time.Now().Round(0).Add(time.Duration(off.Load())) }
		o.Queues = []broker.Queue{{Name: "q", Policy: feed.Policy{RetryDelay: []time.Duration{time.Second}}}}
	}
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			disk := newDisk(t)
			off.Store(int64(30 * 365 * 24 * time.Hour))
			b := runOn(t, disk, tweak)
			away := testbroker.ConnectRaw(t, b.addr, packet.V5, keeper("away"))
			for _, filter := range []string{"short", "later", "will/+"} {
				away.Subscribe(filter, 1)
			}
			away.Close()
			expiring := testbroker.ConnectRaw(t, b.addr, packet.V5, &packet.Connect{ClientID: "expiring", HasSessionExpiry: true, SessionExpiry: 1})
			expiring.Ping()
			testbroker.ConnectRaw(t, b.addr, packet.V5, willOf("dead", packet.Connect{SessionExpiry: 3600, Will: &packet.Will{QoS: 1, Delay: 1}})).Close()
			pub := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("pub"))
			pub.Publish("$queue/q", "refused")
			consumer := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("consumer"))
			consumer.Subscribe("$queue/q", 1)
			refused := consumer.Delivery()
			for i, topic := range []string{"short", "short/kept", "$delayed/1/later"} {
				pub.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{
					QoS: 1, PacketID: uint16(i + 1), Topic: topic, Payload: []byte("later"), Retain: topic == "short/kept", HasExpiry: topic != "$delayed/1/later", Expiry: 1,
				}))
				pub.ExpectAck(packet.TypePuback, uint16(i+1))
			}
			consumer.Send(packet.AppendAck(nil, packet.V5, packet.TypePuback, refused.PacketID, packet.CodeUnspecified, ""))
			consumer.Ping()
			expiring.Close()
			for b.Sessions().Stats().Connections > 2 { // until the others have ended
				time.Sleep(time.Millisecond)
			}
			if restart {
				must(t, b.end())
			}
			off.Store(0)
			if restart {
				b = runOn(t, disk, tweak)
				pub = testbroker.ConnectRaw(t, b.addr, packet.V5, clean("pub"))
				consumer = testbroker.ConnectRaw(t, b.addr, packet.V5, clean("consumer"))
				consumer.Subscribe("$queue/q", 1)
			}
			pub.Publish("now", "x") // stored, so that the times of the others go back
			expired := time.Now().Add(1100 * time.Millisecond)
			for deadline := time.Now().Add(testbroker.Patience); ; time.Sleep(10 * time.Millisecond) {
				if _, err := b.Sessions().Session("expiring"); err != nil && b.Sessions().Retained() == 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("the session has not expired, or the retained message: %d", b.Sessions().Retained())
				}
			}
			if d := consumer.Delivery(); d.Payload != "refused" {
				t.Errorf("came: %+v", d)
			}
			time.Sleep(time.Until(expired)) // of "short" the time counts from now on; those above may have begun at the restart
			away = testbroker.ConnectRaw(t, b.addr, packet.V5, keeper("away"))
			came := map[string]int{}
			for range 2 {
				d := away.Delivery()
				came[d.Topic]++
				away.Ack(d)
			}
			if came["later"] != 1 || came["will/dead"] != 1 {
				t.Errorf("came: %v", came)
			}
		})
	}
}

// A clock that jumps far ahead ends no sessions and no messages for a day: it may be wrong.
func TestClockJumpsAhead(t *testing.T) {
	t.Parallel()
	var off atomic.Int64
	tweak := func(o *broker.Options) {
		o.Store.Now = func() time.Time { return time.Now().Round(0).Add(time.Duration(off.Load())) }
	}
	disk := newDisk(t)
	b := runOn(t, disk, tweak)
	hour := &packet.Connect{ClientID: "away", HasSessionExpiry: true, SessionExpiry: 3600}
	away := testbroker.ConnectRaw(t, b.addr, packet.V5, hour)
	away.Subscribe("t", 1)
	away.Close()
	pub := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("pub"))
	pub.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 1, PacketID: 1, Topic: "t", Payload: []byte("x"), Retain: true, HasExpiry: true, Expiry: 3600}))
	pub.ExpectAck(packet.TypePuback, 1)
	must(t, b.end())
	off.Store(int64(30 * 365 * 24 * time.Hour))
	b = runOn(t, disk, tweak)
	other := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("other"))
	time.Sleep(300 * time.Millisecond) // for what looks at times to do so
	other.Subscribe("t", 1)
	receive(t, other, 1, "x", false)
	away = testbroker.DialRaw(t, b.addr, packet.V5)
	if !away.Connect(hour).SessionPresent {
		t.Error("the session has ended")
	}
	receive(t, away, 1, "x", false)
}
