package sdk

import (
	"context"
	"sync"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

// Packet ids of publishes. Those below are left to paho, for its SUBSCRIBEs; one connection has few.
const (
	firstID = 1024
	numIDs  = 64000
)

// outbox holds what a session has to send: publishes until they are acknowledged, over any number of connections,
// and acks of deliveries, which die with theirs.
//
// Frames are encoded back to back into chunks, which the writer writes from as they are: one write takes all that
// came while the last one lasted.
type outbox struct {
	o  *settings
	mu sync.Mutex

	flights []*Promise // unacknowledged, in order; flights[0] has sequence number first
	first   uint64
	bytes   int
	room    chan struct{} // closed when the window has room again; nil: nobody waits
	closed  error
	encoder encoder
	host    string // our end of the connection

	chunk    []byte   // encoding goes on at its end
	pending  int      // chunk[pending:] is to be written
	segments [][]byte // to be written before it
	queued   int      // bytes to be written
	up       *link    // nil: there is no connection
	ending   bool     // the writer is to return once all is written
	awake    bool     // the writer knows that there is something
	wake     chan struct{}
	acks     int // pending ones nobody has woken the writer for
	ackTimer *time.Timer
	resumed  bool // the broker had the session still
	probing  bool // only the publish at the front is sent
	progress int  // publishes acknowledged on this connection
	strikes  int  // connections lost in a row without one
}

const chunkBytes = 64 << 10

// Acks wait for each other: so many, or so long, unless somebody is in a hurry.
const (
	ackBatch = 128
	ackDelay = 2 * time.Millisecond
)

func newOutbox(o *settings) *outbox {
	b := &outbox{o: o, wake: make(chan struct{}, 1)}
	b.ackTimer = time.AfterFunc(time.Hour, func() {
		b.mu.Lock()
		b.rouse()
		b.mu.Unlock()
	})
	b.ackTimer.Stop()
	return b
}

// publication is what is to be published.
type publication struct {
	m       *Message
	to      string // the topic, $v5/ and all
	expiry  uint32
	expires bool
	qos     byte
	stamp   stamp
	done    func(*Promise) // called once, with the outbox locked; may be nil
	only    *link          // it makes sense on this connection alone
}

// publish queues a message. It waits for room in the window, and for nothing else.
func (b *outbox) publish(ctx context.Context, p *publication) (*Promise, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.closed == nil && p.qos > 0 && (len(b.flights) >= b.o.window || b.bytes >= b.o.windowBytes) {
		if err := b.waitRoom(ctx); err != nil {
			return nil, err
		}
	}
	switch {
	case b.closed != nil:
		return nil, b.closed
	case p.only != nil && b.up != p.only, p.qos == 0 && (b.up == nil || b.queued > b.o.windowBytes):
		return nil, ErrNotConnected
	}
	if p.stamp.host == "" {
		p.stamp.host = b.host
	}
	props, err := b.encoder.encode(p.m, &p.stamp)
	if err != nil {
		return nil, err
	}
	out := packet.Outgoing{
		QoS: p.qos, Retain: p.m.Retain, Topic: p.to, Props: props, HasExpiry: p.expires, Expiry: p.expiry, Payload: p.m.body, Envelope: true,
	}
	seq := b.first + uint64(len(b.flights))
	if p.qos > 0 {
		out.PacketID = firstID + uint16(seq%numIDs)
	}
	frame := b.encode(&out)
	promise := &Promise{b: b, to: p.to, id: p.stamp.id, start: time.Now(), onDone: p.done, size: len(frame), bound: p.only != nil}
	b.o.observer.Sent(len(frame))
	if p.qos == 0 {
		promise.done = true
		b.rouse()
		return promise, nil
	}
	promise.frame = frame
	b.flights = append(b.flights, promise)
	b.bytes += len(frame)
	if b.live() {
		promise.handed = true
		b.rouse()
	}
	return promise, nil
}

// waitRoom waits, unlocked, for room in the window.
func (b *outbox) waitRoom(ctx context.Context) error {
	if b.room == nil {
		b.room = make(chan struct{})
	}
	room := b.room
	b.mu.Unlock()
	defer b.mu.Lock()
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// encode appends a publish to the chunk, to be written if there is a connection, and returns its frame.
func (b *outbox) encode(out *packet.Outgoing) []byte {
	size := packet.PublishSize(packet.V311, out)
	live := b.live()
	if !live {
		b.cut()
	}
	b.reserve(size)
	at := len(b.chunk)
	b.chunk = packet.AppendPublish(b.chunk, packet.V311, out)
	if live {
		b.queued += size
	} else {
		b.pending = len(b.chunk)
	}
	return b.chunk[at:len(b.chunk):len(b.chunk)]
}

// flight returns the unacknowledged publish with a packet id, and its place, or nil.
func (b *outbox) flight(id uint16) (*Promise, int) {
	i := (int(id) - firstID - int(b.first%numIDs) + numIDs) % numIDs
	if int(id) < firstID || int(id) >= firstID+numIDs || i >= len(b.flights) || b.flights[i].done {
		return nil, 0
	}
	return b.flights[i], i
}

// acknowledged completes the publishes with these packet ids. runs say where they, or others, are stored.
func (b *outbox) acknowledged(ids []uint16, runs []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.locate(runs)
	now := time.Now()
	for _, id := range ids {
		p, i := b.flight(id)
		if p == nil {
			continue // an answer to nothing we know of
		}
		p.latency = now.Sub(p.start)
		if p.refusal != nil {
			b.finish(p, p.refusal.error())
		} else {
			b.o.observer.Acknowledged(p.latency)
			b.finish(p, nil)
		}
		b.progress++
		if i == 0 {
			b.pop()
		}
	}
	if b.probing && b.progress > 0 {
		b.probing = false
		b.resend(b.flights)
		b.rouse()
	}
}

// finish completes a promise; its place in flights is freed by pop.
func (b *outbox) finish(p *Promise, err *SendError) {
	if p.done {
		return
	}
	p.done = true
	if err != nil && p.err == nil {
		err.MessageID, err.To = p.id, trimTopic(p.to)
		p.err = err
		b.o.observer.Failed(err.Known)
	}
	if p.ch != nil {
		close(p.ch)
		p.ch = nil
	}
	if p.onDone != nil && !p.abandoned {
		p.onDone(p)
	}
}

// pop frees the window of what is done at its front.
func (b *outbox) pop() {
	n := 0
	for n < len(b.flights) && b.flights[n].done {
		b.bytes -= b.flights[n].size
		b.flights[n].frame = nil
		b.flights[n] = nil
		n++
	}
	b.flights = b.flights[n:]
	b.first += uint64(n)
	if b.room != nil && len(b.flights) <= b.o.window-b.o.window/4 && b.bytes <= b.o.windowBytes-b.o.windowBytes/4 {
		close(b.room)
		b.room = nil
	}
}

// giveUp ends the wait for a promise because its sender's context ended.
func (b *outbox) giveUp(p *Promise, cause error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.done {
		return p.result()
	}
	known := NotSent
	if p.handed {
		known = Unknown
	}
	err := &SendError{Known: known, Err: cause}
	if known == NotSent {
		b.finish(p, err)
		b.pop()
		return err
	}
	err.MessageID, err.To = p.id, trimTopic(p.to)
	p.err, p.abandoned = err, true // it keeps its place: its packet id is in use until the broker answers
	b.o.observer.Failed(Unknown)
	return err
}

// close fails what is not acknowledged.
func (b *outbox) close(cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed != nil {
		return
	}
	b.closed = cause
	b.ackTimer.Stop()
	for _, p := range b.flights {
		known := NotSent
		if p.handed {
			known = Unknown
		}
		b.finish(p, &SendError{Known: known, Err: cause})
	}
	b.pop()
	if b.room != nil {
		close(b.room)
		b.room = nil
	}
}

// len is how many publishes are not acknowledged.
func (b *outbox) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.flights)
}

// flush waits until all that was published before is acknowledged or given up.
func (b *outbox) flush(ctx context.Context) error {
	b.mu.Lock()
	target := b.first + uint64(len(b.flights))
	for b.first < target {
		p := b.flights[target-b.first-1]
		if p.done { // out of turn: the front is what is missing
			p = b.flights[0]
		}
		done := p.doneLocked()
		b.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		b.mu.Lock()
	}
	b.mu.Unlock()
	return nil
}
