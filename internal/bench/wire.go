package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/client"
)

// The read buffer of a connection begins small, since there may be ten thousand, and grows while reads fill it.
const (
	smallBuffer = 2 << 10
	largeBuffer = 256 << 10
)

// batchBytes is how much a publisher puts into one write.
const batchBytes = 64 << 10

var (
	errFrame  = errors.New("the broker sent what is not MQTT")
	errKicked = fmt.Errorf("%w: the broker ended the connection", client.ErrLost)
)

// conn is an MQTT connection that hands out frames and knows no more of the protocol.
type conn struct {
	net.Conn
	version packet.Version
	buf     []byte
	r, w    int // buf[r:w] has been read and not handed out
	want    int // size of the frame at r, if it is known and not all there
	connack *packet.Connack
}

// dial opens a connection and waits for the CONNACK. A durable session is kept for ever, or until cleared.
func (r *run) dial(ctx context.Context, id string, clean bool) (*conn, error) {
	o := r.target.Options
	raw, err := client.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, version: r.version, buf: make([]byte, smallBuffer)}
	hello := packet.Connect{
		Version: r.version, Clean: clean, KeepAlive: 0, ClientID: id,
		HasUsername: o.User != "", Username: o.User, HasPassword: o.Password != "", Password: []byte(o.Password), ReceiveMaximum: math.MaxUint16,
	}
	if !clean {
		hello.HasSessionExpiry, hello.SessionExpiry = true, math.MaxUint32
	}
	err = c.SetDeadline(time.Now().Add(timeout(o)))
	if err == nil {
		err = c.handshake(&hello)
	}
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = c.Close()
		if _, refused := errors.AsType[*client.RefusedError](err); !refused {
			err = client.Unanswered(ctx, o, err)
		}
		return nil, fmt.Errorf("client %s: %w", id, err)
	}
	return c, nil
}

func timeout(o client.Options) time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}
	return 10 * time.Second
}

func (c *conn) handshake(hello *packet.Connect) error {
	if _, err := c.Write(packet.AppendConnect(nil, hello)); err != nil {
		return err
	}
	frame, err := c.read()
	if err != nil {
		return err
	}
	if c.connack, err = packet.ParseConnack(c.version, frame); err != nil {
		return err
	}
	if c.connack.Code != 0 {
		return client.Refused(client.Version(c.version), c.connack.Code, c.connack.ReasonString)
	}
	return nil
}

// subscribe subscribes to many filters, a hundred in a packet, and waits for the answers. It is for a connection to
// which nothing is published yet.
func (c *conn) subscribe(qos byte, filters []string) error {
	for first := 0; first < len(filters); first += 100 {
		s := packet.Subscribe{PacketID: 1}
		for _, f := range filters[first:min(first+100, len(filters))] {
			s.Filters = append(s.Filters, packet.Subscription{Filter: f, QoS: qos})
		}
		if _, err := c.Write(packet.AppendSubscribe(nil, c.version, &s)); err != nil {
			return err
		}
		frame, err := c.read()
		if err != nil {
			return err
		}
		ack, err := packet.ParseSuback(c.version, frame)
		if err != nil {
			return err
		}
		for i, code := range ack.Codes {
			if code != qos {
				return fmt.Errorf("subscription to %s answered with code %#x", s.Filters[i].Filter, code)
			}
		}
	}
	return nil
}

// leave ends the connection in good order.
func (c *conn) leave() error {
	_, err := c.Write(packet.AppendDisconnect(nil, c.version, &packet.Disconnect{}))
	return errors.Join(err, c.Close())
}

