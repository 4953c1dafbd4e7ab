package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// dialing is how many connections are opened at once.
const dialing = 16

// each calls fn for 0 to n-1 from a few goroutines, and returns the first error.
func each(ctx context.Context, n, workers int, fn func(i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	for range min(n, workers) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := fn(i); err != nil {
					errs <- err
					next.Store(int64(n))
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return ctx.Err()
	}
}

// connectPublishers makes the publishers and connects them.
func (r *run) connectPublishers(ctx context.Context) error {
	for i := range r.Publishers {
		r.publishers = append(r.publishers, r.newPublisher(i))
	}
	r.begin("connecting", int64(r.Publishers))
	return each(ctx, r.Publishers, dialing, func(i int) error {
		defer r.progress.Add(1)
		return r.publishers[i].connect(ctx)
	})
}

// publish has all publishers publish, and notes acknowledgements and how long it took. broken ends it early.
func (r *run) publish(outer context.Context, result *Result, broken <-chan struct{}) error {
	ctx, cancel := context.WithCancel(outer)
	defer cancel()
	var wg sync.WaitGroup
	stop := context.AfterFunc(ctx, r.closePublishers)
	defer stop()
	errs := make(chan error, r.Publishers)
	start := now()
	r.last.Store(start)
	for _, p := range r.publishers {
		wg.Go(func() {
			if err := p.publish(start); err != nil {
				errs <- err
				cancel()
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	stalled := r.watch(done, broken)
	if stalled != nil {
		cancel()
		<-done
	}
	result.publishing = time.Duration(now() - start)
	if stalled != nil {
		return stalled
	}
	if outer.Err() != nil {
		return outer.Err()
	}
	select {
	case err := <-errs:
		return err
	default:
	}
	var acks Histogram
	for _, p := range r.publishers {
		acks.Merge(&p.acks)
		result.Messages += int64(p.sent)
	}
	result.Ack = acks.Latency()
	return nil
}

// errBroken means that a consumer has an error, which says more.
var errBroken = errors.New("a consumer failed")

// watch waits until publishing is done; broken, or nothing going on, is an error.
func (r *run) watch(done, broken <-chan struct{}) error {
	tick := time.NewTicker(r.stall / 10)
	defer tick.Stop()
	seen, since := r.progress.Load(), now()
	for {
		select {
		case <-done:
			return nil
		case <-broken:
			return errBroken
		case <-tick.C:
			if n := r.progress.Load(); n != seen {
				seen, since = n, now()
			} else if now()-since > int64(r.stall) {
				return fmt.Errorf("nothing was acknowledged for %v", r.stall)
			}
		}
	}
}

func (r *run) closePublishers() {
	for _, p := range r.publishers {
		if p.conn != nil {
			_ = p.conn.Close()
		}
	}
}

func (r *run) closeConsumers() {
	for _, c := range r.consumers {
		if c.conn != nil {
			_ = c.conn.Close()
		}
	}
}

// publishOnly is the load of kind Publish.
func (r *run) publishOnly(ctx context.Context, result *Result) error {
	defer r.closePublishers()
	if err := r.connectPublishers(ctx); err != nil {
		return err
	}
	r.begin("publishing", int64(r.Count))
	before := r.target.usage()
	if err := r.publish(ctx, result, nil); err != nil {
		return err
	}
	result.note(before, r.target.usage())
	result.Seconds = result.publishing.Seconds()
	result.rate(r.Size)
	return nil
}

// live is the load of kind Live.
func (r *run) live(ctx context.Context, result *Result) error {
	defer r.closePublishers()
	defer r.closeConsumers()
	if err := r.connectConsumers(ctx, true, true); err != nil {
		return err
	}
	if err := r.connectPublishers(ctx); err != nil {
		return err
	}
	r.begin("publishing and reading", int64(r.Count)*r.copies())
	before, start := r.target.usage(), now()
	wait, broken := r.consume()
	err := r.publish(ctx, result, broken)
	if err == nil {
		r.expect()
		err = r.await(ctx, broken)
	}
	if failed := wait(); failed != nil {
		err = failed
	}
	if err != nil {
		return err
	}
	result.note(before, r.target.usage())
	result.Seconds = time.Duration(max(r.last.Load()-start, 1)).Seconds()
	r.sumUp(result)
	var latency Histogram
	for _, c := range r.consumers {
		latency.Merge(&c.latency)
	}
	result.Delivery = latency.Latency()
	result.rate(r.Size)
	return nil
}

// drain is the load of kind Drain.
func (r *run) drain(ctx context.Context, result *Result) error {
	defer r.closePublishers()
	defer r.closeConsumers()
	defer r.clearSessions()
	for i := range r.Consumers {
		r.consumers = append(r.consumers, r.newConsumer(i))
	}
	r.begin("connecting", int64(r.Consumers))
	r.clearSessions() // of a run that was killed
	if err := r.connectConsumers(ctx, false, true); err != nil {
		return err
	}
	for _, c := range r.consumers {
		if err := c.conn.leave(); err != nil {
			return err
		}
	}
	if err := r.connectPublishers(ctx); err != nil {
		return err
	}
	r.begin("publishing", int64(r.Count))
	first := r.target.usage()
	if err := r.publish(ctx, result, nil); err != nil {
		return err
	}
	second := r.target.usage()
	result.note(first, second)
	if r.Restart {
		r.closePublishers()
		r.begin("restarting", 0)
		t := now()
		if err := r.target.Restarts(ctx); err != nil {
			return err
		}
		result.RestartSeconds = time.Duration(now() - t).Seconds()
		second = r.target.usage()
	}
	r.begin("reading", int64(r.Count)*r.copies())
	start := now()
	if err := r.connectConsumers(ctx, false, false); err != nil {
		return err
	}
	r.expect()
	r.last.Store(now())
	wait, broken := r.consume()
	err := r.await(ctx, broken)
	if err := errors.Join(err, wait()); err != nil {
		return err
	}
	result.note(second, r.target.usage())
	reading := time.Duration(max(r.last.Load()-start, 1))
	r.sumUp(result)
	result.PublishRate = float64(result.Messages) / result.publishing.Seconds()
	result.ReadRate = float64(result.Received) / reading.Seconds()
	result.Seconds = (result.publishing + reading).Seconds()
	result.rate(r.Size)
	return nil
}

// copies is how many consumers get each message.
func (r *run) copies() int64 {
	if r.All {
		return int64(r.Consumers)
	}
	return int64(max(1, r.Consumers/r.Topics)) // a guess where they are not split evenly: for the progress only
}

// connectConsumers makes the consumers if there are none yet, and connects them.
func (r *run) connectConsumers(ctx context.Context, clean, subscribe bool) error {
	if r.consumers == nil {
		for i := range r.Consumers {
			r.consumers = append(r.consumers, r.newConsumer(i))
		}
		r.begin("connecting", int64(r.Consumers))
	}
	return each(ctx, r.Consumers, dialing, func(i int) error {
		return r.consumers[i].connect(ctx, clean, subscribe)
	})
}

// consume starts the consumers. wait stops them and returns the first error; broken is closed if there is one before.
func (r *run) consume() (wait func() error, broken <-chan struct{}) {
	var wg sync.WaitGroup
	failed := make(chan struct{})
	var once sync.Once
	var first error
	for _, c := range r.consumers {
		wg.Go(func() {
			if err := c.consume(); err != nil {
				once.Do(func() { first = err; close(failed) })
			}
		})
	}
	return func() error {
		for _, c := range r.consumers {
			c.stop()
		}
		wg.Wait()
		return first
	}, failed
}

// expect says how many messages the consumers shall get, now that it is known.
func (r *run) expect() {
	var n int64
	for _, c := range r.consumers {
		s := c.check.topics
		for _, p := range r.publishers {
			for t := s.first; t < s.end; t += s.step {
				n += int64(p.seqs[t])
			}
		}
	}
	r.expected.Store(n)
	r.total.Store(n)
	r.arrive(0, now())
}

// await waits until everything has arrived, or nothing has for a while.
func (r *run) await(ctx context.Context, broken <-chan struct{}) error {
	tick := time.NewTicker(r.quiet / 10)
	defer tick.Stop()
	for r.received.Load() < r.expected.Load() {
		select {
		case <-r.arrived:
		case <-broken:
			return nil // the consumer's error says it
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if now()-r.last.Load() > int64(r.quiet) {
				return nil
			}
		}
	}
	return nil
}

// sumUp adds up what the consumers have found.
func (r *run) sumUp(result *Result) {
	result.Received = r.received.Load()
	result.Faults = &Faults{}
	for _, c := range r.consumers {
		result.Foreign += c.check.foreign
		result.Faults.Add(c.check.finish(func(p, t int) uint32 { return r.publishers[p].seqs[t] }))
	}
	result.Broken = result.Faults.Broken(r.QoS)
}

// clearSessions ends the durable sessions of a drain, as far as they can be reached.
func (r *run) clearSessions() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = each(ctx, len(r.consumers), dialing, func(i int) error {
		c := r.consumers[i]
		if c.conn != nil {
			_ = c.conn.Close()
		}
		again, err := r.dial(ctx, c.clientID(), true)
		if err != nil {
			return err
		}
		return again.leave()
	})
}

// idle is the load of kind Idle.
func (r *run) idle(ctx context.Context, result *Result) error {
	conns := make([]*conn, r.Consumers)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}()
	r.begin("connecting", int64(r.Consumers))
	var mu sync.Mutex
	var took Histogram
	before, start := r.target.usage(), now()
	err := each(ctx, r.Consumers, r.Window, func(i int) error {
		t := now()
		c, err := r.dial(ctx, fmt.Sprintf("bench-%s-i%d", r.id, i), true)
		if err != nil {
			return fmt.Errorf("after %d connections: %w", r.progress.Load(), err)
		}
		conns[i] = c
		if err := c.subscribe(r.QoS, []string{fmt.Sprintf("bench/%s/i%d", r.id, i)}); err != nil {
			return err
		}
		mu.Lock()
		took.Add(time.Duration(now()-t), 1)
		mu.Unlock()
		r.progress.Add(1)
		return nil
	})
	if err != nil {
		return err
	}
	result.Seconds = time.Duration(now() - start).Seconds()
	r.begin("idle", 0)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(r.settle):
	}
	after := r.target.usage()
	result.Connections = r.Consumers
	result.note(before, after)
	result.Connect = took.Latency()
	result.Rate = float64(r.Consumers) / result.Seconds
	if before.known {
		result.ConnectionKiB = float64(after.rss-before.rss) / 1024 / float64(r.Consumers)
	}
	return nil
}
