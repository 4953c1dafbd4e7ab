package client

import (
	"context"
	"sync"
	"time"
)

// inboxBytes is where a consumer that is too slow begins to slow the connection down.
const inboxBytes = 64 << 20

// inbox holds what has been received and not yet taken. QoS 1 and 2 deliveries are bounded by the broker's
// window; QoS 0 is not, hence inboxBytes.
type inbox struct {
	mu     sync.Mutex
	items  []*Delivery
	bytes  int
	err    error         // set when nothing more comes
	change chan struct{} // closed and replaced at every change
}

func newInbox() *inbox { return &inbox{change: make(chan struct{})} }

func (b *inbox) changed() {
	close(b.change)
	b.change = make(chan struct{})
}

// put adds a delivery; it waits while the inbox is full of bytes.
func (b *inbox) put(d *Delivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.bytes > inboxBytes && b.err == nil {
		change := b.change
		b.mu.Unlock()
		<-change
		b.mu.Lock()
	}
	if b.err != nil {
		return
	}
	b.items = append(b.items, d)
	b.bytes += len(d.Payload)
	b.changed()
}

// next takes the oldest delivery.
func (b *inbox) next(ctx context.Context) (*Delivery, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		if len(b.items) > 0 {
			d := b.items[0]
			b.items[0] = nil
			b.items = b.items[1:]
			b.bytes -= len(d.Payload)
			b.changed()
			return d, nil
		}
		if b.err != nil {
			return nil, b.err
		}
		change := b.change
		b.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
		}
		b.mu.Lock()
		if ctx.Err() != nil && len(b.items) == 0 && b.err == nil {
			return nil, ctx.Err()
		}
	}
}

// end says that nothing more comes. What has to be acknowledged comes again on the next connection, so it
// goes; QoS 0 messages stay to be taken.
func (b *inbox) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return
	}
	b.err = err
	kept := b.items[:0]
	for _, d := range b.items {
		if d.QoS == 0 {
			kept = append(kept, d)
		}
	}
	b.items = kept
	b.changed()
}

// reasonPatience is how long a request that failed waits for the connection to say that it has ended, and why:
// the libraries fail requests first and tell the reason later.
const reasonPatience = 500 * time.Millisecond

// life is the end of a connection: the first reason counts.
type life struct {
	once  sync.Once
	done  chan struct{}
	err   error
	inbox *inbox
}

func newLife() life { return life{done: make(chan struct{}), inbox: newInbox()} }

func (l *life) end(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.done)
		l.inbox.end(err)
	})
}

func (l *life) Done() <-chan struct{} { return l.done }

func (l *life) Err() error {
	select {
	case <-l.done:
		return l.err
	default:
		return nil
	}
}

func (l *life) Next(ctx context.Context) (*Delivery, error) { return l.inbox.next(ctx) }