// read returns the next frame, from the socket if need be.
func (c *conn) read() ([]byte, error) {
	for {
		frame, err := c.next()
		if frame != nil || err != nil {
			return frame, err
		}
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
}

// next returns the next frame that has been read as a whole, nil if there is none. It is valid until fill.
func (c *conn) next() ([]byte, error) {
	b := c.buf[c.r:c.w]
	if len(b) < 2 || len(b) < c.want {
		return nil, nil
	}
	n, h := int(b[1]), 2
	if n >= 0x80 {
		v, k := binary.Uvarint(b[1:min(len(b), 5)])
		if k <= 0 {
			if len(b) >= 5 {
				return nil, errFrame
			}
			return nil, nil
		}
		n, h = int(v), 1+k
	}
	if len(b) < h+n {
		c.want = h + n
		return nil, nil
	}
	c.want = 0
	c.r += h + n
	return b[:h+n], nil
}

// body is a frame without its fixed header.
func body(frame []byte) []byte {
	i := 1
	for frame[i] >= 0x80 {
		i++
	}
	return frame[i+1:]
}

// fill reads from the socket once.
func (c *conn) fill() error {
	size := len(c.buf)
	if c.w == size && size < largeBuffer {
		size *= 2 // there may be more than fits
	}
	for size < c.want {
		size *= 2
	}
	if size > len(c.buf) {
		b := make([]byte, size)
		c.w = copy(b, c.buf[c.r:c.w])
		c.buf, c.r = b, 0
	} else if c.r > 0 {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	n, err := c.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return errKicked
	}
	return err
}

// publishHeads encodes a PUBLISH of size bytes to each topic, up to the packet id.
func publishHeads(v packet.Version, names []string, qos byte, size int) [][]byte {
	heads := make([][]byte, len(names))
	behind := size
	if v == packet.V5 {
		behind++ // no properties
	}
	if qos > 0 {
		behind += 2
	}
	for i, name := range names {
		head := []byte{byte(packet.TypePublish)<<4 | qos<<1}
		head = binary.AppendUvarint(head, uint64(2+len(name)+behind))
		head = binary.BigEndian.AppendUint16(head, uint16(len(name)))
		heads[i] = append(head, name...)
	}
	return heads
}

// splitPublish takes the frame of a PUBLISH apart. Properties are skipped: consumers here allow no alias.
func splitPublish(v packet.Version, frame []byte) (topic []byte, id uint16, payload []byte, err error) {
	b := body(frame)
	if len(b) < 2 || len(b) < 2+int(binary.BigEndian.Uint16(b)) {
		return nil, 0, nil, errFrame
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	topic, b = b[2:n], b[n:]
	if frame[0]&6 != 0 {
		if len(b) < 2 {
			return nil, 0, nil, errFrame
		}
		id, b = binary.BigEndian.Uint16(b), b[2:]
	}
	if v == packet.V5 {
		n, k := binary.Uvarint(b)
		if k <= 0 || uint64(len(b)-k) < n {
			return nil, 0, nil, errFrame
		}
		b = b[k+int(n):]
	}
	return topic, id, b, nil
}

// appendAck appends an acknowledgement without a reason code: success.
func appendAck(dst []byte, t packet.Type, id uint16) []byte {
	first := byte(t) << 4
	if t == packet.TypePubrel {
		first |= 2
	}
	return append(dst, first, 2, byte(id>>8), byte(id))
}

// parseAck reads an acknowledgement.
func parseAck(frame []byte) (id uint16, err error) {
	b := body(frame)
	if len(b) < 2 {
		return 0, errFrame
	}
	if len(b) > 2 && b[2] >= 0x80 {
		return 0, fmt.Errorf("the broker refused a message with %v %#x", packet.TypeOf(frame), b[2])
	}
	return binary.BigEndian.Uint16(b), nil
}

// disconnected is the error for a DISCONNECT.
func disconnected(frame []byte) error {
	if b := body(frame); len(b) > 0 {
		if b[0] == 0x8E {
			return fmt.Errorf("%w, as another run has the same names (see --names)", errKicked)
		}
		return fmt.Errorf("%w with code %#x", errKicked, b[0])
	}
	return errKicked
}
