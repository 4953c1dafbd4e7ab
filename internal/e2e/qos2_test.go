package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// longRun says whether tests do as many rounds as the issues ask for: EDGEMQTEST_LONG=1.
var longRun = os.Getenv("EDGEMQTEST_LONG") != ""

// step is a moment in the two handshakes of a QoS 2 message, publisher to broker and broker to subscriber.
type step int

const (
	publishSent step = iota
	pubrecReceived
	pubrelSent
	pubcompReceived
	publishReceived
	pubrecSent
	pubrelReceived
	pubcompSent
	pubcompTaken // the broker has answered what came after it
	steps
)

var stepNames = [steps]string{
	"PUBLISH sent", "PUBREC received", "PUBREL sent", "PUBCOMP received",
	"PUBLISH received", "PUBREC sent", "PUBREL received", "PUBCOMP sent", "PUBCOMP taken",
}

// The broker is killed at each step of the QoS 2 handshakes, and clients that keep their side of the protocol see each message exactly
// once, in order. [MQTT-4.3.3-1] [MQTT-4.4.0-1]
func TestQoS2ExactlyOnce(t *testing.T) {
	rounds := 1
	if longRun {
		rounds = 4 // times 9 steps, times three: 108 kills
	}
	for i, tt := range []struct {
		v      packet.Version
		filter string
	}{{packet.V311, "q2"}, {packet.V5, "q2"}, {packet.V5, "$share/g/q2"}} {
		t.Run(fmt.Sprintf("mqtt-%d %s", tt.v, tt.filter), func(t *testing.T) {
			t.Parallel()
			v := tt.v
			x := &exactlyOnce{t: t, p: testbroker.Start(t, testbroker.Options{}), v: v, received: map[uint16]bool{}, pending: map[uint16]*outgoing{}}
			x.connect()
			id := x.sub.NextID()
			x.sub.Send(packet.AppendSubscribe(nil, v, &packet.Subscribe{PacketID: id, Filters: []packet.Subscription{{Filter: tt.filter, QoS: 2}}}))
			x.sub.Expect(packet.TypeSuback)
			x.pub.Ping()
			x.sub.Subscribe("settled", 2) // now both sessions are on disk: this SUBACK waited for it
			for range rounds {
				for s := range steps {
					if int(s)%3 == i || longRun { // an ordinary run has each step once
						x.round(s, func() { x.p.Kill(); x.p.Restart() })
					}
					x.round(s, func() {}) // the network alone
				}
			}
			x.run(-1)
			x.check()
		})
	}
}

// exactlyOnce is a publisher and a subscriber, both with sessions that stay, which keep their side of the protocol.
type exactlyOnce struct {
	t        *testing.T
	p        *testbroker.Process
	v        packet.Version
	pub, sub *testbroker.Raw
	known    bool // the sessions are there

	published int
	pending   map[uint16]*outgoing
	order     []uint16 // of pending
	received  map[uint16]bool
	delivered []string

	at      step // where to stop
	after   int  // how many times it has yet to be reached before
	stopped bool
}

// outgoing is a message that the publisher has not yet got rid of.
type outgoing struct {
	payload  string
	released bool
}

// connect connects both, and sends again what they have in flight.
func (x *exactlyOnce) connect() {
	x.t.Helper()
	dial := func(id string) *testbroker.Raw {
		r := testbroker.DialRaw(x.t, x.p.Addr, x.v)
		ack := r.Connect(&packet.Connect{ClientID: id, HasSessionExpiry: true, SessionExpiry: 0xFFFFFFFF})
		if ack.Code != 0 || ack.SessionPresent != x.known {
			x.t.Fatalf("CONNACK %+v", ack)
		}
		return r
	}
	x.pub, x.sub = dial("pub"), dial("sub")
	x.known = true
	for _, id := range x.order {
		if m := x.pending[id]; m.released {
			x.pub.Send(packet.AppendAck(nil, x.v, packet.TypePubrel, id, 0, ""))
		} else {
			x.publish(id, m, true)
		}
	}
}

func (x *exactlyOnce) publish(id uint16, m *outgoing, dup bool) {
	x.pub.Send(packet.AppendPublish(nil, x.v, &packet.Outgoing{QoS: 2, PacketID: id, Topic: "q2", Payload: []byte(m.payload), Dup: dup}))
}

// round publishes a few messages, stops everything at a step, lets interrupt do its work, and connects again.
func (x *exactlyOnce) round(at step, interrupt func()) {
	x.t.Helper()
	x.run(at)
	interrupt()
	x.pub.Close()
	x.sub.Close()
	x.connect()
}

