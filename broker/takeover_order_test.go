package broker_test

import (
	"fmt"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// A publisher whose connection seems dead comes back and sends again what was not acknowledged, while the broker still reads what the
// old connection had sent. What both say is stored once, and in order: the old one's comes first.
func TestTakeoverKeepsTheOrderOfPublishes(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	const n = 800
	rounds := 60
	for round := range rounds {
		id, topic := fmt.Sprint("p", round), fmt.Sprint("$v5/t/", round)
		var out []byte
		for i := range n {
			out = packet.AppendPublish(out, packet.V311, &packet.Outgoing{
				QoS: 1, PacketID: 1 + uint16(i), Topic: topic, Payload: identified(fmt.Sprint(i), fmt.Sprint(i)),
			})
		}
		connect := packet.AppendConnect(nil, &packet.Connect{Version: packet.V311, ClientID: id, Clean: true})
		first := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: id, Clean: true})
		second := testbroker.DialRaw(t, b.Addr, packet.V311)
		_ = first.TrySend(out)
		second.Send(append(connect, out...))
		second.Expect(packet.TypeConnack)
		for i := range n {
			second.ExpectAck(packet.TypePuback, 1+uint16(i))
		}
		second.Close()
		first.Close()
	}
	r := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: "r", Clean: true})
	r.Subscribe("$s/earliest/t/+", 1)
	next := make([]int, rounds)
	for range rounds * n {
		d := r.Delivery()
		r.Ack(d)
		var round int
		if _, err := fmt.Sscanf(d.Topic, "t/%d", &round); err != nil {
			t.Fatal(err)
		}
		if d.Payload != fmt.Sprint(next[round]) {
			t.Fatalf("round %d: %s where %d is next", round, d.Payload, next[round])
		}
		next[round]++
	}
}
