package bench

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

// discard is a connection that takes everything and says nothing.
type discard struct{ net.Conn }

func (discard) Write(b []byte) (int, error)       { return len(b), nil }
func (discard) SetReadDeadline(t time.Time) error { return nil }

// source is a connection that hands out what it has in pieces.
type source struct {
	net.Conn
	b     []byte
	piece int
}

func (s *source) Read(b []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b, s.b[:min(s.piece, len(s.b))])
	s.b = s.b[n:]
	return n, nil
}

// Frames come out as they went in, however the socket cuts them.
func TestFrames(t *testing.T) {
	var stream []byte
	var want [][]byte
	for _, size := range []int{0, 1, 100, 127, 128, 5000, 20_000, 400_000, 3} {
		o := packet.Outgoing{Topic: "a/b", QoS: 1, PacketID: 7, Payload: filler(size)}
		frame := packet.AppendPublish(nil, packet.V5, &o)
		want = append(want, frame)
		stream = append(stream, frame...)
	}
	for _, piece := range []int{1, 7, 1000, 1 << 20} {
		c := &conn{Conn: &source{b: stream, piece: piece}, buf: make([]byte, 16)}
		for i, w := range want {
			frame, err := c.read()
			if err != nil || !bytes.Equal(frame, w) {
				t.Fatalf("pieces of %d, frame %d: %d bytes, %v; want %d", piece, i, len(frame), err, len(w))
			}
			topic, id, payload, err := splitPublish(packet.V5, frame)
			if err != nil || string(topic) != "a/b" || id != 7 || len(payload) != len(w)-len(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "a/b", QoS: 1, PacketID: 7}))-lengthBytes(len(w)) {
				t.Fatalf("frame %d: %q %d, %d bytes, %v", i, topic, id, len(payload), err)
			}
		}
		if _, err := c.read(); err == nil {
			t.Fatal("more than there was")
		}
	}
	bad := &conn{Conn: &source{b: []byte{0x30, 0xFF, 0xFF, 0xFF, 0xFF, 1}, piece: 100}, buf: make([]byte, 16)}
	if _, err := bad.read(); err == nil {
		t.Error("a length of five bytes is read")
	}
}

// lengthBytes is how many bytes more than one the length of a frame takes.
func lengthBytes(frame int) int {
	switch {
	case frame <= 129:
		return 0
	case frame <= 16386:
		return 1
	}
	return 2
}

// The frames made here are those that the broker's codec takes, and the other way round.
func TestPublishHeads(t *testing.T) {
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		for qos := range byte(3) {
			for _, size := range []int{MinSize, 128, 70_000} {
				r := &run{Load: Load{Topics: 1, QoS: qos, Size: size}, version: v, heads: publishHeads(v, []string{"bench/x/t0"}, qos, size)}
				p := &publisher{run: r, filler: filler(size), seqs: make([]uint32, 1), flight: make([]int64, 6), free: []uint16{5}}
				p.append(1)
				var got packet.Publish
				if n, _, err := packet.Split(p.out, v, 0); err != nil || n != len(p.out) {
					t.Fatalf("mqtt=%d qos=%d size=%d: a frame of %d in %d bytes, %v", v, qos, size, n, len(p.out), err)
				}
				if err := packet.ParsePublish(v, p.out, &got); err != nil {
					t.Fatal(err)
				}
				if string(got.Topic) != "bench/x/t0" || got.QoS != qos || len(got.Payload) != size || qos > 0 && got.PacketID != 5 {
					t.Errorf("%+v", got)
				}
				topic, id, payload, err := splitPublish(v, p.out)
				if err != nil || !bytes.Equal(topic, got.Topic) || id != got.PacketID || !bytes.Equal(payload, got.Payload) {
					t.Errorf("%q %d %d bytes %v", topic, id, len(payload), err)
				}
				for n := range len(p.out) - size {
					cut := append([]byte(nil), p.out[:n]...)
					if n > 4 {
						_, _, _, _ = splitPublish(v, cut) // it does not panic
					}
				}
			}
		}
	}
}
