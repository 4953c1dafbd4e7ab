package sdk

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Client is a connection to a broker that is made again whenever it is lost. It is safe for concurrent use.
type Client struct {
	o       *settings
	session *session

	mu       sync.Mutex
	subs     map[string]*Subscription // by filter
	children map[closer]struct{}      // what Close closes first
	ids      map[string]bool          // client ids of consumers' connections
	closed   bool
	requests requests
	http     http.Client // of the admin API

	unclaimed unclaimed
}

type closer interface{ Close() error }

// Dial connects to a broker: mqtt://host:port, mqtts://, ws://, wss:// or unix:///path, with user and password in it if
// need be. The context bounds the first connection only.
func Dial(ctx context.Context, address string, opts ...Option) (*Client, error) {
	o, err := newSettings(address, opts)
	if err != nil {
		return nil, err
	}
	return dialSettings(ctx, o)
}

func dialSettings(ctx context.Context, o *settings) (*Client, error) {
	c := &Client{o: o, subs: map[string]*Subscription{}, children: map[closer]struct{}{}, ids: map[string]bool{}}
	c.http.Transport = &http.Transport{Proxy: http.ProxyFromEnvironment}
	c.session = &session{o: o, id: o.clientID, receive: c.receive, ready: c.ready, receipts: true}
	c.unclaimed.over = !o.durable
	if err := startSession(ctx, c.session); err != nil {
		return nil, err
	}
	c.waitForClaims()
	return c, nil
}

// ID is the client id.
func (c *Client) ID() string { return c.o.clientID }

// Connected reports whether there is a connection right now.
func (c *Client) Connected() bool {
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	return c.session.link != nil
}

// Pending is how many messages were sent and not acknowledged.
func (c *Client) Pending() int { return c.session.out.len() }

// Close ends the connection, and the producers and consumers of this client. What is not acknowledged fails:
// Flush first.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.unclaimed.stop()
	var all []closer
	for ch := range c.children {
		all = append(all, ch)
	}
	c.mu.Unlock()
	var errs []error
	for _, ch := range all {
		errs = append(errs, ch.Close())
	}
	c.session.close()
	c.http.CloseIdleConnections()
	c.mu.Lock()
	subs := c.subs
	c.subs = map[string]*Subscription{}
	c.mu.Unlock()
	for _, s := range subs {
		s.end(ErrClosed)
	}
	c.requests.start.Lock()
	defer c.requests.start.Unlock()
	if c.requests.sub != nil {
		<-c.requests.done
	}
	return errors.Join(errs...)
}

// adopt makes Close close ch as well.
func (c *Client) adopt(ch closer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.children[ch] = struct{}{}
	return nil
}

// lend gives a consumer a client id for its connection. The same ones are used again and again: the broker
// remembers clients.
func (c *Client) lend(what string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := c.o.clientID + "-" + what
	for n := 2; c.ids[id]; n++ {
		id = c.o.clientID + "-" + what + "-" + strconv.Itoa(n)
	}
	c.ids[id] = true
	return id
}

func (c *Client) takeBack(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ids, id)
}

func (c *Client) disown(ch closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.children, ch)
}

// ready subscribes again. A subscription that the broker refuses by now has ended; the rest goes on.
func (c *Client) ready(ctx context.Context, l *link) error {
	c.mu.Lock()
	filters := make([]string, 0, len(c.subs))
	for f := range c.subs {
		filters = append(filters, v5Prefix+f)
	}
	c.mu.Unlock()
	slices.Sort(filters)
	err := l.subscribe(ctx, filters...)
	all := refusals(err)
	for _, refused := range all {
		c.mu.Lock()
		s := c.subs[refused.Filter]
		delete(c.subs, refused.Filter)
		c.mu.Unlock()
		if s != nil {
			s.end(refused)
		}
	}
	if len(all) > 0 {
		return nil
	}
	return err
}

// receive hands a delivery to the subscriptions it belongs to.
func (c *Client) receive(l *link, d delivery) {
	c.mu.Lock()
	var to []*Subscription
	for _, s := range c.subs {
		if s.matches(d.topic) {
			to = append(to, s)
		}
	}
	r := &receipt{session: c.session, link: l, id: d.id}
	r.holders.Store(int32(max(len(to), 1)))
	kept := len(to) == 0 && c.unclaimed.keep(l, d, r)
	c.mu.Unlock()
	if len(to) == 0 {
		if !kept { // of a subscription given up, or an older life of the session
			r.settle()
		}
		return
	}
	slices.SortFunc(to, func(a, b *Subscription) int { return strings.Compare(a.filter, b.filter) })
	for _, s := range to {
		s.put(d, r)
	}
}
