package testbroker

import (
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

// Raw is a client that does nothing by itself: no acks, no pings, no reconnecting.
type Raw struct {
	t    testing.TB
	conn net.Conn
	v    packet.Version
	buf  []byte // read and not yet looked at
	id   uint16
}

// DialRaw opens a connection and sends nothing.
func DialRaw(t testing.TB, addr string, v packet.Version) *Raw {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, Patience)
	if err != nil {
		t.Fatal(err)
	}
	r := &Raw{t: t, conn: conn, v: v}
	t.Cleanup(r.Close)
	return r
}

// ConnectRaw opens a connection and gets it accepted. c may be nil: a clean session with an id of its own.
func ConnectRaw(t testing.TB, addr string, v packet.Version, c *packet.Connect) *Raw {
	t.Helper()
	r := DialRaw(t, addr, v)
	if ack := r.Connect(c); ack.Code != 0 {
		t.Fatalf("CONNECT was answered 0x%02X %s", ack.Code, ack.ReasonString)
	}
	return r
}

// Connect sends CONNECT and returns the answer.
func (r *Raw) Connect(c *packet.Connect) *packet.Connack {
	r.t.Helper()
	if c == nil {
		c = &packet.Connect{Clean: true}
	}
	c.Version = r.v
	if c.ReceiveMaximum == 0 {
		c.ReceiveMaximum = 65535
	}
	r.Send(packet.AppendConnect(nil, c))
	ack, err := packet.ParseConnack(r.v, r.Expect(packet.TypeConnack))
	if err != nil {
		r.t.Fatal(err)
	}
	return ack
}

// Close closes the socket, without a DISCONNECT.
func (r *Raw) Close() { _ = r.conn.Close() }

// Local is the client's own address, which the broker knows it by.
func (r *Raw) Local() string { return r.conn.LocalAddr().String() }

// For makes the client fail t from now on, the fuzz target's own.
func (r *Raw) For(t testing.TB) *Raw {
	r.t = t
	return r
}

// CloseWrite says that nothing more will be sent.
func (r *Raw) CloseWrite() {
	if c, ok := r.conn.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
}

// Drain reads whatever comes until the broker closes the connection.
func (r *Raw) Drain() {
	_ = r.conn.SetReadDeadline(time.Now().Add(Patience))
	_, _ = io.Copy(io.Discard, r.conn)
}

// Send writes bytes.
func (r *Raw) Send(b []byte) {
	r.t.Helper()
	if err := r.TrySend(b); err != nil {
		r.t.Fatalf("send: %v", err)
	}
}

// TrySend writes bytes to a connection the broker may have closed already.
func (r *Raw) TrySend(b []byte) error {
	_ = r.conn.SetWriteDeadline(time.Now().Add(Patience))
	_, err := r.conn.Write(b)
	return err
}

// SendHex writes bytes given in hexadecimal; spaces do not count.
func (r *Raw) SendHex(s string) {
	r.t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.TrySend(b); err != nil {
		r.t.Logf("send: %v", err) // the answer, or its absence, is what the test is about
	}
}

// errQuiet means that nothing came for the time given.
var errQuiet = errors.New("nothing came")

// read returns the next whole frame.
func (r *Raw) read(patience time.Duration) ([]byte, error) {
	_ = r.conn.SetReadDeadline(time.Now().Add(patience))
	for {
		size, _, err := packet.Split(r.buf, r.v, 0)
		if err != nil {
			return nil, err
		}
		if size > 0 && size <= len(r.buf) {
			frame := r.buf[:size:size]
			r.buf = r.buf[size:]
			return frame, nil
		}
		b := make([]byte, 64<<10)
		n, err := r.conn.Read(b)
		r.buf = append(r.buf, b[:n]...)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, errQuiet
		}
		if err != nil && n == 0 {
			return nil, err
		}
	}
}

// Next returns the next frame, of whatever type.
func (r *Raw) Next() []byte {
	r.t.Helper()
	frame, err := r.read(Patience)
	if err != nil {
		r.t.Fatalf("read a packet: %v", err)
	}
	return frame
}

// TryNext returns the next frame, or an error when the connection has ended or nothing comes.
func (r *Raw) TryNext() ([]byte, error) { return r.read(Patience) }

// TryNextWithin is TryNext with less patience.
func (r *Raw) TryNextWithin(d time.Duration) ([]byte, error) { return r.read(d) }

// Version is the protocol version the client speaks.
func (r *Raw) Version() packet.Version { return r.v }

// NextWithin returns the next frame, if there is one within the given time.
func (r *Raw) NextWithin(d time.Duration) ([]byte, bool) {
	r.t.Helper()
	frame, err := r.read(d)
	if errors.Is(err, errQuiet) {
		return nil, false
	}
	if err != nil {
		r.t.Fatalf("read a packet: %v", err)
	}
	return frame, true
}

// Expect returns the next frame, which must be of type t.
func (r *Raw) Expect(t packet.Type) []byte {
	r.t.Helper()
	frame := r.Next()
	if got := packet.TypeOf(frame); got != t {
		r.t.Fatalf("got %v % X, want %v", got, frame, t)
	}
	return frame
}

