package broker_test

import (
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// A client that is still sending when the broker gives up on it can go on until it reads why. [MQTT-4.13.1-1]
func TestReasonArrivesThoughTheClientIsSending(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	goOn := func(c *testbroker.Raw) {
		for range 10 { // a reset would make the second fail
			c.Send(packet.AppendPingreq(nil))
			<-time.After(5 * time.Millisecond)
		}
	}
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
	var p []byte
	for id := range uint16(1025) { // Receive Maximum is 1024 [MQTT-3.3.4-9]
		p = packet.AppendPublish(p, packet.V5, &packet.Outgoing{QoS: 2, PacketID: id + 1, Topic: "t", Payload: make([]byte, 100)})
	}
	c.Send(p)
	goOn(c)
	if code := c.ExpectClosed(); code != int(packet.CodeReceiveMaximum) {
		t.Fatalf("DISCONNECT 0x%X, want 0x93", code)
	}

	c = testbroker.DialRaw(t, b.Addr, packet.V5)
	c.SendHex("10 0d 00 04 4d 51 54 54 05 03 00 3c 00 00 00") // a reserved flag
	goOn(c)
	ack, err := packet.ParseConnack(packet.V5, c.Expect(packet.TypeConnack))
	if err != nil || ack.Code != packet.CodeMalformed {
		t.Fatalf("CONNACK %+v %v", ack, err)
	}
	c.ExpectClosed()
}
