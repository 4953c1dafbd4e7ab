package sdk

import (
	"context"
	"iter"
)

// How messages are taken from a PullConsumer.

// Poll returns the next message. It returns nil once the queue's backlog, as it was when this consumer attached,
// has all been returned, and nothing newer is here; before that it waits, as long as the connection takes. A later
// Poll returns what has come since. Before AttachQueue it returns nil.
func (p *PullConsumer) Poll(ctx context.Context) (*Delivery, error) {
	return p.poll(ctx, false)
}

// PollWait returns the next message and waits until there is one.
func (p *PullConsumer) PollWait(ctx context.Context) (*Delivery, error) {
	return p.poll(ctx, true)
}

// PollBatch returns the next messages, at most so many: it waits for the first as Poll does and takes with it what is here already.
// With automatic acknowledging the next call acknowledges them all.
func (p *PullConsumer) PollBatch(ctx context.Context, most int) ([]*Delivery, error) {
	first, err := p.Poll(ctx)
	if first == nil || err != nil {
		return nil, err
	}
	batch := []*Delivery{first}
	for len(batch) < most {
		d := p.next()
		if d == nil {
			break
		}
		batch = append(batch, d)
	}
	if !p.o.manual {
		last := batch[len(batch)-1]
		last.before = batch[: len(batch)-1 : len(batch)-1]
		p.mu.Lock()
		p.last = last
		p.mu.Unlock()
	}
	return batch, nil
}

// Messages iterates over messages, waiting for each, until ctx ends or the consumer is closed; the reason is the last error.
func (p *PullConsumer) Messages(ctx context.Context) iter.Seq2[*Delivery, error] {
	return func(yield func(*Delivery, error) bool) {
		for {
			d, err := p.PollWait(ctx)
			if !yield(d, err) || err != nil {
				return
			}
		}
	}
}

// Backlog iterates over what Poll returns until it returns nil: all that was waiting when the consumer attached, and what has come
// since. An error is the last.
func (p *PullConsumer) Backlog(ctx context.Context) iter.Seq2[*Delivery, error] {
	return func(yield func(*Delivery, error) bool) {
		for {
			d, err := p.Poll(ctx)
			if d == nil && err == nil {
				return
			}
			if !yield(d, err) || err != nil {
				return
			}
		}
	}
}

func (p *PullConsumer) poll(ctx context.Context, wait bool) (*Delivery, error) {
	p.settleLast()
	for {
		if err := p.whilePaused(ctx); err != nil {
			return nil, err
		}
		if d := p.next(); d != nil {
			if !p.o.manual {
				p.mu.Lock()
				p.last = d
				p.mu.Unlock()
			}
			return d, nil
		}
		changed := p.buffer.Changed()
		p.mu.Lock()
		queue, err, caught, closed := p.queue, p.err, p.link != nil && p.markers == 0, p.closed
		p.mu.Unlock()
		switch {
		case closed:
			return nil, ErrClosed
		case queue == "" && wait:
			return nil, ErrNotAttached
		case queue == "":
			return nil, nil
		case err != nil:
			return nil, err
		case p.buffer.Len() > 0:
			continue
		case caught && !wait:
			p.giveBack()
			return nil, nil
		}
		p.giveBack()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// giveBack sends the acks that wait, as the broker may be waiting for them.
func (p *PullConsumer) giveBack() {
	p.mu.Lock()
	var ready []*receipt
	if !p.buffer.Throttled() {
		ready, p.withheld = p.withheld, nil
	}
	s := p.session
	p.mu.Unlock()
	for _, r := range ready {
		r.settle()
	}
	if s != nil {
		s.out.hurry()
	}
}

func (p *PullConsumer) whilePaused(ctx context.Context) error {
	p.mu.Lock()
	paused := p.paused
	p.mu.Unlock()
	if paused == nil {
		return nil
	}
	select {
	case <-paused:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settleLast acknowledges what the last Poll returned.
func (p *PullConsumer) settleLast() {
	p.mu.Lock()
	d := p.last
	p.last = nil
	p.mu.Unlock()
	if d == nil {
		return
	}
	for _, b := range d.before {
		_ = b.Ack() // ErrStale: the application has settled it itself
	}
	_ = d.Ack()
}

// next takes the next message out of the buffer, nil if there is none.
func (p *PullConsumer) next() *Delivery {
	for {
		i, ok := p.buffer.TryTake()
		if !ok {
			return nil
		}
		if d := p.take(i); d != nil {
			return d
		}
	}
}

// take makes a Delivery of an item, nil if the application is not to see it.
func (p *PullConsumer) take(i item) *Delivery {
	r := &receipt{session: i.link.s, link: i.link, id: i.d.id}
	r.holders.Store(1)
	var d *Delivery
	if !i.marker {
		var err error
		if d, err = i.d.open(); err != nil {
			// Not an envelope: the broker is not what we take it for. Better shown than lost.
			d = &Delivery{}
			d.decode(i.d.topic, nil, i.d.payload)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case i.link != p.link:
		return nil // it comes again, by the new connection
	case i.marker:
		p.marks = max(p.marks-1, 0)
		if p.markers > 0 {
			p.markers--
		}
		p.history.caughtUp()
		return nil
	case d.offset != 0:
		if was := p.open[d.offset]; was != nil { // still with the application: settled by the new packet id
			was.receipt = r
			p.client.o.observer.Duplicate()
			return nil
		}
		if p.history.has(d.offset) {
			p.client.o.observer.Duplicate()
			r.settle()
			return nil
		}
		p.open[d.offset] = d
	}
	d.receipt, d.owner, d.epoch = r, p, p.epoch
	return d
}
