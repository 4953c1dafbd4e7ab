package sdk

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Cursors keep positions for consumers that manage their own, as those of replays and broadcasts do: for each
// topic and group, an offset for each partition. They live in the broker, in a retained message, and survive its
// restarts. (A queue needs none: its position is the broker's business.) A position is the offset to go on with; 0 is the beginning.
type Cursors struct {
	c     *Client
	group string

	mu     sync.Mutex
	topics map[string][]uint64
}

// Cursors returns the cursors of a group.
func (c *Client) Cursors(group string) *Cursors {
	return &Cursors{c: c, group: group, topics: map[string][]uint64{}}
}

func (k *Cursors) place(topic string) string { return "edgemq/cursors/" + k.group + "/" + topic }

// Load reads a topic's positions from the broker, one for each of n partitions. If there are more partitions than
// there were, the new ones begin at 0; if there are fewer, the rest are kept.
func (k *Cursors) Load(ctx context.Context, topic string, n int) ([]uint64, error) {
	at, err := k.read(ctx, topic)
	if err != nil {
		return nil, err
	}
	for len(at) < n {
		at = append(at, 0)
	}
	k.mu.Lock()
	k.topics[topic] = at
	k.mu.Unlock()
	return slices.Clone(at[:n]), nil
}

// read asks the broker for the retained message.
func (k *Cursors) read(ctx context.Context, topic string) ([]uint64, error) {
	sub, err := k.c.Subscribe(ctx, k.place(topic))
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	// Retained messages come first: once this one is back, there is none or it was before.
	mark := strings.Join([]string{"mark", k.c.o.clientID, k.c.Producer().idPrefix}, " ")
	if _, err := k.c.Producer().Send(ctx, NewMessage(k.place(topic), []byte(mark))); err != nil {
		return nil, err
	}
	var at []uint64
	for {
		d, err := sub.Next(ctx)
		if err != nil {
			return nil, err
		}
		_ = d.Ack()
		if string(d.Body()) == mark {
			return at, nil
		}
		var read []uint64
		if json.Unmarshal(d.Body(), &read) == nil {
			at = read
		}
	}
}

// Commit moves a partition's position forward. A smaller position than the one known is ignored.
func (k *Cursors) Commit(ctx context.Context, topic string, partition int, offset uint64) error {
	return k.set(ctx, topic, partition, offset, false)
}

// Reset sets a partition's position, backwards as well.
func (k *Cursors) Reset(ctx context.Context, topic string, partition int, offset uint64) error {
	return k.set(ctx, topic, partition, offset, true)
}

func (k *Cursors) set(ctx context.Context, topic string, partition int, offset uint64, force bool) error {
	k.mu.Lock()
	_, known := k.topics[topic]
	k.mu.Unlock()
	if !known {
		if _, err := k.Load(ctx, topic, partition+1); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock() // held while sending: positions must reach the broker in order
	at := k.topics[topic]
	switch {
	case partition < 0 || partition >= len(at):
		return fmt.Errorf("%w: %d of %d", ErrPartition, partition, len(at))
	case offset <= at[partition] && !force:
		return nil
	}
	at[partition] = offset
	body, err := json.Marshal(at)
	if err != nil {
		return err
	}
	m := NewMessage(k.place(topic), body)
	m.Retain = true
	_, err = k.c.Producer().Send(ctx, m)
	return err
}
