package broker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// willOf is the CONNECT of a client with a Will to will/<id>.
func willOf(id string, o packet.Connect) *packet.Connect {
	o.ClientID = id
	if o.Will == nil {
		o.Will = &packet.Will{}
	}
	o.Will.Topic, o.Will.Payload = "will/"+id, []byte("gone")
	o.HasSessionExpiry = o.SessionExpiry > 0
	return &o
}

// How a connection ends decides whether its Will is published. [MQTT-3.1.2-8] [MQTT-3.1.2-10] [MQTT-3.14.4-3]
func TestWillWhenConnectionEnds(t *testing.T) {
	t.Parallel()
	disconnect := func(code byte) func(*testbroker.Raw, packet.Version) {
		return func(c *testbroker.Raw, v packet.Version) {
			c.Send(packet.AppendDisconnect(nil, v, &packet.Disconnect{Code: code}))
			c.ExpectClosed()
		}
	}
	for _, tt := range []struct {
		name string
		v    packet.Version // 0: both
		end  func(c *testbroker.Raw, v packet.Version)
		will bool
	}{
		{"DISCONNECT", 0, disconnect(0), false},
		{"DISCONNECT with Will", packet.V5, disconnect(packet.CodeDisconnectWithWill), true},
		{"DISCONNECT unspecified error", packet.V5, disconnect(packet.CodeUnspecified), true},
		{"DISCONNECT quota exceeded", packet.V5, disconnect(packet.CodeQuotaExceeded), true},
		{"network", 0, func(c *testbroker.Raw, _ packet.Version) { c.Close() }, true},
		{"protocol error", 0, func(c *testbroker.Raw, _ packet.Version) { c.SendHex("10 00") }, true},
		{"malformed packet", 0, func(c *testbroker.Raw, _ packet.Version) { c.SendHex("36 00") }, true},
		{"malformed DISCONNECT", 0, func(c *testbroker.Raw, _ packet.Version) { c.SendHex("e1 00") }, true},
		{"keep alive", 0, func(c *testbroker.Raw, _ packet.Version) { c.ExpectClosed() }, true},
	} {
		versions(t, func(t *testing.T, v packet.Version) {
			if tt.v != 0 && tt.v != v {
				t.Skip("version 5 only")
			}
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				b := testbroker.Run(t, testbroker.Options{})
				sub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("sub"))
				sub.Subscribe("will/#", 2)
				c := testbroker.ConnectRaw(t, b.Addr, v, willOf("c", packet.Connect{Clean: true, KeepAlive: 1, Will: &packet.Will{QoS: 1}}))
				tt.end(c, v)
				c.Close()
				if tt.will {
					receive(t, sub, 1, "gone", false)
					return
				}
				again := testbroker.ConnectRaw(t, b.Addr, v, clean("c")) // the first connection is over
				again.Publish("will/c", "none")
				receive(t, sub, 1, "none", false)
			})
		})
	}
}

// A Will is a publish like any other: its properties, RETAIN, and QoS. [MQTT-3.1.2-14] [MQTT-3.1.2-15]
func TestWillIsAPublish(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	sub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("sub"))
	sub.Subscribe("will/#", 2)
	props := packet.AppendUser([]byte{byte(packet.PropContentType), 0, 1, 'c', byte(packet.PropResponseTopic), 0, 1, 'r', byte(packet.PropCorrelationData), 0, 1, 'd'}, "k", "v")
	for _, qos := range []byte{0, 1, 2} {
		id := fmt.Sprint("c", qos)
		c := testbroker.ConnectRaw(t, b.Addr, packet.V5, willOf(id, packet.Connect{Clean: true, Will: &packet.Will{
			QoS: qos, Retain: true, HasExpiry: true, Expiry: 100, Props: props,
		}}))
		c.Close()
		d := receive(t, sub, qos, "gone", false)
		if d.Topic != "will/"+id || d.Retain || d.Expiry < 99 || d.Expiry > 100 || user(d, "k") != "v" {
			t.Errorf("%+v", d)
		}
		for _, p := range []struct {
			id   packet.PropertyID
			want string
		}{{packet.PropContentType, "c"}, {packet.PropResponseTopic, "r"}, {packet.PropCorrelationData, "d"}} {
			if got, _ := packet.Find(d.Props, p.id); string(got.Value) != p.want {
				t.Errorf("property %v is %q, want %q", p.id, got.Value, p.want)
			}
		}
		late := testbroker.ConnectRaw(t, b.Addr, packet.V311, clean("late"))
		late.Subscribe("will/"+id, 2)
		if d := receive(t, late, qos, "gone", false); !d.Retain {
			t.Error("it was not retained")
		}
	}
	empty := willOf("empty", packet.Connect{Clean: true})
	empty.Will.Payload = nil
	testbroker.ConnectRaw(t, b.Addr, packet.V311, empty).Close()
	if d := sub.Delivery(); d.Topic != "will/empty" || d.Payload != "" {
		t.Errorf("got %q on %q", d.Payload, d.Topic)
	}
}

