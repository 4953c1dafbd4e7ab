package sdk

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// Handler deals with a message. nil acknowledges it; an error refuses it, see WithRetry. The context ends when the
// consumer is stopped or the message is not this consumer's any more, as the connection it came by was lost.
type Handler func(ctx context.Context, d *Delivery) error

type pushSettings struct {
	concurrency int
	retry       func(attempt int, err error) (delay time.Duration, again bool)
	ordered     time.Duration
	key         func(*Delivery) string
}

// WithConcurrency sets how many messages are handled at once; default 1. Messages of one key are handled in order, one after the other.
func WithConcurrency(n int) ConsumerOption {
	return func(s *consumerSettings) { s.push.concurrency = max(n, 1) }
}

// WithKey sets what the key of a message is; the default is its ShardingKey, else its producer.
func WithKey(f func(*Delivery) string) ConsumerOption {
	return func(s *consumerSettings) { s.push.key = f }
}

// WithRetry sets what becomes of a message whose handler failed for the attempt-th time (from 1, see Delivery.Attempt): it comes again
// after the delay, or it goes to the queue's dead letters at once if again is false. The default leaves both to the queue's settings:
// after 1, 2, 4, 8 s, and to <name>-dead after 5 deliveries unless they say otherwise. It counts for queues only.
func WithRetry(f func(attempt int, err error) (delay time.Duration, again bool)) ConsumerOption {
	return func(s *consumerSettings) { s.push.retry = f }
}

// WithOrderedRetry makes a message whose handler failed be handled again after the delay, in place: messages of
// its key wait for it, so order is never lost.
func WithOrderedRetry(delay time.Duration) ConsumerOption {
	return func(s *consumerSettings) { s.push.ordered = max(delay, time.Millisecond) }
}

// Source is where a PushConsumer takes its messages from.
type Source struct {
	open func(ctx context.Context, c *Client, opts []ConsumerOption) (stream, error)
	run  func(ctx context.Context, p *PushConsumer) error
}

// stream is an open source.
type stream interface {
	Next(ctx context.Context) (*Delivery, error)
	Close() error
}

// FromQueue takes from a queue, bound to topics: each message goes to one of the queue's consumers (clustering).
func FromQueue(queue string, topics ...string) Source {
	return fromQueue(queue, topics, WithShared())
}

// FromQueueExclusively is FromQueue for one consumer at a time; Run fails with ErrInUse if there is one.
func FromQueueExclusively(queue string, topics ...string) Source { return fromQueue(queue, topics) }

func fromQueue(queue string, topics []string, more ...ConsumerOption) Source {
	return Source{open: func(ctx context.Context, c *Client, opts []ConsumerOption) (stream, error) {
		p := c.PullConsumer(slices.Concat(opts, more, []ConsumerOption{WithManualAck()})...)
		if err := p.AttachQueue(ctx, queue, topics...); err != nil {
			return nil, err
		}
		return pullStream{p}, nil
	}}
}

type pullStream struct{ *PullConsumer }

func (s pullStream) Next(ctx context.Context) (*Delivery, error) { return s.PollWait(ctx) }

// FromShare takes from the shared subscription $share/<group>/<filter>: each message published from now on goes to
// one member of the group (clustering without a queue).
func FromShare(group, filter string) Source { return FromTopic("$share/" + group + "/" + filter) }

// FromTopic takes the messages published to a topic filter from now on: each consumer gets all (broadcasting).
func FromTopic(filter string) Source {
	return Source{open: func(ctx context.Context, c *Client, _ []ConsumerOption) (stream, error) {
		return c.Subscribe(ctx, filter)
	}}
}

// PushConsumer calls a handler for each message.
type PushConsumer struct {
	client  *Client
	handler Handler
	opts    []ConsumerOption
	o       consumerSettings
}

// PushConsumer makes a consumer; Run starts it.
func (c *Client) PushConsumer(h Handler, opts ...ConsumerOption) *PushConsumer {
	p := &PushConsumer{client: c, handler: h, opts: opts}
	for _, o := range opts {
		o(&p.o)
	}
	p.o.push.concurrency = max(p.o.push.concurrency, 1)
	if p.o.push.key == nil {
		p.o.push.key = func(d *Delivery) string {
			if k := shardingKey(&d.Message); k != "" {
				return k
			}
			return d.Producer()
		}
	}
	return p
}

