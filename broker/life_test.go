package broker_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// frames has a sound packet of each type that a client may send after CONNECT.
func frames(v packet.Version) map[string][]byte {
	pub := func(qos byte) []byte {
		return packet.AppendPublish(nil, v, &packet.Outgoing{QoS: qos, PacketID: uint16(min(qos, 1)) * 7, Topic: "t/x", Payload: []byte("p")})
	}
	sub := &packet.Subscribe{PacketID: 7, Filters: []packet.Subscription{{Filter: "a", QoS: 1}}}
	fs := map[string][]byte{
		"PUBLISH 0": pub(0), "PUBLISH 1": pub(1), "PUBLISH 2": pub(2),
		"PUBACK": packet.AppendAck(nil, v, packet.TypePuback, 7, 0, ""), "PUBREC": packet.AppendAck(nil, v, packet.TypePubrec, 7, 0, ""),
		"PUBREL": packet.AppendAck(nil, v, packet.TypePubrel, 7, 0, ""), "PUBCOMP": packet.AppendAck(nil, v, packet.TypePubcomp, 7, 0, ""),
		"SUBSCRIBE": packet.AppendSubscribe(nil, v, sub), "UNSUBSCRIBE": packet.AppendUnsubscribe(nil, v, &packet.Unsubscribe{PacketID: 7, Filters: []string{"a"}}),
		"PINGREQ": packet.AppendPingreq(nil), "DISCONNECT": packet.AppendDisconnect(nil, v, &packet.Disconnect{}),
	}
	if v == packet.V5 {
		sub.SubscriptionID, sub.User = 300, []packet.UserProperty{{Name: "a", Value: "b"}}
		fs["SUBSCRIBE with properties"] = packet.AppendSubscribe(nil, v, sub)
		fs["PUBACK with a reason"] = packet.AppendAck(nil, v, packet.TypePuback, 7, 0x80, "why")
		fs["DISCONNECT with a reason"] = packet.AppendDisconnect(nil, v, &packet.Disconnect{Code: 4, ReasonString: "why"})
		fs["PUBLISH with properties"] = packet.AppendPublish(nil, v, &packet.Outgoing{
			Topic: "t", QoS: 1, PacketID: 9, HasExpiry: true, Expiry: 9, Alias: 1, Props: packet.AppendUser(nil, "a", "b"),
		})
		fs["AUTH"] = packet.AppendAuth(nil, &packet.Auth{Code: 0x19, Method: "m"})
	}
	return fs
}

// resized is a frame with another body and the length to match.
func resized(first byte, body []byte) []byte {
	return append(binary.AppendUvarint([]byte{first}, uint64(len(body))), body...)
}

// Whatever of whichever type a client sends, it alone gets to feel it. [mochi#501]
func TestMalformedPackets(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		witness := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("witness"))
		try := func(name string, frame []byte) {
			t.Helper()
			c := testbroker.ConnectRaw(t, b.Addr, v, clean("c"))
			defer c.Close()
			_ = c.TrySend(packet.AppendPingreq(bytes.Clone(frame)))
			for {
				got, err := c.TryNext()
				if err != nil {
					return // the connection ended
				}
				switch packet.TypeOf(got) {
				case packet.TypePingresp:
					return // it was sound, or was taken for two packets that are
				case packet.TypeDisconnect:
					d, err := packet.ParseServerDisconnect(got)
					if err != nil || d.Code < 0x80 || v != packet.V5 {
						t.Errorf("%s: DISCONNECT %+v, %v", name, d, err)
					}
				}
			}
		}
		for name, f := range frames(v) {
			body := f[2:]
			for n := range body {
				try(fmt.Sprintf("%s cut to %d", name, n), resized(f[0], body[:n]))
			}
			for flags := range byte(16) {
				try(fmt.Sprintf("%s with flags %X", name, flags), resized(f[0]&0xF0|flags, body))
			}
			try(name+" with a byte more", resized(f[0], append(bytes.Clone(body), 0)))
			for i := range body {
				for _, x := range []byte{0, 0x80, 0xFF} {
					hurt := bytes.Clone(body)
					hurt[i] = x
					try(fmt.Sprintf("%s with %02X at %d", name, x, i), resized(f[0], hurt))
				}
			}
			witness.Ping()
		}
	})
	t.Run("truncated SUBSCRIBE", func(t *testing.T) {
		b := testbroker.Run(t, testbroker.Options{})
		c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
		c.SendHex("82 06 00 01 00 00 01 61")
		if code := c.ExpectClosed(); code != int(packet.CodeMalformed) {
			t.Errorf("DISCONNECT 0x%X", code)
		}
	})
	t.Run("after sound ones in the same read", func(t *testing.T) {
		b := testbroker.Run(t, testbroker.Options{})
		sub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("sub"))
		sub.Subscribe("t", 1)
		c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
		p := packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "t", Payload: []byte("sound")})
		c.Send(append(p, 0x3F, 0xFF, 0xFF, 0xFF, 0xFF)) // wrong flags, endless length
		if code := c.ExpectClosed(); code != int(packet.CodeMalformed) {
			t.Errorf("DISCONNECT 0x%X", code)
		}
		if d := sub.Delivery(); d.Payload != "sound" {
			t.Errorf("got %q", d.Payload)
		}
	})
}

