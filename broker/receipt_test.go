package broker_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/internal/wire"
)

// place is where a receipt says that a message is.
type place struct {
	offset uint64
	time   int64
}

// receipts reads on until so many publishes are answered, and returns where receipts said that they are. Each receipt comes before the
// answers to what it names.
func receipts(t *testing.T, c *testbroker.Raw, answers int) map[uint16]place {
	t.Helper()
	at := map[uint16]place{}
	answered := map[uint16]bool{}
	for len(answered) < answers {
		frame := c.Next()
		switch packet.TypeOf(frame) {
		case packet.TypePuback, packet.TypePubrec:
			var a packet.Ack
			if err := packet.ParseAck(c.Version(), frame, &a); err != nil {
				t.Fatal(err)
			}
			answered[a.PacketID] = true
		case packet.TypePublish:
			d := c.Parse(frame)
			if d.Topic != wire.Receipts || d.QoS != 0 || len(d.Payload)%wire.ReceiptBytes != 0 {
				t.Fatalf("got %+v", d)
			}
			for b := []byte(d.Payload); len(b) > 0; b = b[wire.ReceiptBytes:] {
				id, n := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
				for i := range n {
					if answered[id+i] {
						t.Fatalf("the receipt for %d came after its answer", id+i)
					}
					at[id+i] = place{binary.BigEndian.Uint64(b[4:]) + uint64(i), int64(binary.BigEndian.Uint64(b[12:]))}
				}
			}
		default:
			t.Fatalf("got %v", packet.TypeOf(frame))
		}
	}
	return at
}

// identified is the payload of a publish to $v5/ with a @MessageId.
func identified(id, body string) []byte {
	return packet.AppendEnvelope(nil, &packet.Outgoing{Props: packet.AppendUser(nil, wire.MessageID, id), Payload: []byte(body)})
}

func TestReceipts(t *testing.T) {
	t.Parallel()
	b := testbroker.Start(t, testbroker.Options{})
	const n = 300
	var first map[uint16]place
	for _, round := range []string{"new", "duplicate", "duplicate after a kill"} {
		if round == "duplicate after a kill" {
			b.Kill()
			b.Restart()
		}
		began := time.Now().UnixMicro()
		c := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: "p", Clean: true})
		if code := c.Subscribe(wire.Receipts, 1); code != 0 {
			t.Fatalf("SUBACK %#x", code)
		}
		var out []byte
		for i := range n {
			out = packet.AppendPublish(out, packet.V311, &packet.Outgoing{
				QoS: 1 + byte(i%2), PacketID: 1000 + uint16(i), Topic: fmt.Sprint("$v5/t/", i%3), Payload: identified(fmt.Sprint(i), "x"),
			})
		}
		c.Send(out)
		at := receipts(t, c, n)
		if len(at) != n {
			t.Fatalf("%s: %d of %d are named", round, len(at), n)
		}
		if first == nil {
			first = at
			for id, p := range at {
				if p.time < began || p.time > time.Now().UnixMicro() {
					t.Fatalf("%d was stored at %d, it is %d", id, p.time, began)
				}
			}
			r := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "r", Clean: true})
			r.Subscribe("$s/earliest/#", 1)
			for i := range n {
				d := r.Delivery()
				r.Ack(d)
				p := at[1000+uint16(i)]
				if got := []string{user(d, wire.Offset), user(d, wire.StoreTimestamp)}; !slices.Equal(got, []string{fmt.Sprint(p.offset), fmt.Sprint(p.time / 1000)}) {
					t.Fatalf("message %d is at %v, its receipt says %+v", i, got, p)
				}
			}
		}
		for id, p := range at {
			if p != first[id] {
				t.Fatalf("%s: %d is at %+v, first %+v", round, id, p, first[id])
			}
		}
		c.Close()
	}
}

