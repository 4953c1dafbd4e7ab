package sdk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// Discovery finds brokers. Addresses is one that knows them beforehand; others may ask DNS, a registry, a cluster.
type Discovery interface {
	// Discover calls found with the addresses of all brokers (as for Dial), at once and then whenever they have changed, until
	// ctx ends. It may return nil earlier, if they will not change any more; after an error it is called again, a little later.
	Discover(ctx context.Context, found func(addresses []string)) error
}

// DiscoveryFunc is a Discovery.
type DiscoveryFunc func(ctx context.Context, found func(addresses []string)) error

// Discover calls f.
func (f DiscoveryFunc) Discover(ctx context.Context, found func(addresses []string)) error {
	return f(ctx, found)
}

// Addresses is the Discovery of brokers whose addresses are known.
func Addresses(addresses ...string) Discovery {
	return DiscoveryFunc(func(_ context.Context, found func([]string)) error {
		found(addresses)
		return nil
	})
}

// Brokers keeps a Client for each broker that a Discovery finds. A broker that cannot be reached is tried again and again; one that is
// not found any more gets nothing new, and its client is closed once what it has is acknowledged. It is safe for concurrent use.
type Brokers struct {
	opts   []Option
	logger *slog.Logger
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	clients  map[string]*Client // by address
	sorted   []*Client          // the same, in the order of their addresses
	retiring map[*Client]bool
	bad      error         // about an address that is none
	change   chan struct{} // closed when a connection comes up or fails, or brokers are found
	closed   bool
}

// goodbye is how long a broker that is not found any more is given to acknowledge what it was sent.
const goodbye = 30 * time.Second

// DialBrokers connects to brokers and returns when it has connected to one of them; ErrRefused means that none of them wants this client.
// The options are each client's; all have the same client id. The context bounds that wait only.
func DialBrokers(ctx context.Context, d Discovery, opts ...Option) (*Brokers, error) {
	o, err := newSettings("", opts)
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.Background())
	b := &Brokers{logger: o.logger, cancel: cancel, clients: map[string]*Client{}, retiring: map[*Client]bool{}, change: make(chan struct{})}
	b.opts = append(slices.Clone(opts), WithClientID(o.clientID), func(s *settings) {
		s.named, s.background, s.onState = o.named, true, func(st State) {
			b.changed()
			if o.onState != nil {
				o.onState(st)
			}
		}
	})
	b.wg.Go(func() {
		for attempt := 1; run.Err() == nil; attempt++ {
			err := d.Discover(run, func(addresses []string) { b.found(run, addresses) })
			if err == nil || run.Err() != nil {
				return
			}
			o.logger.Warn("looking for brokers failed", "component", "sdk", "client", o.clientID, "err", err)
			_ = pause(run, backoff(o, attempt))
		}
	})
	if err := b.await(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// await waits for a connection.
func (b *Brokers) await(ctx context.Context) error {
	for {
		b.mu.Lock()
		change, all, bad := b.change, b.sorted, b.bad
		b.mu.Unlock()
		if bad != nil {
			return bad
		}
		var why []error
		refused := 0
		for _, c := range all {
			if c.Connected() {
				return nil
			}
			err := c.session.lastError()
			if why = append(why, err); errors.Is(err, ErrRefused) {
				refused++
			}
		}
		if refused > 0 && refused == len(all) {
			return fmt.Errorf("edgemq: connect to any of %d brokers: %w", len(all), errors.Join(why...))
		}
		select {
		case <-change:
		case <-ctx.Done():
			return fmt.Errorf("edgemq: connect to any of %d brokers: %w", len(all), errors.Join(append(why, context.Cause(ctx))...))
		}
	}
}

func (b *Brokers) changed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.change)
	b.change = make(chan struct{})
}

// found makes clients for brokers that are new and lets go of those that are no more.
func (b *Brokers) found(ctx context.Context, addresses []string) {
	defer b.changed()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	for _, a := range addresses {
		if b.clients[a] != nil {
			continue
		}
		c, err := Dial(ctx, a, b.opts...)
		if err != nil {
			b.bad = err // DialBrokers returns it; after that there is only the log to tell
			b.logger.Warn("a broker's address cannot be used", "component", "sdk", "err", err)
			continue
		}
		b.clients[a] = c
	}
	for a, c := range b.clients {
		if slices.Contains(addresses, a) {
			continue
		}
		delete(b.clients, a)
		b.retiring[c] = true
		b.wg.Go(func() { b.retire(ctx, c) })
	}
	b.sorted = nil
	for _, a := range slices.Sorted(maps.Keys(b.clients)) {
		b.sorted = append(b.sorted, b.clients[a])
	}
}

// retire closes a client when what it was given is acknowledged. If the broker cannot be reached there is nothing to wait for.
func (b *Brokers) retire(ctx context.Context, c *Client) {
	ctx, cancel := context.WithTimeout(ctx, goodbye)
	defer cancel()
	if c.Connected() {
		_ = c.session.out.flush(ctx)
	}
	_ = c.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.retiring, c)
}

// Clients returns the clients of the brokers that there are now, in the order of their addresses, to make consumers on.
func (b *Brokers) Clients() []*Client {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sorted // never changed in place
}

// every returns the retiring ones as well.
func (b *Brokers) every() []*Client {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append(slices.Clone(b.sorted), slices.Collect(maps.Keys(b.retiring))...)
}

// Producer makes a producer that sends to any of the brokers. Brokers that fail or are slow are avoided for a while.
func (b *Brokers) Producer(opts ...ProducerOption) *Producer {
	return newProducer(b.Clients, b.every, opts)
}

// Close closes all clients. What is not acknowledged fails: Flush first.
func (b *Brokers) Close() error {
	b.mu.Lock()
	b.closed = true
	all := b.sorted
	b.mu.Unlock()
	b.cancel()
	var errs []error
	for _, c := range all {
		errs = append(errs, c.Close())
	}
	b.wg.Wait()
	return errors.Join(errs...)
}
