package sdk

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/internal/wire"
)

// PullConsumer takes messages from a queue when asked to. It has a connection of its own, from AttachQueue to Close.
// Its place in the queue belongs to the queue: it outlives the consumer and the broker's restarts.
type PullConsumer struct {
	client  *Client
	o       consumerSettings
	session *session
	buffer  *Buffer[item]

	attach sync.Mutex // held by AttachQueue

	mu       sync.Mutex
	queue    string
	topics   []string
	link     *link // whose deliveries count
	epoch    int   // changed by Seek
	markers  int   // $caught-up yet to come on it
	err      error // why there is no link, if that is not the network
	closed   bool
	paused   chan struct{}        // closed by Resume; nil: not paused
	last     *Delivery            // to be acknowledged by the next Poll
	open     map[uint64]*Delivery // polled and not settled, by offset
	history  history
	marks    int        // markers in the buffer
	withheld []*receipt // acks withheld while the buffer is over its watermark
}

// item is what waits in the buffer: a delivery, or the marker that all before it was the backlog.
type item struct {
	d      delivery
	link   *link
	marker bool
}

// PullConsumer makes a consumer. It does nothing until it is attached to a queue.
func (c *Client) PullConsumer(opts ...ConsumerOption) *PullConsumer {
	p := &PullConsumer{client: c, open: map[uint64]*Delivery{}}
	p.o.buffer = BufferOptions{High: 800, Low: 400, HighBytes: 6 << 20, LowBytes: 3 << 20}
	for _, o := range opts {
		o(&p.o)
	}
	p.buffer = NewBuffer(p.o.buffer, func(i item) int { return len(i.d.payload) })
	return p
}

// AttachQueue attaches the consumer to a queue and binds the queue to topics (filters may have wildcards): it is
// given what is sent to the queue and to the topics, from the beginning or from where the queue's last consumer
// left off. A second call adds topics; ErrAttached is the answer to another queue, and changes nothing. ErrInUse
// means that the queue has a consumer (see WithShared).
func (p *PullConsumer) AttachQueue(ctx context.Context, queue string, topics ...string) error {
	if !topic.ValidQueue(queue) {
		return fmt.Errorf("%w: queue name %q", ErrDestination, queue)
	}
	for _, t := range topics {
		if f, err := topic.ParseFilter(t, topic.Limits{}); err != nil || f.Kind != topic.Plain || f.V5 {
			return fmt.Errorf("%w: topic filter %q", ErrDestination, t)
		}
	}
	p.attach.Lock()
	defer p.attach.Unlock()
	p.mu.Lock()
	switch {
	case p.closed:
		p.mu.Unlock()
		return ErrClosed
	case p.queue != "" && p.queue != queue:
		p.mu.Unlock()
		return fmt.Errorf("%w: %s, not %s", ErrAttached, p.queue, queue)
	}
	before := slices.Clone(p.topics)
	first := p.queue == ""
	p.queue = queue
	for _, t := range topics {
		if !slices.Contains(p.topics, t) {
			p.topics = append(p.topics, t)
		}
	}
	p.mu.Unlock()
	err := p.begin(ctx, first)
	if err != nil {
		p.mu.Lock()
		if p.topics = before; first {
			p.queue = ""
		}
		p.mu.Unlock()
	}
	return err
}

// begin connects, or subscribes to what was added.
func (p *PullConsumer) begin(ctx context.Context, first bool) error {
	if !first {
		return p.extend(ctx)
	}
	if err := p.client.adopt(p); err != nil {
		return err
	}
	o := *p.client.o
	o.durable, o.will = false, nil
	s := &session{o: &o, id: p.client.lend(p.queue), receive: p.receive, ready: p.ready, down: p.down}
	if err := startSession(ctx, s); err != nil {
		p.client.takeBack(s.id)
		p.client.disown(p)
		return err
	}
	p.mu.Lock()
	closed := p.closed // meanwhile
	p.session = s
	p.mu.Unlock()
	if closed {
		s.close()
		return ErrClosed
	}
	return nil
}

// errExtend ends a connection whose consumer was given more topics.
var errExtend = errors.New("attaching to more topics")