// What has no place in the log is answered and not named; who has not asked, or not any more, is told nothing.
func TestReceiptsOfOthers(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		name := fmt.Sprint("p", v)
		c := testbroker.ConnectRaw(t, b.Addr, v, &packet.Connect{ClientID: name, Clean: true, MaximumPacketSize: map[packet.Version]uint32{packet.V5: 64}[v]})
		c.SendPublish(1, 1, "a", "unasked")
		c.ExpectAck(packet.TypePuback, 1)
		c.Subscribe(wire.Receipts, 0)
		c.SendPublish(1, 2, "$delayed/1000/a", "later")
		c.SendPublish(1, 3, "a", "now")
		c.SendPublish(0, 0, "a", "unanswered")
		c.SendPublish(1, 4, "$v5/a", string(identified(name, "twice")))
		c.SendPublish(1, 5, "$v5/a", string(identified(name, "twice")))
		at := receipts(t, c, 4)
		if len(at) != 3 || at[3].offset == 0 || at[4] != at[5] || at[4].offset <= at[3].offset {
			t.Fatalf("version %d: %+v", v, at)
		}
		other := testbroker.ConnectRaw(t, b.Addr, v, &packet.Connect{ClientID: "other" + name, Clean: true})
		other.SendPublish(1, 7, "a", "unasked")
		other.ExpectAck(packet.TypePuback, 7)
		c.Send(packet.AppendUnsubscribe(nil, v, &packet.Unsubscribe{PacketID: 9, Filters: []string{wire.Receipts}}))
		c.Expect(packet.TypeUnsuback)
		c.SendPublish(1, 6, "a", "no more")
		c.ExpectAck(packet.TypePuback, 6)
		if code := c.Subscribe("$edgemq/else", 1); code < 0x80 {
			t.Fatalf("SUBACK %#x", code)
		}
	}
}

// A 3.1.1 client that has asked is told what it is refused, and goes on; what it is disconnected for, it is told too.
func TestRefusalsOnTheSide(t *testing.T) {
	t.Parallel()
	g := runGuarded(t, "ann", "user ann allow both a/#\nuser ann allow both $queue/+", "limits.max_packet=8KiB",
		`queues=[{name: full, max_messages: 1, overflow: reject}]`)
	c := testbroker.ConnectRaw(t, g.Addr, packet.V311, as(&packet.Connect{ClientID: "p", Clean: true}, "ann"))
	c.Subscribe(wire.Receipts, 0)
	c.SendPublish(1, 1, "a/x", "fine")
	c.SendPublish(1, 2, "b", "not allowed")
	c.SendPublish(1, 3, "$queue/full", "fine")
	c.SendPublish(1, 4, "$queue/full", "one too many")
	c.SendPublish(1, 5, "$nowhere/x", "not a name")
	c.SendPublish(1, 6, "a/y", "fine")
	refused, stored := map[uint16]byte{}, map[uint16]bool{}
	for id := uint16(0); id < 6; {
		frame := c.Next()
		if packet.TypeOf(frame) == packet.TypePuback {
			var a packet.Ack
			must(t, packet.ParseAck(packet.V311, frame, &a))
			if id++; a.PacketID != id || stored[id] == (refused[id] != 0) {
				t.Fatalf("PUBACK %d where %d is next; refused %v, stored %v", a.PacketID, id, refused, stored)
			}
			continue
		}
		switch d := c.Parse(frame); d.Topic {
		case wire.ReceiptsRefused:
			refused[binary.BigEndian.Uint16([]byte(d.Payload))] = d.Payload[2]
			if len(d.Payload) < 6 {
				t.Fatalf("no reason: %q", d.Payload)
			}
		case wire.Receipts:
			for b := []byte(d.Payload); len(b) > 0; b = b[wire.ReceiptBytes:] {
				for i := range binary.BigEndian.Uint16(b[2:]) {
					stored[binary.BigEndian.Uint16(b)+i] = true
				}
			}
		default:
			t.Fatalf("got %+v", d)
		}
	}
	if want := (map[uint16]byte{2: packet.CodeNotAuthorized, 4: packet.CodeQuotaExceeded, 5: packet.CodeNotAuthorized}); !maps.Equal(refused, want) {
		t.Fatalf("refused: %v", refused)
	}
	c.Send(packet.AppendPublish(nil, packet.V311, &packet.Outgoing{QoS: 1, PacketID: 7, Topic: "a/x", Payload: make([]byte, 9000)}))
	if d := c.Delivery(); d.Topic != wire.ReceiptsClosed || d.Payload[0] != packet.CodeTooLarge || len(d.Payload) < 5 {
		t.Fatalf("got %+v", d)
	}
	c.ExpectClosed()
}
