package accept

import (
	"strconv"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// queueInfo is what these tests look at of a queue.
type queueInfo struct {
	Bindings []string
	Depth    int64
	Cursor   uint64
	Expired  uint64
	Dead     uint64
	LagBytes int64 `json:"lag_bytes"`
	InFlight int   `json:"in_flight"`
}

func (a *api) queue(name string) queueInfo {
	a.t.Helper()
	var q queueInfo
	a.call("GET", "/v1/queues/"+name, "", &q)
	return q
}

func TestAT47(t *testing.T) {
	t.Parallel()
	t.Run("AT-47 session expiry and the queue's cursor", func(t *testing.T) {
		b := testbroker.Start(t, testbroker.Options{})
		p := connect(t, b.Addr, packet.V5, "p")
		p.publish("T", numbers("", 10)...)
		hello := func(expiry uint32) (*client, bool) {
			r := testbroker.DialRaw(t, b.Addr, packet.V5)
			ack := r.Connect(&packet.Connect{ClientID: "c", HasSessionExpiry: true, SessionExpiry: expiry})
			return &client{r, t}, ack.SessionPresent
		}
		c, present := hello(0xFFFFFFFF)
		if present {
			t.Fatal("a session of nobody is there")
		}
		c.attach("Q", "T")
		c.want(numbers("", 10)[:4]...)
		c.Ping2()
		b.Stop()
		b.Restart()
		if c, present = hello(0xFFFFFFFF); !present {
			t.Fatal("the session is gone")
		}
		c.want(numbers("", 10)[4:7]...) // attached by the session, bound by the queue
		c.Ping2()
		// The same session, of short life from now on: it goes, and the queue's place stays.
		c.Close()
		c, _ = hello(1)
		c.want(numbers("", 10)[7:8]...)
		c.Ping2()
		c.Close()
		a := adminOf(t, b.Dir())
		await(t, "the session to end", func() bool {
			var ss struct{ Sessions []struct{ Client string } }
			a.call("GET", "/v1/sessions", "", &ss)
			for _, s := range ss.Sessions {
				if s.Client == "c" {
					return false
				}
			}
			return true
		})
		if c, present = hello(1); present {
			t.Error("the session is still there")
		}
		c.attach("Q")
		c.want(numbers("", 10)[8:]...)
		if q := a.queue("Q"); len(q.Bindings) != 1 || q.Bindings[0] != "T" {
			t.Errorf("bindings %q", q.Bindings)
		}
	})
}

func TestAT48(t *testing.T) {
	t.Parallel()
	t.Run("AT-48 clean session of 3.1.1", func(t *testing.T) {
		b := testbroker.Run(t, testbroker.Options{})
		connect(t, b.Addr, packet.V311, "p").publish("$queue/Q1", numbers("", 10)...)
		for _, want := range [][]string{{"0", "1", "2"}, {"3", "4"}, {"5", "6", "7", "8", "9"}} {
			c := connect(t, b.Addr, packet.V311, "c") // attaches anew each time, and the place is the queue's
			c.attach("Q1")
			c.want(want...)
			c.Ping2()
			c.Close()
		}
	})
}

func TestAT49(t *testing.T) {
	t.Parallel()
	t.Run("AT-49 receive maximum 10", func(t *testing.T) {
		n := size(3000, 100_000)
		b := testbroker.Run(t, testbroker.Options{})
		c := connectAs(t, b.Addr, packet.V5, &packet.Connect{ClientID: "c", Clean: true, ReceiveMaximum: 10})
		c.attach("Q", "T")
		connect(t, b.Addr, packet.V5, "p").publish("T", numbers("", n)...)
		held := c.hold(10)
		c.nothing()
		for i := 10; i < n; i++ {
			c.Ack(held[0])
			held = append(held[1:], c.Delivery())
			if got := held[9].Payload; got != strconv.Itoa(i) {
				t.Fatalf("%s, want %d", got, i)
			}
			if i%1000 == 0 {
				c.nothing()
			}
		}
		c.nothing()
	})
}

func TestAT50(t *testing.T) {
	t.Parallel()
	t.Run("AT-50 more in flight than the server's receive maximum", func(t *testing.T) {
		b := testbroker.Run(t, testbroker.Options{Set: []string{"limits.receive_maximum=10"}})
		r := testbroker.DialRaw(t, b.Addr, packet.V5)
		if ack := r.Connect(nil); ack.ReceiveMaximum != 10 {
			t.Errorf("announced: %d", ack.ReceiveMaximum)
		}
		var buf []byte
		for id := range 11 { // QoS 2 and no PUBREL: they stay in flight
			buf = packet.AppendPublish(buf, packet.V5, &packet.Outgoing{QoS: 2, PacketID: uint16(id + 1), Topic: "T"})
		}
		r.Send(buf)
		if code := r.ExpectClosed(); code != 0x93 {
			t.Errorf("%#x, want 0x93", code)
		}
	})
}

func TestAT51(t *testing.T) {
	t.Parallel()
	t.Run("AT-51 expiry in a queue that nobody reads", func(t *testing.T) {
		dir := t.TempDir()
		b := testbroker.Run(t, testbroker.Options{Dir: dir})
		p, c := connect(t, b.Addr, packet.V5, "p"), connect(t, b.Addr, packet.V5, "c")
		for i := range 5 {
			p.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{
				QoS: 1, PacketID: p.id(), Topic: "$queue/Q", HasExpiry: i%2 == 0, Expiry: 1, Payload: []byte(strconv.Itoa(i)),
			}))
			p.acks(1)
		}
		time.Sleep(1100 * time.Millisecond) // that is what the test is about
		c.attach("Q")
		c.want("1", "3")
		c.nothing()
		a := adminOf(t, dir)
		if q := a.queue("Q"); q.Expired != 3 || q.Depth != 0 || q.Cursor != 6 {
			t.Errorf("%+v", q)
		}
	})
}

// An ordinary subscriber has nothing to do with queues and stored messages: it gets what comes from now on.
func TestAT52(t *testing.T) {
	versions(t, "AT-52 ordinary subscriber", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		p := connect(t, b.Addr, v, "p")
		p.publish("a/b", "before")
		p.Send(packet.AppendPublish(nil, v, &packet.Outgoing{QoS: 1, PacketID: p.id(), Topic: "a/kept", Retain: true, Payload: []byte("retained")}))
		p.acks(1)
		mortal := connectAs(t, b.Addr, v, &packet.Connect{ClientID: "w", Clean: true, Will: &packet.Will{Topic: "a/will", QoS: 1, Payload: []byte("will")}})
		c := connect(t, b.Addr, v, "c")
		c.subscribe("a/+")
		d := c.Delivery()
		c.Ack(d)
		if d.Payload != "retained" || !d.Retain {
			t.Errorf("first comes %q", d.Payload)
		}
		p.publish("a/b", "now")
		p.publish("a/b/c", "deeper")
		p.publish("b", "elsewhere")
		c.want("now")
		mortal.Close()
		c.want("will")
		c.nothing()
		q := connect(t, b.Addr, v, "sys")
		id := q.id()
		q.SendPublish(1, id, "$SYS/broker/uptime", "1")
		if v == packet.V311 {
			q.ExpectClosed()
		} else if code := q.ExpectAck(packet.TypePuback, id); code < 0x80 {
			t.Errorf("a publish to $SYS: %#x", code)
		}
	})
}
