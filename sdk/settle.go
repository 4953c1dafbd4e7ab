package sdk

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/internal/wire"
)

// How a PullConsumer settles what it was given.

// held is for consumers that must not go on with what is not theirs any more.
func (p *PullConsumer) held(d *Delivery) (link context.Context, ours bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := d.receipt; r.link == p.link && p.link != nil && d.epoch == p.epoch { // perhaps by way of having come again
		return r.link.ctx, true
	}
	if p.open[d.offset] == d {
		delete(p.open, d.offset)
	}
	return nil, false
}

// ack settles a message.
func (p *PullConsumer) ack(d *Delivery) error {
	p.mu.Lock()
	if d.epoch != p.epoch {
		p.mu.Unlock()
		return ErrStale
	}
	if d.offset != 0 {
		delete(p.open, d.offset)
		p.history.add(d.offset)
	}
	r := d.receipt
	ready := []*receipt{r}
	if p.buffer.Throttled() { // withholding acks is how one asks a 3.1.1 broker for less
		p.withheld = append(p.withheld, r)
		ready = nil
	} else if len(p.withheld) > 0 {
		ready = append(p.withheld, r)
		p.withheld = nil
	}
	p.mu.Unlock()
	for _, r := range ready {
		r.settle()
	}
	return nil
}

// never as nack's delay has the broker move the message to the queue's dead letters at once.
const never = time.Duration(-1)

// nack refuses a message: with a publish, which says why, and with the acknowledgement that MQTT wants for each packet id.
func (p *PullConsumer) nack(d *Delivery, delay time.Duration, reason string) error {
	p.mu.Lock()
	if d.epoch != p.epoch {
		p.mu.Unlock()
		return ErrStale
	}
	if d.offset != 0 {
		delete(p.open, d.offset)
	}
	queue, r, here := p.queue, d.receipt, d.receipt.link == p.link
	p.mu.Unlock()
	if !here {
		return nil // the connection is another by now: the message comes again in any case
	}
	m := (&Message{}).PutHeader(HeaderQueue, String(queue)).PutHeader(HeaderOffset, Int64(int64(d.offset)))
	switch {
	case delay == never:
		m.PutHeader("Delay", String("never"))
	case delay > 0:
		m.PutHeader("Delay", String(strconv.FormatFloat(delay.Seconds(), 'f', -1, 64)))
	}
	if reason != "" {
		m.PutHeader("Reason", String(reason))
	}
	_, err := r.session.out.publish(context.Background(), &publication{
		m: m, to: v5Prefix + topic.QueuePrefix + queue + wire.Nack, qos: 1, only: r.link,
	})
	if errors.Is(err, ErrNotConnected) {
		return nil
	}
	r.settle()
	return err
}
