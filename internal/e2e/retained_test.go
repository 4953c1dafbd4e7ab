package e2e

import (
	"fmt"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// What a PUBACK said of a retained message, that it is kept, replaced or taken away, holds after a kill -9.
func TestRetainedSurviveKill(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	const n = 200
	for round := range 3 {
		pub := testbroker.ConnectRaw(t, p.Addr, packet.V5, nil)
		for i := range n {
			payload := fmt.Sprint(round)
			if (i+round)%3 == 0 {
				payload = ""
			}
			pub.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{
				QoS: 1, PacketID: uint16(i + 1), Topic: fmt.Sprintf("r/%d", i), Retain: true, Payload: []byte(payload),
			}))
		}
		for i := range n {
			pub.ExpectAck(packet.TypePuback, uint16(i+1))
		}
		p.Kill()
		p.Restart()
		sub := testbroker.ConnectRaw(t, p.Addr, packet.V5, nil)
		sub.Subscribe("r/#", 0)
		got := map[string]string{}
		for i := range n {
			if (i+round)%3 != 0 {
				d := sub.Delivery()
				got[d.Topic] = d.Payload
			}
		}
		for i := range n {
			want := fmt.Sprint(round)
			if (i+round)%3 == 0 {
				want = ""
			}
			if topic := fmt.Sprintf("r/%d", i); got[topic] != want {
				t.Fatalf("round %d: %s is %q, want %q", round, topic, got[topic], want)
			}
		}
		if d, more := sub.DeliveryWithin(settleTime); more {
			t.Fatalf("round %d: %q on %s", round, d.Payload, d.Topic)
		}
	}
}
