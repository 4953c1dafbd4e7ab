package sdk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
)

// requests are a client's questions that wait for their answers.
type requests struct {
	start   sync.Mutex // held while subscribing
	sub     *Subscription
	topic   string        // of sub
	done    chan struct{} // closed when the goroutine that reads sub has ended
	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan *Delivery
}

const replies = "edgemq/replies/"

// repliesTries is how many names a client without one of its own tries: enough for hundreds that ask at the same time.
const repliesTries = 8

// subscribeReplies subscribes to where this client's answers come. The broker stores answers and knows a topic's name for ever, so clients
// whose id is made up share a few names, which one at a time has: while few ask, a few.
func (c *Client) subscribeReplies(ctx context.Context) (sub *Subscription, name string, err error) {
	if !c.o.named {
		for try := range repliesTries {
			name = fmt.Sprint(replies, "any-", rand.IntN(4<<try))
			sub, err = c.Subscribe(ctx, "$exclusive/"+name)
			if err == nil || !errors.Is(err, ErrRefused) && !errors.Is(err, ErrInUse) {
				return sub, name, err
			}
		}
	}
	name = replies + c.o.clientID
	sub, err = c.Subscribe(ctx, name)
	return sub, name, err
}

// Request sends a message and returns the answer to it: what a responder sends to its ResponseTopic with its
// CorrelationData, as Respond and Reply do. Use a queue or a shared subscription to let many responders share the work.
func (c *Client) Request(ctx context.Context, m *Message) (*Delivery, error) {
	if m == nil {
		return nil, ErrNoMessage
	}
	if err := c.listen(ctx); err != nil {
		return nil, err
	}
	r := &c.requests
	answer := make(chan *Delivery, 1)
	r.mu.Lock()
	r.last++
	id, sub, name, done := r.last, r.sub, r.topic, r.done
	r.waiting[id] = answer
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.waiting, id)
	}()
	q := *m
	q.ResponseTopic = name
	q.CorrelationData = binary.BigEndian.AppendUint64(nil, id)
	if _, err := c.Producer().Send(ctx, &q); err != nil {
		return nil, err
	}
	select {
	case d := <-answer:
		return d, nil
	case <-done:
		return nil, fmt.Errorf("edgemq: no answer: %w", sub.why())
	case <-ctx.Done():
		return nil, fmt.Errorf("edgemq: no answer: %w", context.Cause(ctx))
	}
}

// listen subscribes to the answers, once.
func (c *Client) listen(ctx context.Context) error {
	r := &c.requests
	r.start.Lock()
	defer r.start.Unlock()
	if r.sub != nil {
		select {
		case <-r.done: // the broker has refused the subscription on a later connection; or we are closed, which Subscribe says
		default:
			return nil
		}
	}
	sub, name, err := c.subscribeReplies(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	if r.sub, r.topic = sub, name; r.waiting == nil {
		r.waiting = map[uint64]chan *Delivery{}
		r.last = rand.Uint64() // an answer that comes late to who had the topic before is none of ours
	}
	done := make(chan struct{})
	r.done = done
	r.mu.Unlock()
	go func() {
		defer close(done)
		for d, err := range sub.All(context.Background()) { // until the client is closed
			if err != nil {
				return
			}
			if len(d.CorrelationData) != 8 {
				continue
			}
			r.mu.Lock()
			ch := r.waiting[binary.BigEndian.Uint64(d.CorrelationData)]
			r.mu.Unlock()
			if ch != nil {
				select {
				case ch <- d:
				default: // a second answer
				}
			}
		}
	}()
	return nil
}

// Reply makes the answer to a request.
func Reply(request *Delivery, body []byte) (*Message, error) {
	if request.ResponseTopic == "" {
		return nil, errors.New("edgemq: the message asks for no answer")
	}
	m := NewMessage(request.ResponseTopic, body)
	m.CorrelationData = request.CorrelationData
	return m, nil
}

// Respond answers requests from a source until ctx ends. An answer is sent before its request is acknowledged, so a request is
// answered at least once. An error of f refuses the request as an error of a Handler does.
func (c *Client) Respond(ctx context.Context, from Source, f func(ctx context.Context, request *Delivery) ([]byte, error), opts ...ConsumerOption) error {
	p := c.Producer()
	return c.PushConsumer(func(ctx context.Context, d *Delivery) error {
		body, err := f(ctx, d)
		if err != nil {
			return err
		}
		m, err := Reply(d, body)
		if err != nil {
			return err
		}
		_, err = p.Send(ctx, m)
		return err
	}, opts...).Run(ctx, from)
}