// run goes on until a step is reached; -1: until all is delivered.
func (x *exactlyOnce) run(at step) {
	x.t.Helper()
	x.at, x.after, x.stopped = at, rand.IntN(3), false
	for range 3 {
		x.published++
		id := uint16(1) // the lowest that is free, so that ids are used again and again
		for x.pending[id] != nil {
			id++
		}
		m := &outgoing{payload: strconv.Itoa(x.published)}
		x.pending[id] = m
		x.order = append(x.order, id)
		x.publish(id, m, false)
		if x.reached(publishSent) {
			return
		}
	}
	for deadline := time.Now().Add(testbroker.Patience); len(x.order) > 0 || len(x.received) > 0 || len(x.delivered) < x.published; {
		if time.Now().After(deadline) {
			x.t.Fatalf("at %q: %d published, %d delivered, %d unfinished, %d unreleased", stepNames[max(0, at)], x.published, len(x.delivered), len(x.order), len(x.received))
		}
		if x.publisher(); x.stopped {
			return
		}
		if x.subscriber(); x.stopped {
			return
		}
	}
}

// reached notes a step and tells whether it is the one to stop at.
func (x *exactlyOnce) reached(s step) bool {
	if s != x.at {
		return false
	}
	if x.after--; x.after >= 0 {
		return false
	}
	x.stopped = true
	if rand.IntN(2) == 0 { // the broker may be anywhere in dealing with it
		<-time.After(time.Duration(rand.IntN(3000)) * time.Microsecond)
	}
	return true
}

// publisher deals with one packet for the publisher, if there is one.
func (x *exactlyOnce) publisher() {
	frame, ok := x.pub.NextWithin(time.Millisecond)
	if !ok {
		return
	}
	var a packet.Ack
	if err := packet.ParseAck(x.v, frame, &a); err != nil {
		x.t.Fatal(err)
	}
	m := x.pending[a.PacketID]
	switch {
	case m == nil:
		x.t.Fatalf("%v for packet %d, which is over", a.Type, a.PacketID)
	case a.Type == packet.TypePubrec && a.Code < packet.CodeUnspecified:
		m.released = true
		if x.reached(pubrecReceived) {
			return
		}
		x.pub.Send(packet.AppendAck(nil, x.v, packet.TypePubrel, a.PacketID, 0, ""))
		x.reached(pubrelSent)
	case a.Type == packet.TypePubcomp && m.released:
		delete(x.pending, a.PacketID)
		x.order = slices.DeleteFunc(x.order, func(id uint16) bool { return id == a.PacketID })
		x.reached(pubcompReceived)
	default:
		x.t.Fatalf("%v 0x%02X for packet %d", a.Type, a.Code, a.PacketID)
	}
}

// subscriber deals with one packet for the subscriber, if there is one.
func (x *exactlyOnce) subscriber() {
	frame, ok := x.sub.NextWithin(time.Millisecond)
	if !ok {
		return
	}
	switch t := packet.TypeOf(frame); t {
	case packet.TypePublish:
		var d packet.Publish
		if err := packet.ParseDelivery(x.v, frame, &d); err != nil || d.QoS != 2 {
			x.t.Fatalf("PUBLISH % X: %v", frame, err)
		}
		if !x.received[d.PacketID] {
			x.received[d.PacketID] = true
			x.delivered = append(x.delivered, string(d.Payload))
		}
		if x.reached(publishReceived) {
			return
		}
		x.sub.Send(packet.AppendAck(nil, x.v, packet.TypePubrec, d.PacketID, 0, ""))
		x.reached(pubrecSent)
	case packet.TypePubrel:
		var a packet.Ack
		if err := packet.ParseAck(x.v, frame, &a); err != nil {
			x.t.Fatal(err)
		}
		delete(x.received, a.PacketID)
		if x.reached(pubrelReceived) {
			return
		}
		x.sub.Send(packet.AppendAck(nil, x.v, packet.TypePubcomp, a.PacketID, 0, ""))
		if x.reached(pubcompSent) {
			return
		}
		if x.at == pubcompTaken {
			x.sub.Send(packet.AppendPingreq(nil))
		}
	case packet.TypePingresp:
		x.reached(pubcompTaken)
	default:
		x.t.Fatalf("got %v", t)
	}
}

// check compares what was delivered, and what is in the log, with what was published.
func (x *exactlyOnce) check() {
	x.t.Helper()
	want := numbers("", 1, x.published)
	compare(x.t, x.delivered, want)
	replay := testbroker.ConnectRaw(x.t, x.p.Addr, x.v, nil)
	replay.Subscribe("$s/earliest/q2", 0)
	for _, n := range want {
		if d := replay.Delivery(); d.Payload != n {
			x.t.Fatalf("the log has %q, want %q", d.Payload, n)
		}
	}
	replay.Ping()
}
