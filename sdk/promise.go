package sdk

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Result is what is known of a message that the broker has on disk.
type Result struct {
	MessageID string    // that it has, whoever made it
	Broker    string    // the address it was sent to
	Partition Partition // where the router sent it
	// Offset is the message's place in that broker's log, where a replay or a seek may begin (FromOffset), and StoreTime when it was stored, by
	// the broker's clock, to the microsecond. Of a message that the broker had already, under the same MessageId, they are those of the
	// first. They are zero for a delayed message, which has no place before it is due.
	Offset    uint64
	StoreTime time.Time
	Latency   time.Duration // from sending to the acknowledgement
}

// Promise is the outcome of SendAsync, which comes later.
type Promise struct {
	b         *outbox
	to, id    string
	frame     []byte // nil once done
	size      int
	start     time.Time
	latency   time.Duration
	offset    uint64  // 0 if it is not known
	stored    int64   // µs
	refusal   *notice // the broker does not take it
	handed    bool    // to a connection: it may have been sent
	done      bool
	bound     bool // to one connection
	abandoned bool // nobody waits any more, but the packet id is in use
	err       *SendError
	ch        chan struct{}
	onDone    func(*Promise)
	partition Partition
}

var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Done is closed when the outcome is known.
func (p *Promise) Done() <-chan struct{} {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	return p.doneLocked()
}

func (p *Promise) doneLocked() <-chan struct{} {
	if p.done {
		return closedChan
	}
	if p.ch == nil {
		p.ch = make(chan struct{})
	}
	return p.ch
}

// Wait waits for the outcome: nil means that the broker has the message on disk, a *SendError says what is known
// otherwise. If ctx ends first, Wait returns its error, and the message stays under way.
func (p *Promise) Wait(ctx context.Context) (Result, error) { return p.wait(ctx, false) }

// wait is Wait, and may give the message up when ctx ends.
func (p *Promise) wait(ctx context.Context, giveUp bool) (Result, error) {
	select {
	case <-p.Done():
		p.b.mu.Lock()
		defer p.b.mu.Unlock()
		if err := p.result(); err != nil {
			return Result{}, err
		}
		r := Result{MessageID: p.id, Broker: p.b.o.url.Host, Partition: p.partition, Offset: p.offset, Latency: p.latency}
		if p.stored != 0 {
			r.StoreTime = time.UnixMicro(p.stored)
		}
		return r, nil
	case <-ctx.Done():
		if !giveUp {
			return Result{}, fmt.Errorf("edgemq: %s is not acknowledged yet: %w", p.id, context.Cause(ctx))
		}
		return Result{}, p.b.giveUp(p, context.Cause(ctx))
	}
}

// result is the error without the trap of a nil *SendError in an error.
func (p *Promise) result() error {
	if p.err != nil {
		return p.err
	}
	return nil
}

// trimTopic is a topic as the application knows it.
func trimTopic(s string) string { return strings.TrimPrefix(s, v5Prefix) }
