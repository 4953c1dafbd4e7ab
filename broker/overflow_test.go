package broker_test

import (
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// A queue that refuses what is too much refuses it of delayed messages too: at once if it is full then, and when their time has come,
// and nobody is there to hear of it, they go to the dead letters. So do Wills.
func TestOverflowOfDelayedAndWills(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Config: "queues: [{name: q, max_messages: 3, overflow: reject}]"})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "p", Clean: true})
	for _, p := range []string{"d1", "d2", "d3"} { // they fit now, and take no room yet
		if code := c.Publish("$delayed/1/$queue/q", p); code != 0 {
			t.Fatalf("%s: %#x", p, code)
		}
	}
	mortal := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "w", Clean: true, Will: &packet.Will{Topic: "$queue/q", QoS: 1, Payload: []byte("will")}})
	for _, p := range []string{"1", "2"} {
		if code := c.Publish("$queue/q", p); code != 0 {
			t.Fatalf("%s: %#x", p, code)
		}
	}
	got := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "dead", Clean: true, ReceiveMaximum: 100})
	got.Subscribe("$queue/q-dead", 1)
	for _, want := range []string{"d2", "d3"} { // d1 takes the last place
		d := got.Delivery()
		got.Ack(d)
		if d.Payload != want || user(d, wire.Reason) != "the queue is full" || user(d, wire.Queue) != "q" || user(d, wire.Producer) != "p" || user(d, wire.Topic) != "$queue/q" {
			t.Errorf("a dead letter %q with %q, want %s", d.Payload, d.Props, want)
		}
	}
	if code := c.Publish("$delayed/1/$queue/q", "late"); code != packet.CodeQuotaExceeded {
		t.Errorf("delayed, and the queue is full: %#x", code)
	}
	mortal.Close()
	d := got.Delivery()
	if d.Payload != "will" || user(d, wire.Reason) != "the queue is full" || user(d, wire.Producer) != "w" {
		t.Errorf("a dead letter %q with %q, want the Will", d.Payload, d.Props)
	}
	all := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "all", Clean: true})
	all.Subscribe("$queue/q", 1)
	for _, want := range []string{"1", "2", "d1"} {
		if d := all.Delivery(); d.Payload != want {
			t.Errorf("the queue has %q, want %s", d.Payload, want)
		}
	}
}

// One delayed message that makes no sense does not keep the others.
func TestDamagedDelayed(t *testing.T) {
	t.Parallel()
	o := testbroker.Options{Dir: t.TempDir()}
	b := testbroker.Run(t, o)
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "p", Clean: true})
	c.Publish("$delayed/1/later", "sound")
	var muts []store.Mutation
	for _, k := range []string{"short", "\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01", "\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01"} {
		muts = append(muts, record.Put(record.BucketDelayed, []byte(k), []byte{1, 0, 200, k[len(k)-1]}))
	}
	muts[2].Value[0] = 99 // of a newer version
	if err := b.Store().Append(nil, muts, true, nil); err != nil {
		t.Fatal(err)
	}
	b.Stop()
	b = testbroker.Run(t, o)
	c = testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "p", Clean: true})
	c.Subscribe("later", 1)
	if d := c.Delivery(); d.Payload != "sound" {
		t.Errorf("got %q", d.Payload)
	}
	c.Publish("$delayed/0/later", "and on")
	if d, ok := c.DeliveryWithin(testbroker.Patience); !ok || d.Payload != "and on" {
		t.Errorf("got %q", d.Payload)
	}
	if n := b.Sessions().Stats().UnreadableDelayed; n != 3 {
		t.Errorf("%d are set aside, want 3", n)
	}
}
