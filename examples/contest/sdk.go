package main

import (
	"context"
	"fmt"

	"github.com/edgemq/edgemq/sdk"
)

// sdkProduce is one producer with the SDK: send everything, then Flush.
func sdkProduce(ctx context.Context, addr string, p *plan, k int) error {
	c, err := sdk.Dial(ctx, addr, sdk.WithClientID(fmt.Sprintf("producer-%d", k)))
	if err != nil {
		return err
	}
	defer c.Close()
	producer := c.Producer()
	next := make([]int, p.names())
	var msg content
	for n := range p.count(k) {
		to := p.to(k, n)
		p.fill(&msg, k, to, next[to])
		next[to]++
		if _, err := producer.SendAsync(ctx, p.message(&msg, to)); err != nil {
			return err
		}
	}
	return producer.Flush(ctx)
}

// sdkConsume is one consumer with the SDK: attach, then Poll until there is nothing left.
func sdkConsume(ctx context.Context, addr string, p *plan, consumer int) (*check, error) {
	c, err := sdk.Dial(ctx, addr, sdk.WithClientID(fmt.Sprintf("consumer-%d", consumer)))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var topics []string
	for _, t := range p.topicsOf(consumer) {
		topics = append(topics, p.topic(t))
	}
	pull := c.PullConsumer()
	if err := pull.AttachQueue(ctx, p.queue(consumer), topics...); err != nil {
		return nil, err
	}
	ck := newCheck(p, consumer)
	for {
		d, err := pull.Poll(ctx)
		if err != nil {
			return ck, err
		}
		if d == nil {
			return ck, pull.Close()
		}
		name, queue := d.Topic(), false
		if q := d.Queue(); q != "" {
			name, queue = q, true
		}
		if _, err := ck.expect(name, queue, d.Body()); err != nil {
			return ck, err
		}
		if err := ck.compare(&d.Message); err != nil {
			return ck, fmt.Errorf("%s: %w", d.MessageID(), err)
		}
	}
}

// compare holds headers and properties against what was sent.
func (c *check) compare(m *sdk.Message) error {
	w := &c.want
	if m.MessageID() != w.id {
		return fmt.Errorf("MessageId %q, want %q", m.MessageID(), w.id)
	}
	if n := len(m.Properties()); n != w.n+1 {
		return fmt.Errorf("%d properties, want %d", n, w.n+1)
	}
	if got := m.Property("PRO_OFFSET"); got != sdk.String(w.offset) {
		return fmt.Errorf("PRO_OFFSET %v, want %s", got, w.offset)
	}
	for i := range w.n {
		if got := m.Property(w.names[i]); got != w.values[i] {
			return fmt.Errorf("property %s: %v %v, want %v %v", w.names[i], got.Kind(), got, w.values[i].Kind(), w.values[i])
		}
	}
	return nil
}