// waitsFor tells how long it takes until sub receives the Will.
func waitsFor(t *testing.T, sub *testbroker.Raw, start time.Time, from, to time.Duration) {
	t.Helper()
	receive(t, sub, 0, "gone", false)
	if took := time.Since(start); took < from || took > to+testbroker.Patience/2 { // CI may be slow, but not early
		t.Errorf("the Will came after %v, want %v", took, from)
	}
}

// A delayed Will comes when the delay is over or the session ends, whichever is first. [MQTT-3.1.3-9] 3.1.3.2.2
func TestDelayedWill(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	watch := func(t *testing.T, id string) *testbroker.Raw {
		sub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("sub-"+id))
		sub.Subscribe("will/"+id, 0)
		return sub
	}
	delayed := func(id string, delay, expiry uint32) *packet.Connect {
		return willOf(id, packet.Connect{SessionExpiry: expiry, Will: &packet.Will{Delay: delay}})
	}
	const late = 0xFFFFFFFF
	t.Run("after the delay", func(t *testing.T) {
		t.Parallel()
		sub := watch(t, "delay")
		testbroker.ConnectRaw(t, b.Addr, packet.V5, delayed("delay", 1, late)).Close()
		waitsFor(t, sub, time.Now(), 900*time.Millisecond, time.Second)
	})
	t.Run("at the session's end", func(t *testing.T) {
		t.Parallel()
		sub := watch(t, "end")
		testbroker.ConnectRaw(t, b.Addr, packet.V5, delayed("end", 1000, 1)).Close()
		waitsFor(t, sub, time.Now(), 900*time.Millisecond, time.Second)
	})
	t.Run("at once without a session", func(t *testing.T) {
		t.Parallel()
		sub := watch(t, "none")
		testbroker.ConnectRaw(t, b.Addr, packet.V5, delayed("none", 1000, 0)).Close()
		waitsFor(t, sub, time.Now(), 0, time.Second)
	})
	t.Run("DISCONNECT ends the session", func(t *testing.T) {
		t.Parallel()
		sub := watch(t, "bye")
		c := testbroker.ConnectRaw(t, b.Addr, packet.V5, delayed("bye", 1000, late))
		c.Send(packet.AppendDisconnect(nil, packet.V5, &packet.Disconnect{Code: packet.CodeDisconnectWithWill, HasSessionExpiry: true}))
		waitsFor(t, sub, time.Now(), 0, time.Second)
	})
	t.Run("not if the client is back in time", func(t *testing.T) {
		t.Parallel()
		sub := watch(t, "back")
		testbroker.ConnectRaw(t, b.Addr, packet.V5, delayed("back", 2, late)).Close()
		c := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("back"))
		if d, ok := sub.DeliveryWithin(2500 * time.Millisecond); ok {
			t.Errorf("received %q", d.Payload)
		}
		c.Publish("will/back", "here")
		receive(t, sub, 0, "here", false)
	})
	t.Run("Clean Start ends the session", func(t *testing.T) {
		t.Parallel()
		sub := watch(t, "clean")
		testbroker.ConnectRaw(t, b.Addr, packet.V5, delayed("clean", 1000, late)).Close()
		testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("clean"))
		waitsFor(t, sub, time.Now(), 0, time.Second)
	})
	t.Run("takeover with a delay", func(t *testing.T) {
		t.Parallel()
		sub := watch(t, "over")
		testbroker.ConnectRaw(t, b.Addr, packet.V5, delayed("over", 1, late))
		c := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("over"))
		if d, ok := sub.DeliveryWithin(1500 * time.Millisecond); ok {
			t.Errorf("received %q", d.Payload)
		}
		c.Ping()
	})
}

// A takeover closes a connection without DISCONNECT: the Will is published, before anything of the new connection.
func TestWillAtTakeover(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	versions(t, func(t *testing.T, v packet.Version) {
		for _, first := range []bool{true, false} {
			for _, second := range []bool{true, false} {
				id := fmt.Sprintf("%d-%v-%v", v, first, second)
				sub := testbroker.ConnectRaw(t, b.Addr, v, clean("sub"))
				sub.Subscribe("will/"+id, 0)
				o := willOf(id, packet.Connect{Clean: first, SessionExpiry: 100})
				testbroker.ConnectRaw(t, b.Addr, v, o)
				c := testbroker.ConnectRaw(t, b.Addr, v, &packet.Connect{ClientID: id, Clean: second})
				c.Publish("will/"+id, "new")
				receive(t, sub, 0, "gone", false)
				receive(t, sub, 0, "new", false)
			}
		}
	})
}
