package sdk

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/edgemq/edgemq/broker/topic"
)

// Subscription is a stream of the messages of a topic filter.
type Subscription struct {
	c      *Client
	filter string // as subscribed to, without $v5/
	match  string // the topic filter proper
	buffer *Buffer[received]

	mu  sync.Mutex
	err error
}

type received struct {
	d delivery
	r *receipt
}

// looseBuffer bounds what a subscription keeps of messages that nobody takes: those of QoS 1 are bounded by the
// broker's window, those of QoS 0 by this; what comes on top of it is lost, as QoS 0 may be.
const looseBuffer = 1 << 16

// Subscribe subscribes to a topic filter, which may have wildcards or be a $share/<group>/<filter>: the messages
// published from now on, and the retained ones. Next takes them; each must be settled with Ack.
func (c *Client) Subscribe(ctx context.Context, filter string) (*Subscription, error) {
	f, err := topic.ParseFilter(filter, topic.Limits{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("edgemq: subscribe: %w", err)
	case f.V5 || f.Kind == topic.QueueAttach || f.Kind == topic.QueueBind:
		return nil, fmt.Errorf("edgemq: subscribe to %q: queues have consumers: PullConsumer", filter)
	}
	s := &Subscription{c: c, filter: filter, match: f.Filter}
	s.buffer = NewBuffer[received](BufferOptions{}, nil)
	c.mu.Lock()
	switch _, twice := c.subs[filter]; {
	case c.closed:
		c.mu.Unlock()
		return nil, ErrClosed
	case twice:
		c.mu.Unlock()
		return nil, fmt.Errorf("%w: subscription to %q", ErrInUse, filter)
	}
	c.unclaimed.claim(s)
	c.subs[filter] = s // before the SUBSCRIBE: its messages may come before its answer
	c.mu.Unlock()
	for {
		l, err := c.session.connected(ctx)
		if why := s.why(); why != nil {
			return nil, why // refused on a connection that was made meanwhile
		}
		if err == nil {
			err = l.subscribe(ctx, v5Prefix+filter)
		}
		if errors.Is(err, ErrNotConnected) {
			continue // subscribed to by the next connection as well, which is no harm
		}
		if err != nil {
			c.forget(s)
			return nil, err
		}
		return s, nil
	}
}

// Replay subscribes to the stored messages of a topic filter from a start, and then to those that come. A start
// is FromEarliest, FromTime, FromOffset, FromAgo.
func (c *Client) Replay(ctx context.Context, filter string, start Start) (*Subscription, error) {
	return c.Subscribe(ctx, "$s/"+start.text+"/"+filter)
}

// Start is where a replay or a seek begins.
type Start struct{ text string }

// String is the start as the broker reads it.
func (s Start) String() string { return s.text }

// FromEarliest starts with the oldest message kept.
func FromEarliest() Start { return Start{"earliest"} }

// FromLatest starts with what comes next.
func FromLatest() Start { return Start{"latest"} }

// FromTime starts with the first message stored at or after t.
func FromTime(t time.Time) Start { return Start{fmt.Sprint(t.UnixMicro())} }

// FromAgo starts with the messages of the last d.
func FromAgo(d time.Duration) Start { return Start{d.String()} }

// FromOffset starts with the message of this offset or the first after it.
func FromOffset(offset uint64) Start { return Start{fmt.Sprintf("offset:%d", offset)} }

func (c *Client) forget(s *Subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.subs[s.filter] == s {
		delete(c.subs, s.filter)
	}
}

func (s *Subscription) matches(name string) bool { return topic.Match(s.match, name) }

// put takes a delivery, on the reading goroutine.
func (s *Subscription) put(d delivery, r *receipt) {
	if d.id == 0 && s.buffer.Len() >= looseBuffer || s.buffer.Put(received{d, r}) != nil {
		r.settle()
	}
}

// Next returns the next message and waits for it. Messages are not acknowledged before Ack.
func (s *Subscription) Next(ctx context.Context) (*Delivery, error) {
	r, ok := s.buffer.TryTake()
	if !ok {
		s.c.session.out.hurry()
		var err error
		if r, err = s.buffer.Take(ctx); err != nil {
			if why := s.why(); why != nil {
				err = why
			}
			return nil, err
		}
	}
	d, err := r.d.open()
	if err != nil {
		d = &Delivery{}
		d.decode(r.d.topic, nil, r.d.payload)
	}
	d.receipt = r.r
	return d, nil
}

// All iterates over the messages until ctx ends or the subscription is closed; the reason is the last error. Each
// message is acknowledged when the loop asks for the next, unless it was settled.
func (s *Subscription) All(ctx context.Context) iter.Seq2[*Delivery, error] {
	return func(yield func(*Delivery, error) bool) {
		for {
			d, err := s.Next(ctx)
			if !yield(d, err) || err != nil {
				return
			}
			_ = d.Ack() // ErrStale: settled in the loop
		}
	}
}

// Close unsubscribes.
func (s *Subscription) Close() error {
	s.c.forget(s)
	defer s.end(ErrClosed)
	s.c.session.mu.Lock()
	l := s.c.session.link
	s.c.session.mu.Unlock()
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.c.o.connectTimeout)
	defer cancel()
	err := l.unsubscribe(ctx, v5Prefix+s.filter)
	if errors.Is(err, ErrNotConnected) {
		return nil // it will not be subscribed to again
	}
	return err
}

// why is what has ended the subscription, nil if nothing has.
func (s *Subscription) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// end wakes who waits in Next.
func (s *Subscription) end(err error) {
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	_ = s.buffer.Close()
}
