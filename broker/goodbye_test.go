package broker_test

import (
	"fmt"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// A client that says goodbye, closes, and is back at once finds that what it said was heard, however busy the broker is: the Will is void,
// the session over. [MQTT-3.14.4-3] [MQTT-3.1.2-23]
func TestGoodbyeIsHeardBeforeTheReturn(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		sub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("sub"))
		sub.Subscribe("will/#", 1)
		fresh := func(i int) *packet.Connect {
			return willOf(fmt.Sprint("c", i%4), packet.Connect{SessionExpiry: 100, Clean: v == packet.V311})
		}
		for i := range 60 {
			c := testbroker.DialRaw(t, b.Addr, v)
			if ack := c.Connect(fresh(i)); ack.SessionPresent {
				t.Fatalf("round %d: the session is still there", i)
			}
			// Work that the DISCONNECT comes behind.
			var batch []byte
			for range 2000 {
				batch = packet.AppendPublish(batch, v, &packet.Outgoing{Topic: "t", Payload: []byte("x")})
			}
			c.Send(packet.AppendDisconnect(batch, v, &packet.Disconnect{HasSessionExpiry: v == packet.V5}))
			c.Close()
			again := testbroker.DialRaw(t, b.Addr, v)
			if ack := again.Connect(fresh(i)); ack.SessionPresent {
				t.Fatalf("round %d: the session is still there", i)
			}
			again.Send(packet.AppendDisconnect(nil, v, &packet.Disconnect{HasSessionExpiry: v == packet.V5}))
			again.ExpectClosed()
		}
		nothing(t, sub)
	})
}
