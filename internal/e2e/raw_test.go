package e2e

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// Whatever a connection sends, it ends that connection and nobody else notices.
func TestBadPackets(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	watcher := dial(t, p, clean(client.V5))
	subscribe(t, watcher, "watch")
	const connect = "10 0d 00 04 4d 51 54 54 05 02 00 3c 00 00 00"
	for _, tt := range []struct {
		name string
		v    packet.Version
		send string
		code int // of the DISCONNECT; -1 is none
	}{
		{"not CONNECT first", 0, "30 03 00 01 61", -1},
		{"a ping first", 0, "c0 00", -1},
		{"rubbish", 0, "ff ff ff ff ff ff", -1},
		{"HTTP", 0, "47 45 54 20 2f 20 48 54 54 50 2f 31 2e 31 0d 0a 0d 0a", -1},
		{"a packet of 256 MiB before CONNECT", 0, "10 ff ff ff 7f", -1},
		{"truncated SUBSCRIBE", packet.V5, "82 06 00 01 00 00 01 61", 0x81},
		{"SUBSCRIBE without filters", packet.V5, "82 03 00 01 00", 0x82},
		{"SUBSCRIBE with wrong flags", packet.V5, "80 07 00 01 00 00 01 61 00", 0x81},
		{"QoS 3", packet.V5, "36 06 00 01 61 00 01 00", 0x81},
		{"packet id 0", packet.V5, "32 06 00 01 61 00 00 00", 0x82},
		{"a second CONNECT", packet.V5, connect, 0x82},
		{"CONNACK from a client", packet.V5, "20 03 00 00 00", 0x82},
		{"type 0", packet.V5, "00 00", 0x81},
		{"a packet too large", packet.V5, "30 ff ff ff 7f", 0x95},
		{"invalid UTF-8 topic", packet.V5, "30 04 00 01 ff 00", 0x81},
		{"a NUL in the topic", packet.V5, "30 04 00 01 00 00", 0x81},
		{"wildcard in the topic at QoS 0", packet.V5, "30 04 00 01 23 00", 0x90},
		{"an unmapped topic alias", packet.V5, "30 06 00 00 03 23 00 05", 0x94},
		{"an unknown property", packet.V5, "30 06 00 01 61 02 7f 00", 0x81},
		{"a property twice", packet.V5, "30 08 00 01 61 04 01 01 01 01", 0x82},
		{"trailing bytes", packet.V5, "c0 01 00", 0x81},
		{"five bytes of length", packet.V5, "30 ff ff ff ff 7f", 0x81},
		{"truncated SUBSCRIBE, 3.1.1", packet.V311, "82 05 00 01 00 01 61", -1},
		{"wildcard in the topic, 3.1.1", packet.V311, "32 05 00 01 23 00 01", -1},
		{"AUTH in 3.1.1", packet.V311, "f0 00", -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r *testbroker.Raw
			if tt.v == 0 {
				r = testbroker.DialRaw(t, p.Addr, packet.V5)
			} else {
				r = testbroker.ConnectRaw(t, p.Addr, tt.v, nil)
			}
			r.SendHex(tt.send)
			if got := r.ExpectClosed(); got != tt.code {
				t.Errorf("DISCONNECT 0x%X, want 0x%X", got, tt.code)
			}
		})
	}
	publish(t, dial(t, p, clean(client.V5)), "watch", "still here")
	expect(t, watcher, []string{"still here"})
	if !p.Running() {
		t.Error("the broker is gone")
	}
}

func TestTopicRefusedAtQoS1(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	r := testbroker.ConnectRaw(t, p.Addr, packet.V5, nil)
	for _, topic := range []string{"a/#", "+", "$SYS/broker/clients", "$share/g/a"} {
		if code := r.Publish(topic, "x"); code != 0x90 && code != 0x87 {
			t.Errorf("publish to %q: PUBACK 0x%02X", topic, code)
		}
	}
	if code := r.Publish("fine", "x"); code >= 0x80 {
		t.Errorf("publish to fine: PUBACK 0x%02X", code)
	}
}

func TestBadFilters(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		r := testbroker.ConnectRaw(t, p.Addr, v, nil)
		for _, filter := range []string{"a/#/b", "a+", "#a", strings.Repeat("/", 128)} {
			if code := r.Subscribe(filter, 1); code < 0x80 {
				t.Errorf("version %d: subscribe to %q: SUBACK 0x%02X", v, filter, code)
			}
		}
		if code := r.Subscribe(strings.Repeat("/", 127), 1); code != 1 {
			t.Errorf("version %d: 128 levels: SUBACK 0x%02X", v, code)
		}
	}
}