// Run handles messages until ctx ends, which is no error, or the source fails. It returns once no handler runs any more.
func (p *PushConsumer) Run(ctx context.Context, from Source) error {
	err := p.run(ctx, from)
	if ctx.Err() != nil {
		return nil // however far it had come
	}
	return err
}

func (p *PushConsumer) run(ctx context.Context, from Source) error {
	if from.run != nil {
		return from.run(ctx, p)
	}
	s, err := from.open(ctx, p.client, p.opts)
	if err != nil {
		return err
	}
	err = p.serve(ctx, s)
	if cerr := s.Close(); err == nil && !errors.Is(cerr, ErrClosed) {
		err = cerr
	}
	return err
}

// serve hands messages to lanes, one for each message that may be handled at once.
func (p *PushConsumer) serve(ctx context.Context, s stream) error {
	lanes := make([]*Buffer[*Delivery], p.o.push.concurrency)
	var wg sync.WaitGroup
	for i := range lanes {
		lanes[i] = NewBuffer[*Delivery](BufferOptions{}, nil) // the broker's window bounds it
		wg.Go(func() { p.lane(ctx, lanes[i]) })
	}
	var err error
	for {
		var d *Delivery
		if d, err = s.Next(ctx); err != nil {
			break
		}
		lane := lanes[0]
		if len(lanes) > 1 {
			lane = lanes[hash(p.o.push.key(d))%uint64(len(lanes))]
		}
		_ = lane.Put(d)
	}
	if ctx.Err() != nil {
		err = nil
	}
	for _, l := range lanes {
		if err != nil {
			l.Clear() // not settled: they come again to whoever is next
		}
		_ = l.Close()
	}
	wg.Wait()
	return err
}

// lane handles the messages of its keys, one after the other.
func (p *PushConsumer) lane(ctx context.Context, in *Buffer[*Delivery]) {
	for {
		d, err := in.Take(ctx)
		if err != nil {
			return
		}
		p.deal(ctx, d)
	}
}

// deal handles one message to its end.
func (p *PushConsumer) deal(ctx context.Context, d *Delivery) {
	if id := d.Header(HeaderTraceID).String(); id != "" {
		ctx = ContextWithTraceID(ctx, id)
	}
	for {
		link, ours := d.held()
		if !ours {
			return // the connection was lost: it comes again, to whoever is next
		}
		again := p.attempt(ctx, link, d)
		if ctx.Err() != nil || !again {
			return
		}
	}
}

// attempt handles a message once, in a context that ends with the connection it came by. It reports whether to go on.
func (p *PushConsumer) attempt(ctx, link context.Context, d *Delivery) (again bool) {
	hctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(link, func() { cancel(ErrNotConnected) })
	defer stop()
	start := time.Now()
	err := p.call(hctx, d)
	p.client.o.observer.Handled(time.Since(start), err)
	switch {
	case err == nil:
		_ = d.Ack() // ErrStale: the handler has settled it itself
		return false
	case hctx.Err() != nil:
		return true // not the handler's fault: again, if it is still ours
	case p.o.push.ordered == 0:
		p.refuse(d, err)
		return false
	}
	p.client.o.logger.Warn("handler failed, trying again in place", "component", "sdk", "offset", d.offset, "err", err)
	_ = pause(hctx, p.o.push.ordered)
	return true
}

// call calls the handler; its panic is an error like others, as one bad message must not stop the rest.
func (p *PushConsumer) call(ctx context.Context, d *Delivery) (err error) {
	defer func() {
		if r := recover(); r != nil {
			p.client.o.logger.Error("handler panicked", "component", "sdk", "offset", d.offset, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("edgemq: handler panicked: %v", r)
		}
	}()
	return p.handler(ctx, d)
}

// refuse sees to a message whose handler failed.
func (p *PushConsumer) refuse(d *Delivery, cause error) {
	attempt := d.Attempt()
	var delay time.Duration
	again := true
	if p.o.push.retry != nil {
		delay, again = p.o.push.retry(attempt, cause)
	}
	p.client.o.logger.Warn("handler failed", "component", "sdk", "offset", d.offset, "attempt", attempt, "again", again, "err", cause)
	if !again {
		_ = d.GiveUp(cause.Error())
		return
	}
	_ = d.Nack(delay, cause.Error())
}