// Who does not get as far as CONNECT in time is gone, and gets no memory on his word.
func TestBeforeConnect(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{Set: []string{"limits.connect_timeout=300ms"}})
	silent := testbroker.DialRaw(t, b.Addr, packet.V5)
	slow := testbroker.DialRaw(t, b.Addr, packet.V5)
	slow.Send([]byte{0x10, 0x40, 0, 4, 'M'})
	start := time.Now()
	for _, c := range []*testbroker.Raw{silent, slow} {
		if code := c.ExpectClosed(); code != -1 {
			t.Errorf("DISCONNECT 0x%X before CONNECT", code)
		}
	}
	if took := time.Since(start); took < 200*time.Millisecond || took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	for name, hex := range map[string]string{
		"256 MB CONNECT":      "10 FF FF FF 7F 00 04",
		"endless length":      "10 FF FF FF FF 7F",
		"256 MB PUBLISH":      "30 FF FF FF 7F 00 01",
		"PINGREQ":             "C0 00",
		"first byte":          "30",
		"a type that is none": "05",
	} {
		t.Run(name, func(t *testing.T) {
			before := heap()
			start := time.Now()
			c := testbroker.DialRaw(t, b.Addr, packet.V5)
			c.SendHex(hex)
			if code := c.ExpectClosed(); code != -1 {
				t.Errorf("DISCONNECT 0x%X before CONNECT", code)
			}
			if took := time.Since(start); took > 200*time.Millisecond {
				t.Errorf("it took %v", took)
			}
			if grown := heap() - before; grown > 16<<20 {
				t.Errorf("it took %d MiB", grown>>20)
			}
		})
	}
	t.Run("PUBLISH with CONNECT", func(t *testing.T) { // it waits for the CONNACK's sake, and is taken after it
		c := testbroker.DialRaw(t, b.Addr, packet.V5)
		hello := clean("c")
		hello.Version = packet.V5
		c.Send(packet.AppendPublish(packet.AppendConnect(nil, hello), packet.V5, &packet.Outgoing{QoS: 1, PacketID: 1, Topic: "t"}))
		c.Expect(packet.TypeConnack)
		c.ExpectAck(packet.TypePuback, 1)
	})
}

// Keep-alive is 1.5 times what the client says, also where that does not fit 16 bits. [MQTT-3.1.2-22] [mochi#208, #464]
func TestKeepAlive(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	versions(t, func(t *testing.T, v packet.Version) {
		t.Parallel()
		var conns []*testbroker.Raw
		for _, seconds := range []uint16{43690, 43691, 65535, 0} {
			hello := clean(fmt.Sprint("c", v, seconds))
			hello.KeepAlive = seconds
			conns = append(conns, testbroker.ConnectRaw(t, b.Addr, v, hello))
		}
		hello := clean(fmt.Sprint("short", v))
		hello.KeepAlive = 1
		short := testbroker.ConnectRaw(t, b.Addr, v, hello)
		for range 3 { // a client that is heard of stays
			time.Sleep(800 * time.Millisecond)
			short.Ping()
		}
		start := time.Now()
		code := short.ExpectClosed()
		if took := time.Since(start); took < 1300*time.Millisecond || took > 3*time.Second {
			t.Errorf("closed after %v", took)
		}
		want := -1
		if v == packet.V5 {
			want = int(packet.CodeKeepAliveTimeout)
		}
		if code != want {
			t.Errorf("DISCONNECT 0x%X", code)
		}
		for _, c := range conns {
			c.Ping()
		}
	})
}