func TestConnectTimeout(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{Set: []string{"limits.connect_timeout=300ms"}})
	silent := testbroker.DialRaw(t, p.Addr, packet.V5)
	half := testbroker.DialRaw(t, p.Addr, packet.V5)
	half.SendHex("10 0d 00 04 4d 51")
	start := time.Now()
	silent.ExpectClosed()
	half.ExpectClosed()
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("closed after %v", took)
	}
}

func TestKeepAlive(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	idle := testbroker.ConnectRaw(t, p.Addr, packet.V5, &packet.Connect{Clean: true, KeepAlive: 1})
	start := time.Now()
	if code := idle.ExpectClosed(); code != 0x8D {
		t.Errorf("DISCONNECT 0x%X, want 0x8D", code)
	}
	if took := time.Since(start); took < 1400*time.Millisecond || took > 5*time.Second {
		t.Errorf("closed after %v, want 1.5 s", took)
	}
	// 1.5 times these do not fit 16 bits.
	for _, seconds := range []uint16{43691, 65535, 0} {
		r := testbroker.ConnectRaw(t, p.Addr, packet.V5, &packet.Connect{Clean: true, KeepAlive: seconds})
		<-timeAfter(200)
		r.Ping()
	}
}

func TestMaxPacket(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{Set: []string{"limits.max_packet=10KiB"}})
	r := testbroker.DialRaw(t, p.Addr, packet.V5)
	if ack := r.Connect(nil); ack.MaximumPacketSize != 10<<10 {
		t.Errorf("announced %d", ack.MaximumPacketSize)
	}
	if code := r.Publish("a", strings.Repeat("x", 10_000)); code >= 0x80 {
		t.Errorf("10,000 bytes: PUBACK 0x%02X", code)
	}
	_ = r.TrySend(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 1, PacketID: 9, Topic: "a", Payload: make([]byte, 11_000)}))
	if code := r.ExpectClosed(); code != 0x95 {
		t.Errorf("DISCONNECT 0x%X, want 0x95", code)
	}
}

// Publishes that arrive one byte at a time, and a hundred in one write, are the same publishes.
func TestFraming(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		sub := testbroker.ConnectRaw(t, p.Addr, v, nil)
		topic := fmt.Sprintf("frames/%d", v)
		sub.Subscribe(topic, 1)
		pub := testbroker.ConnectRaw(t, p.Addr, v, nil)
		var b []byte
		for i := range 100 {
			b = packet.AppendPublish(b, v, &packet.Outgoing{QoS: 1, PacketID: uint16(i + 1), Topic: topic, Payload: fmt.Append(nil, i)})
		}
		pub.Send(b)
		for i := range 100 {
			if code := pub.ExpectAck(packet.TypePuback, uint16(i+1)); code >= 0x80 {
				t.Fatalf("PUBACK %d: 0x%02X", i, code)
			}
		}
		one := packet.AppendPublish(nil, v, &packet.Outgoing{QoS: 1, PacketID: 200, Topic: topic, Payload: []byte("100")})
		for i := range one {
			pub.Send(one[i : i+1])
		}
		pub.ExpectAck(packet.TypePuback, 200)
		for i := range 101 {
			d := sub.Delivery()
			if d.Payload != fmt.Sprint(i) || d.Topic != topic {
				t.Fatalf("delivery %d is %q on %s", i, d.Payload, d.Topic)
			}
			sub.Ack(d)
		}
	}
}

// A subscriber that stops reading stalls neither publishers nor other subscribers, and catches up in order.
func TestSubscriberThatStopsReading(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	stuck := testbroker.ConnectRaw(t, p.Addr, packet.V311, &packet.Connect{ClientID: "stuck"})
	stuck.Subscribe("flood/#", 1)
	lively := dial(t, p, clean(client.V5))
	subscribe(t, lively, "flood/#")
	pub := dial(t, p, clean(client.V5))
	const n, size = 2000, 20_000
	var want []string
	for i := range n {
		b := make([]byte, size)
		binary.BigEndian.PutUint64(b, uint64(i))
		want = append(want, string(b))
	}
	sent := background(t, pub, "flood/a", want...)
	expect(t, lively, want)
	<-sent
	for i := range n {
		d := stuck.Delivery()
		if d.Payload != want[i] {
			t.Fatalf("delivery %d is number %d", i, binary.BigEndian.Uint64([]byte(d.Payload)))
		}
		stuck.Ack(d)
	}
}
