package broker_test

import (
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
