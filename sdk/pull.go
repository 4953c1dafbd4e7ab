package sdk

import (
	"context"
	"errors"
	"fmt"
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