// A packet that comes a byte at a time is no sign of life. [MQTT-3.1.2-22]
func TestKeepAliveOfPartsOfPackets(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	hello := clean("c")
	hello.KeepAlive = 1
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, hello)
	start := time.Now()
	for _, x := range packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "t", Payload: make([]byte, 100)}) {
		if c.TrySend([]byte{x}) != nil || time.Since(start) > 3*time.Second {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("still there after %v", took)
	}
	if code := c.ExpectClosed(); code != int(packet.CodeKeepAliveTimeout) {
		t.Errorf("DISCONNECT 0x%X", code)
	}
}

// A filter of very many levels is refused, at once.
func TestManyLevels(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
	start := time.Now()
	for _, filter := range []string{strings.Repeat("/", 32_000), strings.Repeat("+/", 32_000) + "#", "$queue/q/" + strings.Repeat("a/", 20_000)} {
		if code := c.Subscribe(filter, 1); code != packet.CodeFilterInvalid {
			t.Errorf("SUBACK 0x%X", code)
		}
	}
	if code := c.Publish(strings.Repeat("/", 32_000), "x"); code != packet.CodeTopicInvalid {
		t.Errorf("PUBACK 0x%X", code)
	}
	if code := c.Subscribe(strings.Repeat("a/", 127)+"a", 1); code != 1 {
		t.Errorf("SUBACK 0x%X to 128 levels", code)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A client may send byte by byte.
func TestByteByByte(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		c := testbroker.DialRaw(t, b.Addr, v)
		hello := clean("c")
		hello.Version = v
		slowly := func(p []byte) {
			for i := range p {
				c.Send(p[i : i+1])
				runtime.Gosched()
			}
		}
		slowly(packet.AppendConnect(nil, hello))
		c.Expect(packet.TypeConnack)
		slowly(packet.AppendSubscribe(nil, v, &packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: "t", QoS: 1}}}))
		c.Expect(packet.TypeSuback)
		body := strings.Repeat("0123456789", 50)
		slowly(packet.AppendPublish(nil, v, &packet.Outgoing{QoS: 1, PacketID: 2, Topic: "t", Payload: []byte(body)}))
		for range 2 {
			switch frame := c.Next(); packet.TypeOf(frame) {
			case packet.TypePuback:
			case packet.TypePublish:
				d := c.Parse(frame)
				if d.Payload != body {
					t.Errorf("got %q", d.Payload)
				}
				slowly(packet.AppendAck(nil, v, packet.TypePuback, d.PacketID, 0, ""))
			default:
				t.Fatalf("got % X", frame)
			}
		}
		slowly(packet.AppendPingreq(nil))
		c.Expect(packet.TypePingresp)
	})
}

// Large messages, in pieces of any size.
func TestLargeMessages(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
	c.Subscribe("t", 0)
	for i, size := range []int{4 << 10, 63 << 10, 64<<10 - 9, 64 << 10, 65 << 10, 200 << 10, 1<<20 - 20} {
		body := strings.Repeat(string(rune('a'+i)), size)
		p := packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "t", Payload: []byte(body)})
		p = packet.AppendPublish(p, packet.V5, &packet.Outgoing{Topic: "t", Payload: []byte("next")})
		for piece := 1000 + 7000*i; len(p) > 0; p = p[min(piece, len(p)):] {
			c.Send(p[:min(piece, len(p))])
		}
		if d := c.Delivery(); d.Payload != body {
			t.Errorf("%d bytes came of %d", len(d.Payload), size)
		}
		if d := c.Delivery(); d.Payload != "next" {
			t.Errorf("%d bytes came of %q", len(d.Payload), "next")
		}
	}
}
