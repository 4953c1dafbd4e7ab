package broker_test

import (
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/internal/wire"
)

// TestBornHost: deliveries of queues and replays say from which address the message was published, whatever connection the
// publisher has by then, and after a restart; ordinary ones do not, and the publisher's own word counts.
func TestBornHost(t *testing.T) {
	t.Parallel()
	o := testbroker.Options{Dir: t.TempDir(), Config: "queues: [{name: q, topics: [t/#], max_deliveries: 1}]"}
	b := testbroker.Run(t, o)
	from := map[string]string{} // by payload: the address
	ordinary := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "o", Clean: true})
	ordinary.Subscribe("t/#", 1)
	publish := func(payload string, will bool) *testbroker.Raw {
		t.Helper()
		con := &packet.Connect{ClientID: "pub", Clean: true}
		if will {
			con.Will = &packet.Will{Topic: "$queue/q", QoS: 1, Payload: []byte("will")}
		}
		c := testbroker.ConnectRaw(t, b.Addr, packet.V5, con)
		c.Publish("t/1", payload)
		if from[payload] = c.Local(); will {
			from["will"] = c.Local()
		}
		return c
	}
	publish("one", false)
	publish("two", true).Close()
	c := publish("three", false)
	c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{
		QoS: 1, PacketID: c.NextID(), Topic: "t/1", Props: packet.AppendUser(nil, wire.BornHost, "of my own"), Payload: []byte("own"),
	}))
	c.Expect(packet.TypePuback)
	from["own"] = "of my own"
	c.Publish("$delayed/1/$queue/q", "delayed")
	from["delayed"] = c.Local()
	c.Publish("$delayed/1/t/1", "later") // ordinary subscribers get what was published, so it has nothing to say
	from["later"] = ""
	for range 5 {
		d := ordinary.Delivery()
		ordinary.Ack(d)
		if host := user(d, wire.BornHost); host != "" && host != "of my own" {
			t.Errorf("an ordinary subscriber is told %q", host)
		}
	}
	b.Stop()
	b = testbroker.Run(t, o)
	publish("four", false)
	n := len(from)

	check := func(what string, c *testbroker.Raw, n int, ack byte) {
		t.Helper()
		for range n {
			d := c.Delivery()
			want, ok := from[d.Payload]
			if host := user(d, wire.BornHost); host != want || !ok {
				t.Errorf("%s: %q is from %q, want %q", what, d.Payload, host, want)
			}
			c.Send(packet.AppendAck(nil, packet.V5, packet.TypePuback, d.PacketID, ack, ""))
		}
	}
	replay := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "r", Clean: true})
	replay.Subscribe("$s/earliest/t/#", 1)
	check("replay", replay, n-2, 0)
	consumer := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "q", Clean: true})
	consumer.Subscribe("$queue/q", 1)
	check("queue", consumer, n, 0x80) // refused, all go to the dead letters
	consumer.Subscribe("$queue/q-dead", 1)
	check("dead letters", consumer, n, 0)

	v3 := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: "v3", Clean: true})
	v3.Subscribe("$v5/$s/earliest/t/#", 1)
	var p packet.Publish
	if err := packet.ParseEnvelope([]byte(v3.Delivery().Payload), &p); err != nil {
		t.Fatal(err)
	}
	if host, _ := packet.FindUser(p.Props, wire.BornHost); string(host) != from["one"] {
		t.Errorf("$v5/: %q, want %q", host, from["one"])
	}
}