// ExpectClosed waits for the broker to close the connection and returns the reason code of the DISCONNECT
// before it, or -1 if there was none. Other packets are passed over.
func (r *Raw) ExpectClosed() int {
	r.t.Helper()
	code := -1
	for {
		frame, err := r.read(Patience)
		if errors.Is(err, errQuiet) {
			r.t.Fatal("the broker keeps the connection open")
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !isReset(err) {
				r.t.Fatalf("read: %v", err)
			}
			return code
		}
		if packet.TypeOf(frame) == packet.TypeDisconnect {
			d, err := packet.ParseServerDisconnect(frame)
			if err != nil {
				r.t.Fatalf("DISCONNECT % X: %v", frame, err)
			}
			code = int(d.Code)
		}
	}
}

// Ping proves that the connection is alive: nothing but the answer may come. Deliveries are on their own way,
// so to show that one did not come, send one that must come after it.
func (r *Raw) Ping() {
	r.t.Helper()
	r.Send(packet.AppendPingreq(nil))
	r.Expect(packet.TypePingresp)
}

// Subscribe subscribes to one filter and returns the code of the SUBACK.
func (r *Raw) Subscribe(filter string, qos byte) byte {
	r.t.Helper()
	id := r.NextID()
	r.Send(packet.AppendSubscribe(nil, r.v, &packet.Subscribe{PacketID: id, Filters: []packet.Subscription{{Filter: filter, QoS: qos}}}))
	ack, err := packet.ParseSuback(r.v, r.Expect(packet.TypeSuback))
	if err != nil || ack.PacketID != id || len(ack.Codes) != 1 {
		r.t.Fatalf("SUBACK %+v, %v", ack, err)
	}
	return ack.Codes[0]
}

// Publish publishes at QoS 1 and returns the code of the PUBACK.
func (r *Raw) Publish(topic, payload string) byte {
	r.t.Helper()
	id := r.NextID()
	r.Send(packet.AppendPublish(nil, r.v, &packet.Outgoing{QoS: 1, PacketID: id, Topic: topic, Payload: []byte(payload)}))
	return r.ExpectAck(packet.TypePuback, id)
}

// ExpectAck returns the code of the next packet, which must be the given ack.
func (r *Raw) ExpectAck(t packet.Type, id uint16) byte {
	r.t.Helper()
	var a packet.Ack
	if err := packet.ParseAck(r.v, r.Expect(t), &a); err != nil {
		r.t.Fatal(err)
	}
	if a.PacketID != id {
		r.t.Fatalf("%v is for packet %d, want %d", t, a.PacketID, id)
	}
	return a.Code
}

// Delivery is a PUBLISH from the broker. It owns its memory.
type Delivery struct {
	packet.Publish
	Topic, Payload string
}

// Delivery returns the next packet, which must be a PUBLISH.
func (r *Raw) Delivery() Delivery {
	r.t.Helper()
	return r.parse(r.Expect(packet.TypePublish))
}

// DeliveryWithin waits for a PUBLISH for the given time only.
func (r *Raw) DeliveryWithin(d time.Duration) (Delivery, bool) {
	r.t.Helper()
	frame, err := r.read(d)
	if errors.Is(err, errQuiet) {
		return Delivery{}, false
	}
	if err != nil {
		r.t.Fatalf("read a packet: %v", err)
	}
	if got := packet.TypeOf(frame); got != packet.TypePublish {
		r.t.Fatalf("got %v % X, want PUBLISH", got, frame)
	}
	return r.parse(frame), true
}

// Parse takes a PUBLISH apart.
func (r *Raw) Parse(frame []byte) Delivery {
	r.t.Helper()
	return r.parse(frame)
}

// SendPublish sends a PUBLISH and does not wait for an answer.
func (r *Raw) SendPublish(qos byte, id uint16, topic, payload string) {
	r.t.Helper()
	r.Send(packet.AppendPublish(nil, r.v, &packet.Outgoing{QoS: qos, PacketID: id, Topic: topic, Payload: []byte(payload)}))
}

func (r *Raw) parse(frame []byte) Delivery {
	r.t.Helper()
	var d Delivery
	if err := packet.ParseDelivery(r.v, frame, &d.Publish); err != nil {
		r.t.Fatalf("PUBLISH % X: %v", frame, err)
	}
	d.Topic, d.Payload = string(d.Publish.Topic), string(d.Publish.Payload)
	return d
}

// Ack acknowledges a QoS 1 delivery.
func (r *Raw) Ack(d Delivery) {
	r.t.Helper()
	if d.QoS == 1 {
		r.Send(packet.AppendAck(nil, r.v, packet.TypePuback, d.PacketID, 0, ""))
	}
}

// NextID is a packet id that this client has not used for a long time; 0 is none.
func (r *Raw) NextID() uint16 {
	if r.id++; r.id == 0 {
		r.id = 1
	}
	return r.id
}

func isReset(err error) bool {
	return strings.Contains(err.Error(), "connection reset") || strings.Contains(err.Error(), "broken pipe")
}
