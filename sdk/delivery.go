package sdk

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

// Delivery is a message received.
type Delivery struct {
	Message
	Retained    bool // it was kept by the broker from before the subscription
	Redelivered bool // it may have been delivered before, to this or another consumer

	offset  uint64
	refused int
	receipt *receipt
	owner   settler // nil: the receipt is all there is to settle
	epoch   int     // of the owner
	settled atomic.Bool
	before  []*Delivery // of the same batch, settled with it
}

// settler is a consumer that has a part in settling.
type settler interface {
	ack(d *Delivery) error
	nack(d *Delivery, delay time.Duration, reason string) error
	held(d *Delivery) (link context.Context, ours bool)
}

// held reports whether the message is still this consumer's to settle, and until when. Once it is not, it may come again.
func (d *Delivery) held() (link context.Context, ours bool) {
	if d.owner == nil {
		return context.Background(), true // an ordinary subscription's comes once
	}
	return d.owner.held(d)
}

// Offset is the message's place in the broker's log, 0 outside of queues and replays. Offsets grow.
func (d *Delivery) Offset() uint64 { return d.offset }

// Attempt says which attempt at the message this is, from 1: consumers of its queue have refused it one time less, on whatever
// connection and before whatever restart. It is 1 outside of queues.
func (d *Delivery) Attempt() int { return d.refused + 1 }

// Ack tells the broker that the message is dealt with: it does not come again. ErrStale means that it was
// settled before.
func (d *Delivery) Ack() error {
	if d.settled.Swap(true) {
		return ErrStale
	}
	if d.owner != nil {
		return d.owner.ack(d)
	}
	d.receipt.settle()
	return nil
}

// Nack refuses the message: a queue sends it again after the delay, and to its dead letters (the queue <name>-dead, unless its settings say
// otherwise) if it has been refused too often. A delay of 0 leaves it to the broker, which waits longer each time. Other messages are not
// held up.
func (d *Delivery) Nack(delay time.Duration, reason string) error {
	return d.refuse(max(delay, 0), reason)
}

// GiveUp refuses the message for good: a queue moves it to its dead letters at once, however often it was refused before. In a queue of dead
// letters, from which there is nowhere to go, it is Nack with a delay of 0.
func (d *Delivery) GiveUp(reason string) error { return d.refuse(never, reason) }

func (d *Delivery) refuse(delay time.Duration, reason string) error {
	if d.settled.Swap(true) {
		return ErrStale
	}
	if d.owner != nil {
		return d.owner.nack(d, delay, reason)
	}
	d.receipt.settle() // an ordinary subscription has nowhere to send it again from
	return nil
}

// receipt is what is to be acknowledged of a PUBLISH: on the connection it came by, once all who hold it have settled.
type receipt struct {
	session *session
	link    *link
	id      uint16 // 0 at QoS 0
	holders atomic.Int32
}

func (r *receipt) settle() {
	if r.holders.Add(-1) == 0 && r.id != 0 {
		r.session.out.ack(r.link, r.id, false)
	}
}

// open makes a Delivery of what came.
func (d *delivery) open() (*Delivery, error) {
	var p packet.Publish
	if err := packet.ParseEnvelope(d.payload, &p); err != nil {
		return nil, err
	}
	v := &Delivery{Retained: d.retain, Redelivered: d.dup}
	v.decode(d.topic, p.Props, p.Payload)
	for i := range v.headers {
		switch h := &v.headers[i]; h.Name {
		case HeaderOffset:
			if n, err := h.Value.Int64(); err == nil {
				v.offset = uint64(n)
			}
		case HeaderRefused:
			if n, err := h.Value.Int64(); err == nil && n > 0 {
				v.refused, v.Redelivered = int(n), true
			}
		}
	}
	return v, nil
}
