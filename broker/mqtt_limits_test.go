package broker_test

import (
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// A broker with a lower Maximum QoS says so, grants less, and ends connections that do not heed it. [MQTT-3.2.2-9] [MQTT-3.2.2-10]
// [MQTT-3.2.2-11] [MQTT-3.2.2-12]
func TestMaximumQoS(t *testing.T) {
	t.Parallel()
	for most := range byte(3) {
		b := testbroker.Run(t, testbroker.Options{Set: []string{"limits.max_qos=" + string('0'+most)}})
		ack := testbroker.DialRaw(t, b.Addr, packet.V5).Connect(clean("v5"))
		if ack.HasMaximumQoS != (most < 2) || ack.MaximumQoS != most && most < 2 {
			t.Errorf("max_qos %d: CONNACK %+v", most, ack)
		}
		for _, v := range []packet.Version{packet.V311, packet.V5} {
			sub := testbroker.ConnectRaw(t, b.Addr, v, clean("sub"))
			for qos := range byte(3) {
				if code := sub.Subscribe("t", qos); code != min(qos, most) {
					t.Errorf("max_qos %d: QoS %d is granted as 0x%02X", most, qos, code)
				}
				c := testbroker.ConnectRaw(t, b.Addr, v, clean("c"))
				o := packet.Outgoing{Topic: "u", QoS: qos}
				if qos > 0 {
					o.PacketID = 1
				}
				c.Send(packet.AppendPublish(nil, v, &o))
				will := testbroker.DialRaw(t, b.Addr, v)
				w := packet.Connect{Version: v, ClientID: "w", Clean: true, ReceiveMaximum: 1, Will: &packet.Will{Topic: "w", QoS: qos}}
				will.Send(packet.AppendConnect(nil, &w))
				switch {
				case qos <= most:
					if qos == 0 {
						c.Ping()
					} else {
						c.Expect([]packet.Type{0, packet.TypePuback, packet.TypePubrec}[qos])
					}
					will.Expect(packet.TypeConnack)
				case v == packet.V5:
					if code := c.ExpectClosed(); code != int(packet.CodeQoSNotSupported) {
						t.Errorf("max_qos %d: QoS %d: DISCONNECT 0x%02X", most, qos, code)
					}
					if ack, err := packet.ParseConnack(v, will.Expect(packet.TypeConnack)); err != nil || ack.Code != packet.CodeQoSNotSupported {
						t.Errorf("max_qos %d: Will QoS %d: %+v %v", most, qos, ack, err)
					}
					will.ExpectClosed()
				default:
					c.ExpectClosed()
					will.ExpectClosed()
				}
			}
		}
	}
}

// A broker without retained messages says so, ends connections that publish some, and sends none that it had. [MQTT-3.2.2-13] [MQTT-3.2.2-14]
func TestNoRetain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	with := testbroker.Run(t, testbroker.Options{Dir: dir})
	pub := testbroker.ConnectRaw(t, with.Addr, packet.V5, clean("pub"))
	retain(pub, packet.V5, "r", "old", 0)
	with.Stop()
	b := testbroker.Run(t, testbroker.Options{Dir: dir, Set: []string{"limits.retain=false", "sys.interval=1h"}})
	if ack := testbroker.DialRaw(t, b.Addr, packet.V5).Connect(clean("v5")); !ack.NoRetain {
		t.Errorf("CONNACK %+v", ack)
	}
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		for qos := range byte(3) {
			c := testbroker.ConnectRaw(t, b.Addr, v, clean("c"))
			o := packet.Outgoing{Topic: "r", QoS: qos, Retain: true, Payload: []byte("new")}
			if qos > 0 {
				o.PacketID = 1
			}
			c.Send(packet.AppendPublish(nil, v, &o))
			if code := c.ExpectClosed(); v == packet.V5 && code != int(packet.CodeRetainNotSupported) {
				t.Errorf("QoS %d: DISCONNECT 0x%02X", qos, code)
			}
		}
		will := testbroker.DialRaw(t, b.Addr, v)
		w := packet.Connect{Version: v, ClientID: "w", Clean: true, ReceiveMaximum: 1, Will: &packet.Will{Topic: "w", Retain: true}}
		will.Send(packet.AppendConnect(nil, &w))
		if v == packet.V5 {
			if ack, err := packet.ParseConnack(v, will.Expect(packet.TypeConnack)); err != nil || ack.Code != packet.CodeRetainNotSupported {
				t.Errorf("Will: %+v %v", ack, err)
			}
		}
		will.ExpectClosed()
	}
	equal(t, kept(t, b.Addr, "r"), nil)
	equal(t, kept(t, b.Addr, "#"), nil)
	b.Stop()
	again := testbroker.Run(t, testbroker.Options{Dir: dir})
	equal(t, kept(t, again.Addr, "r"), []string{"r=old"})
}
