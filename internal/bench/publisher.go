package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

// publisher publishes its part of a load. One goroutine does all: it writes what the window (and the pace) allows, then
// waits for acknowledgements. The window's acknowledgements fit the socket's buffer, so the broker is never kept from
// writing them by a publisher that is writing.
type publisher struct {
	*run
	id     int
	count  int
	conn   *conn
	free   []uint16 // packet ids
	flight []int64  // by packet id: when it was published, 0 if it is not under way
	filler []byte
	out    []byte
	rnd    uint32
	seqs   []uint32 // number of the last message to each topic
	sent   int
	acked  int
	acks   Histogram

	interval time.Duration // between messages of a paced load
	first    int64         // when the first one is due
	held     int64         // until when the broker held the publisher up
}

// pace is the shortest time that a paced publisher sleeps: at thousands of messages a second it sends some at once, as
// waking up for each would cost more than the message.
const pace = int64(time.Millisecond)

func (r *run) newPublisher(id int) *publisher {
	p := &publisher{run: r, id: id, filler: filler(r.Size), seqs: make([]uint32, r.Topics), rnd: uint32(id)*2654435761 + 12345}
	p.count = r.Count / r.Publishers
	if id < r.Count%r.Publishers {
		p.count++
	}
	return p
}

// connect opens the connection. The window is no larger than the broker's Receive Maximum.
func (p *publisher) connect(ctx context.Context) (err error) {
	if p.conn, err = p.dial(ctx, fmt.Sprintf("bench-%s-p%d", p.run.id, p.id), true); err != nil {
		return err
	}
	window := p.Window
	if m := int(p.conn.connack.ReceiveMaximum); m > 0 {
		window = min(window, m)
	}
	p.flight = make([]int64, window+1)
	for id := window; id > 0; id-- {
		p.free = append(p.free, uint16(id))
	}
	return nil
}

// publish sends everything and waits until it is acknowledged.
func (p *publisher) publish(start int64) error {
	if p.Rate > 0 {
		p.interval = max(1, time.Duration(float64(time.Second)*float64(p.Publishers)/float64(p.Rate)))
		p.first = start + int64(p.interval)*int64(p.id)/int64(p.Publishers)
	}
	for p.sent < p.count || p.QoS > 0 && p.acked < p.count {
		n, at := p.allowed()
		if n == 0 {
			if err := p.wait(at); err != nil {
				return err
			}
			continue
		}
		if err := p.send(n); err != nil {
			return err
		}
	}
	return nil
}

// allowed is how many messages may be sent now; if none, at is when the next one is due (0: when an acknowledgement comes).
func (p *publisher) allowed() (n int, at int64) {
	n = p.count - p.sent
	if p.QoS > 0 {
		n = min(n, len(p.free))
	}
	if n == 0 || p.Rate == 0 {
		return n, 0
	}
	next, t := p.due(p.sent), now()
	if next > t {
		return 0, max(next, t+pace)
	}
	return min(n, int((t-p.first)/int64(p.interval))+1-p.sent), 0
}

func (p *publisher) due(i int) int64 { return p.first + int64(i)*int64(p.interval) }

// send writes n messages, as many at once as fit a batch.
func (p *publisher) send(n int) error {
	p.out = p.out[:0]
	t := now()
	first := p.sent
	for range n {
		at := t
		if due := p.due(p.sent); p.Rate > 0 && due < p.held {
			at = due
		}
		p.append(at)
		if p.sent++; len(p.out) >= batchBytes {
			break
		}
	}
	if _, err := p.conn.Write(p.out); err != nil {
		return p.why(err)
	}
	if p.QoS == 0 {
		p.progress.Add(int64(p.sent - first))
	}
	if after := now(); after-t > pace {
		p.held = after
	}
	return nil
}

// append encodes the next message.
func (p *publisher) append(at int64) {
	p.rnd = p.rnd*1664525 + 1013904223
	t := uint32(uint64(p.rnd) * uint64(p.Topics) >> 32)
	p.seqs[t]++
	p.out = append(p.out, p.heads[t]...)
	if p.QoS > 0 {
		id := p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
		p.flight[id] = at
		p.out = append(p.out, byte(id>>8), byte(id))
	}
	if p.version == packet.V5 {
		p.out = append(p.out, 0)
	}
	n := len(p.out)
	p.out = append(p.out, p.filler...)
	seal(p.out[n:], uint32(p.id), t, p.seqs[t], tagged(p.tag, at))
}

// wait reads acknowledgements: those that come next, or those that come until a time.
func (p *publisher) wait(until int64) error {
	if until > 0 {
		if err := p.conn.SetReadDeadline(began.Add(time.Duration(until))); err != nil {
			return err
		}
	}
	err := p.conn.fill()
	t := now()
	if until > 0 {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		err = errors.Join(err, p.conn.SetReadDeadline(time.Time{}))
	} else {
		p.held = t // the window was full
	}
	if err != nil {
		return p.why(err)
	}
	return p.take(t)
}

// take handles the frames that have been read.
func (p *publisher) take(t int64) error {
	before := p.acked
	p.out = p.out[:0]
	for {
		frame, err := p.conn.next()
		if err != nil {
			return err
		}
		if frame == nil {
			break
		}
		switch typ := packet.TypeOf(frame); typ {
		case packet.TypePuback, packet.TypePubrec, packet.TypePubcomp:
			id, err := parseAck(frame)
			if err != nil {
				return err
			}
			if int(id) >= len(p.flight) || p.flight[id] == 0 {
				return fmt.Errorf("%v for packet id %d, which is not under way", typ, id)
			}
			if typ == packet.TypePubrec {
				p.out = appendAck(p.out, packet.TypePubrel, id)
				continue
			}
			p.acks.Add(time.Duration(t-p.flight[id]), 1)
			p.flight[id] = 0
			p.free = append(p.free, id)
			p.acked++
		case packet.TypeDisconnect:
			return disconnected(frame)
		default:
			return fmt.Errorf("%w: %v to a publisher", errFrame, typ)
		}
	}
	p.progress.Add(int64(p.acked - before))
	if len(p.out) > 0 {
		if _, err := p.conn.Write(p.out); err != nil {
			return p.why(err)
		}
	}
	return nil
}

// why is the error for a connection that broke: the broker's DISCONNECT, if it said something.
func (p *publisher) why(err error) error {
	for {
		frame, e := p.conn.next()
		if frame == nil || e != nil {
			return fmt.Errorf("publisher %d: %w", p.id, err)
		}
		if packet.TypeOf(frame) == packet.TypeDisconnect {
			return fmt.Errorf("publisher %d: %w", p.id, disconnected(frame))
		}
	}
}