// extend binds more topics. The broker sends the marker to a consumer that attaches and not to one that adds to
// that, so the consumer attaches anew, once it is clear that the broker agrees.
func (p *PullConsumer) extend(ctx context.Context) error {
	p.mu.Lock()
	p.markers++ // no Poll is to take the old marker for the new one
	p.mu.Unlock()
	for {
		l, err := p.session.connected(ctx)
		if err == nil {
			err = l.subscribe(ctx, p.filters()...)
		}
		switch {
		case errors.Is(err, ErrNotConnected):
			continue
		case err == nil:
			l.fail(errExtend)
		default:
			p.mu.Lock()
			p.markers = max(p.markers-1, 0)
			p.mu.Unlock()
		}
		return err
	}
}

// filters are what attaches to the queue and binds it.
func (p *PullConsumer) filters() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	filters := []string{v5Prefix + topic.QueuePrefix + p.queue}
	for _, t := range p.topics {
		filters = append(filters, v5Prefix+topic.QueuePrefix+p.queue+"/"+t)
	}
	return filters
}

// ready attaches on a new connection.
func (p *PullConsumer) ready(ctx context.Context, l *link) error {
	err := p.claim(ctx, l)
	if err == nil {
		p.mu.Lock()
		p.link, p.markers = l, 1 // the broker's answer, once the backlog is through
		p.history.reconnected()
		p.mu.Unlock()
		err = l.subscribe(ctx, p.filters()...)
	}
	p.mu.Lock()
	p.err = nil
	if errors.Is(err, ErrInUse) || errors.Is(err, ErrRefused) {
		p.err = err
	}
	p.mu.Unlock()
	p.buffer.poke()
	return err
}

// claim makes sure that the queue has no other consumer.
func (p *PullConsumer) claim(ctx context.Context, l *link) error {
	if p.o.shared {
		return nil
	}
	err := l.subscribe(ctx, "$exclusive/"+wire.ClaimsQueue+p.queue)
	if errors.Is(err, ErrRefused) { // 3.1.1 does not say which
		return fmt.Errorf("%w (or the broker's rules do not let this client attach): queue %s", ErrInUse, p.queue)
	}
	return err
}

// down is called when the connection is lost: what was not polled comes again.
func (p *PullConsumer) down() {
	p.mu.Lock()
	p.link, p.withheld, p.marks = nil, nil, 0
	p.mu.Unlock()
	p.buffer.Clear()
	p.buffer.poke()
}

// receive takes what comes, on the reading goroutine.
func (p *PullConsumer) receive(l *link, d delivery) {
	marker := strings.HasSuffix(d.topic, wire.CaughtUp) && strings.HasPrefix(d.topic, topic.QueuePrefix)
	if marker {
		p.mu.Lock()
		p.marks++
		p.mu.Unlock()
	}
	_ = p.buffer.Put(item{d, l, marker}) // without a capacity: the broker's window is one
}

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

// Ack acknowledges a message by its offset, for those who keep offsets rather than deliveries.
func (p *PullConsumer) Ack(offset uint64) error {
	p.mu.Lock()
	d := p.open[offset]
	p.mu.Unlock()
	if d == nil {
		return ErrStale
	}
	return d.Ack()
}

// Pause makes polling wait until Resume. Nothing is acknowledged meanwhile, so the broker stops at its window.
func (p *PullConsumer) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused == nil {
		p.paused = make(chan struct{})
	}
}

// Resume ends a Pause.
func (p *PullConsumer) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused != nil {
		close(p.paused)
		p.paused = nil
	}
}

// Buffered is how many messages wait to be polled.
func (p *PullConsumer) Buffered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.buffer.Len()-p.marks, 0)
}

// Close detaches. What was polled last is acknowledged, unless acknowledging is manual; what was not settled is
// given to the queue's next consumer.
func (p *PullConsumer) Close() error {
	p.settleLast()
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	held, s := p.withheld, p.session
	p.withheld = nil
	p.mu.Unlock()
	for _, r := range held {
		r.settle()
	}
	_ = p.buffer.Close()
	if s != nil && !closed {
		s.close()
		p.client.takeBack(s.id)
		p.client.disown(p)
	}
	return nil
}
