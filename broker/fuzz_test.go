package broker_test

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// FuzzConn sends bytes to a whole broker, before CONNECT or after it. The process lives, another client is served, and of the connection
// nothing stays.
func FuzzConn(f *testing.F) {
	b := testbroker.Run(f, testbroker.Options{Set: []string{"limits.connect_timeout=100ms"}})
	witness := testbroker.ConnectRaw(f, b.Addr, packet.V5, clean("witness"))
	witness.Subscribe("witness", 1)
	var quiet int // goroutines, those of the fuzzing engine included
	for _, v := range []packet.Version{packet.V31, packet.V311, packet.V5} {
		hello := clean("c")
		hello.Version = v
		hello.Will = &packet.Will{Topic: "will", Payload: []byte("x"), QoS: 1}
		connect := packet.AppendConnect(nil, hello)
		f.Add(byte(0), connect)
		all := bytes.Clone(connect)
		for _, p := range frames(max(v, packet.V311)) {
			f.Add(byte(v), p)
			f.Add(byte(v), append(bytes.Clone(p), p...))
			all = append(all, p...)
		}
		f.Add(byte(0), all)
	}
	f.Add(byte(5), []byte("\x82\x06\x00\x01\x00\x00\x01\x61"))
	f.Add(byte(4), []byte("\xFF\xFF\xFF\xFF\xFF"))
	f.Add(byte(5), packet.AppendSubscribe(nil, packet.V5, &packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{
		{Filter: "$queue/q/#", QoS: 2}, {Filter: "$share/g/+", QoS: 1}, {Filter: "$s/earliest/#"}, {Filter: "$exclusive/x"}, {Filter: "$v5/#"},
	}}))
	for _, topic := range []string{"$queue/q", "$queue/q/$nack", "$delayed/0/t", "$v5/t", "$SYS/x"} {
		f.Add(byte(5), packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 2, PacketID: 3, Topic: topic, Payload: []byte("\x03\x01\x01x #1")}))
	}
	f.Fuzz(func(t *testing.T, version byte, p []byte) {
		if quiet == 0 {
			quiet = runtime.NumGoroutine()
		}
		c := testbroker.DialRaw(t, b.Addr, packet.V5)
		if v := packet.Version(version); v >= packet.V31 && v <= packet.V5 {
			hello := clean("c")
			hello.Version, hello.ReceiveMaximum = v, 65535
			_ = c.TrySend(packet.AppendConnect(nil, hello))
		}
		_ = c.TrySend(p)
		_ = c.TrySend(packet.AppendPingreq(nil))
		c.CloseWrite()
		c.Drain()
		c.Close()
		witness.For(t)
		served(t, witness)
		for deadline := time.Now().Add(testbroker.Patience); runtime.NumGoroutine() > quiet+1; time.Sleep(100 * time.Microsecond) {
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), quiet, stacks[:runtime.Stack(stacks, true)])
			}
		}
	})
}

// served has the witness publish at QoS 1 to itself: it must get the acknowledgement and the message, in either order.
func served(t *testing.T, witness *testbroker.Raw) {
	t.Helper()
	id := witness.NextID()
	witness.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 1, PacketID: id, Topic: "witness", Payload: []byte("x")}))
	for acked, delivered := false, false; !acked || !delivered; {
		switch f := witness.Next(); packet.TypeOf(f) {
		case packet.TypePuback:
			var a packet.Ack
			if err := packet.ParseAck(packet.V5, f, &a); err != nil || acked || a.PacketID != id || a.Code != 0 {
				t.Fatalf("the witness got PUBACK % X for packet %d: %v", f, id, err)
			}
			acked = true
		case packet.TypePublish:
			var d packet.Publish
			if err := packet.ParseDelivery(packet.V5, f, &d); err != nil || delivered || string(d.Topic) != "witness" {
				t.Fatalf("the witness got % X: %v", f, err)
			}
			witness.Send(packet.AppendAck(nil, packet.V5, packet.TypePuback, d.PacketID, 0, ""))
			delivered = true
		default:
			t.Fatalf("the witness got % X", f)
		}
	}
}
