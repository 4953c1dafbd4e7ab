package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

// consumer subscribes to its topics, acknowledges what comes and has it checked.
type consumer struct {
	*run
	id      int
	conn    *conn
	check   *checker
	latency Histogram
	out     []byte
	stopped atomic.Bool
}

func (r *run) newConsumer(id int) *consumer {
	c := &consumer{run: r, id: id, check: newChecker(r.Publishers, r.topicsOf(id))}
	c.check.tag = r.tag
	return c
}

func (c *consumer) clientID() string { return fmt.Sprintf("bench-%s-c%d", c.run.id, c.id) }

// filters are the subscriptions: the topics by name, or all of them in one.
func (c *consumer) filters() (filters []string) {
	if c.All && c.Topics > 1 {
		return []string{"bench/" + c.run.id + "/#"}
	}
	s := c.check.topics
	for t := s.first; t < s.end; t += s.step {
		filters = append(filters, c.names[t])
	}
	return filters
}

// connect opens the connection; subscribe is false where the session has the subscriptions already.
func (c *consumer) connect(ctx context.Context, clean, subscribe bool) (err error) {
	if c.conn, err = c.dial(ctx, c.clientID(), clean); err != nil {
		return err
	}
	if subscribe {
		if err = c.conn.subscribe(c.QoS, c.filters()); err != nil {
			_ = c.conn.Close()
			return fmt.Errorf("consumer %d: %w", c.id, err)
		}
	}
	return nil
}

// consume reads until the connection is gone; after stop that is no error.
func (c *consumer) consume() error {
	for {
		if err := c.take(now()); err != nil {
			return fmt.Errorf("consumer %d: %w", c.id, err)
		}
		if err := c.conn.fill(); err != nil {
			if c.stopped.Load() {
				return nil
			}
			return fmt.Errorf("consumer %d: %w", c.id, err)
		}
	}
}

// stop ends consume.
func (c *consumer) stop() {
	c.stopped.Store(true)
	_ = c.conn.SetReadDeadline(time.Unix(1, 0))
}

// take handles the frames that have been read, and answers them in one write.
func (c *consumer) take(t int64) error {
	before := c.check.got
	c.out = c.out[:0]
	for {
		frame, err := c.conn.next()
		if err != nil {
			return err
		}
		if frame == nil {
			break
		}
		if err := c.frame(frame, t); err != nil {
			return err
		}
	}
	if len(c.out) > 0 {
		if _, err := c.conn.Write(c.out); err != nil {
			return err
		}
	}
	if n := c.check.got - before; n > 0 {
		c.arrive(n, t)
	}
	return nil
}

func (c *consumer) frame(frame []byte, t int64) error {
	switch typ := packet.TypeOf(frame); typ {
	case packet.TypePublish:
		topic, id, payload, err := splitPublish(c.version, frame)
		if err != nil {
			return err
		}
		if at, ok := c.check.see(c.names, topic, payload); ok {
			c.latency.Add(time.Duration(t-at), 1)
		}
		switch frame[0] >> 1 & 3 {
		case 1:
			c.out = appendAck(c.out, packet.TypePuback, id)
		case 2:
			c.out = appendAck(c.out, packet.TypePubrec, id)
		}
	case packet.TypePubrel:
		id, err := parseAck(frame)
		if err != nil {
			return err
		}
		c.out = appendAck(c.out, packet.TypePubcomp, id)
	case packet.TypeDisconnect:
		return disconnected(frame)
	default:
		return fmt.Errorf("%w: %v to a consumer", errFrame, typ)
	}
	return nil
}

// arrive counts messages that have come, and wakes whoever waits for the last.
func (r *run) arrive(n, t int64) {
	r.last.Store(t)
	r.progress.Add(n)
	if r.received.Add(n) >= r.expected.Load() {
		select {
		case r.arrived <- struct{}{}:
		default:
		}
	}
}
