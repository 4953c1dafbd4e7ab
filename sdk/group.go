package sdk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Partitions describe a topic that is partitioned (WithPartitions) and the group of consumers that share it.
type Partitions struct {
	Topic  string // without the partition's number
	N      int    // partitions: <topic>/0 to <topic>/<n-1>
	Group  string // each message goes to one member of each group; without / + #
	Member string // this member's name in the group, without / + #; default the client's id
	// Allocation says who takes which partitions; default Averagely. All members must use the same.
	Allocation Allocation
	// OnHold is called when this member begins to hold a partition and when it has let it go.
	OnHold func(partition int, held bool)
}

// rebalance is how often members look whether their share has changed, and retry how soon they try again to take
// a partition whose last holder has not let it go yet.
const (
	rebalanceEvery = 20 * time.Second
	rebalanceRetry = 200 * time.Millisecond
)

// FromPartitions takes from the partitions of a topic that are this member's. Each partition has a queue in the
// broker, with the group's position in it, and the broker lets one consumer at a time have it: whatever members
// believe about each other for a moment, no partition has two holders. Order within a partition is kept.
func FromPartitions(t Partitions) Source {
	return Source{run: func(ctx context.Context, p *PushConsumer) error {
		if t.Allocation == nil {
			t.Allocation = Averagely()
		}
		if t.Member == "" {
			t.Member = p.client.o.clientID
		}
		for _, name := range []string{t.Group, t.Member} {
			if name == "" || strings.ContainsAny(name, "/+#\x00") {
				return fmt.Errorf("%w: group %q, member %q: each is to be a level of a topic", ErrDestination, t.Group, t.Member)
			}
		}
		if t.N <= 0 {
			return ErrNoPartitions
		}
		g := &group{t: t, p: p, held: map[int]*holder{}}
		return g.run(ctx)
	}}
}

// QueueOfPartition is the name of the queue that has a group's position in a partition, for admin tools.
func QueueOfPartition(group, topic string, partition int) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			return r
		}
		return '_'
	}, topic)
	if len(clean) > 64 {
		clean = clean[:64]
	}
	return fmt.Sprintf("%s.%s.%08x.%d", group, clean, uint32(hash(topic)), partition)
}

// group is a member at work.
type group struct {
	t       Partitions
	p       *PushConsumer
	members map[string]bool
	held    map[int]*holder
}

// holder is a partition that is held, or that somebody else has still.
type holder struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (g *group) presence() string { return "edgemq/groups/" + g.t.Group + "/" + g.t.Topic }

// run keeps to the member's share until ctx ends.
func (g *group) run(ctx context.Context) error {
	// A connection of its own, whose end tells the others: the Will takes the retained presence away.
	o := *g.p.client.o
	mine := g.presence() + "/" + g.t.Member
	o.will, o.willQoS = &Message{}, 1
	o.will.PutHeader(HeaderTopic, String(mine))
	o.will.Retain, o.durable, o.clientID = true, false, g.p.client.lend("group-"+g.t.Group)
	defer g.p.client.takeBack(o.clientID)
	c, err := dialSettings(ctx, &o)
	if err != nil {
		return err
	}
	defer c.Close()
	sub, err := c.Subscribe(ctx, g.presence()+"/+")
	if err != nil {
		return err
	}
	announce := func(ctx context.Context, body string) error {
		m := NewMessage(mine, []byte(body))
		m.Retain = true
		_, err := c.Producer().Send(ctx, m)
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if announce(ctx, "") != nil {
			c.session.abandon() // a clean goodbye has no Will, and the others would count with us for ever
		}
	}()
	if err := announce(ctx, "here"); err != nil {
		return err
	}
	changes := make(chan *Delivery)
	var wg sync.WaitGroup
	listen, stop := context.WithCancel(ctx)
	wg.Go(func() {
		for d, err := range sub.All(listen) {
			if err != nil {
				return
			}
			select {
			case changes <- d:
			case <-listen.Done():
				return
			}
		}
	})
	err = g.follow(ctx, changes, announce)
	g.release(slices.Collect(maps.Keys(g.held))...)
	stop()
	wg.Wait()
	return err
}

// follow takes and lets go of partitions as members come and go.
func (g *group) follow(ctx context.Context, changes <-chan *Delivery, announce func(ctx context.Context, body string) error) error {
	g.members = map[string]bool{g.t.Member: true}
	settle := time.NewTimer(rebalanceRetry) // the retained presence of the others comes first
	defer settle.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case d := <-changes:
			name := strings.TrimPrefix(d.Topic(), g.presence()+"/")
			switch {
			case len(d.Body()) > 0:
				g.members[name] = true
			case name != g.t.Member:
				delete(g.members, name)
			default: // our Will: the connection was lost and is back
				_ = announce(ctx, "here")
			}
			settle.Reset(rebalanceRetry / 4)
		case <-settle.C:
			if err := g.rebalance(ctx); err != nil {
				return err
			}
			settle.Reset(rebalanceEvery)
		}
	}
}

// rebalance compares what is held with what should be.
func (g *group) rebalance(ctx context.Context) error {
	all := make([]int, g.t.N)
	for i := range all {
		all[i] = i
	}
	mine, err := g.t.Allocation(g.t.Member, slices.Collect(maps.Keys(g.members)), all)
	if err != nil {
		return err
	}
	var lost []int
	for i := range g.held {
		if !slices.Contains(mine, i) {
			lost = append(lost, i)
		}
	}
	g.release(lost...)
	for _, i := range mine {
		if g.held[i] == nil {
			hctx, cancel := context.WithCancel(ctx)
			h := &holder{cancel, make(chan struct{})}
			g.held[i] = h
			go func() {
				defer close(h.done)
				g.hold(hctx, i)
			}()
		}
	}
	return nil
}

// release lets go of partitions, once no handler of theirs runs any more.
func (g *group) release(partitions ...int) {
	for _, i := range partitions {
		g.held[i].cancel()
	}
	for _, i := range partitions {
		<-g.held[i].done
		delete(g.held, i)
	}
}

// hold consumes a partition until ctx ends. As long as another member has it, it tries again.
func (g *group) hold(ctx context.Context, i int) {
	queue := QueueOfPartition(g.t.Group, g.t.Topic, i)
	for {
		s, err := fromQueue(queue, []string{fmt.Sprintf("%s/%d", g.t.Topic, i)}).open(ctx, g.p.client, g.p.opts)
		if err == nil {
			g.note(i, true)
			err = g.p.serve(ctx, s)
			g.note(i, false)
			_ = s.Close()
		}
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, ErrInUse) {
			g.p.client.o.logger.Warn("partition not held", "component", "sdk", "queue", queue, "err", err)
		}
		if !pause(ctx, rebalanceRetry) {
			return
		}
	}
}

func (g *group) note(i int, held bool) {
	if g.t.OnHold != nil {
		g.t.OnHold(i, held)
	}
}
