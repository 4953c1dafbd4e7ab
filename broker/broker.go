// Package broker puts edgemq together: store, feeds, sessions, mochi's server and the listeners; it starts
// them in that order and stops them in reverse, so that every publish that got in gets its answer.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"

	"github.com/edgemq/edgemq/broker/admin"
	"github.com/edgemq/edgemq/broker/auth"
	"github.com/edgemq/edgemq/broker/conn"
	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/session"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/broker/transport"
	"github.com/edgemq/edgemq/hooks"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// Broker is an MQTT broker over one data directory.
type Broker struct {
	opt       Options
	logger    *slog.Logger
	store     *store.Store
	hub       *feed.Hub
	queues    *feed.Queues
	auth      *auth.Authority
	sessions  *session.Manager
	server    *mqtt.Server
	listeners []*listener
	room      int // for connections, as far as file descriptors go; 0 is no limit
	admin     *admin.Server
	sys       *admin.Sys               // nil without statistics
	hubRef    atomic.Pointer[feed.Hub] // for the store's Protect, which is asked before there is a hub
}

// Open recovers the data directory and opens the listeners' addresses; nothing is served before Run.
func Open(o Options) (*Broker, error) {
	o = o.withDefaults()
	b := &Broker{opt: o, logger: o.Logger}
	var err error
	if b.auth, err = auth.New(o.Auth); err != nil {
		return nil, err
	}
	b.opt.topicPolicies()
	o = b.opt
	o.Store.Protect, o.Store.ProtectTopic = b.protect, b.protectTopic
	o.Store.InUse = b.inUse
	o.Store.Keys = admin.Keys
	o.Store.Mend = func(bucket record.Bucket, key []byte) (store.Mutation, bool) {
		return feed.MendCursor(key), bucket == record.BucketCursors
	}
	var linger int
	o.Store.MaxFiles, b.room, linger = descriptors(openFiles())
	transport.LimitLinger(linger)
	if b.room > 0 && o.MaxConnections > b.room {
		b.logger.Warn("fewer connections than limits.max_connections, for lack of file descriptors", "possible", b.room, "asked_for", o.MaxConnections)
	}
	if b.store, err = store.Open(o.Store); err != nil {
		return nil, err
	}
	if err := b.build(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// protect is the store's question for the lowest offset that is still needed.
func (b *Broker) protect() uint64 {
	if h := b.hubRef.Load(); h != nil {
		return h.Protect()
	}
	return 0 // recovery: keep everything
}

// protectTopic is the same for one topic.
func (b *Broker) protectTopic(name string) uint64 {
	if h := b.hubRef.Load(); h != nil {
		return h.ProtectTopic(name)
	}
	return 0
}

// inUse is the store's question for numbers that are kept outside it. It is asked while the store runs, so the parts are there.
func (b *Broker) inUse(topic, client func(number uint32)) (told uint64, err error) {
	told = b.hub.InUse(topic, client)
	return told, b.sessions.InUse(client)
}

func (b *Broker) build() error {
	o := b.opt
	b.hub = feed.NewHub(b.store, b.logger)
	var err error
	if b.queues, err = feed.OpenQueues(b.hub, !o.NoQueueCreation); err != nil {
		return err
	}
	limits := topic.Limits{MaxLevels: o.MaxTopicLevels, MaxBytes: o.MaxTopicBytes}
	var system session.System
	if o.SysInterval > 0 {
		b.sys = admin.NewSys(o.SysInterval, o.Admin.Version, b.logger)
		system = b.sys
	}
	b.sessions, err = session.NewManager(b.store, b.hub, b.queues, session.Options{
		MaxExpiry:         o.MaxSessionExpiry,
		V3Expiry:          o.V3SessionExpiry,
		Window:            o.Window,
		MaxWindow:         o.MaxWindow,
		WindowBytes:       o.WindowBytes,
		MaxLag:            feed.Lag{Bytes: max(0, o.MaxLagBytes), Time: max(0, o.MaxLagTime)},
		ReceiveMaximum:    o.ReceiveMaximum,
		TopicAliasMaximum: max(0, o.TopicAliasMaximum),
		MaxQoS:            byte(o.MaxQoS),
		NoRetain:          o.NoRetain,
		Topics:            limits,
		StoreQoS0:         !o.StoreQoS0No,
		DedupWindow:       max(0, o.DedupWindow),
		DedupCount:        o.DedupCount,
		DedupTotal:        o.DedupTotal,
		Exclude:           b.opt.excluded,
		System:            system,
		Auth:              b.auth,
	}, b.logger)
	if err != nil {
		return err
	}
	b.hubRef.Store(b.hub)
	if b.admin, err = admin.New(o.Admin, b.parts()); err != nil {
		return err
	}
	return b.listen()
}

// parts are what the API may see.
func (b *Broker) parts() admin.Parts {
	return admin.Parts{
		Store: b.store, Queues: b.queues, Sessions: b.sessions, Logger: b.logger,
		Topics: topic.Limits{MaxLevels: b.opt.MaxTopicLevels, MaxBytes: b.opt.MaxTopicBytes},
	}
}

// listen builds mochi's server and opens the addresses.
func (b *Broker) listen() error {
	o := b.opt
	quiet := slog.New(quietHandler{b.logger.Handler()})
	caps := mqtt.NewDefaultServerCapabilities()
	caps.MaximumClientWritesPending = 1 // a channel of that size a client; nothing goes through it
	caps.TopicAliasMaximum = 0          // aliases are the connection's
	caps.MaximumPacketSize = 0          // so are sizes
	b.server = mqtt.New(&mqtt.Options{
		Capabilities:            caps,
		ClientNetReadBufferSize: 32, // of the CONNECT, which mochi reads; what is larger is read past it
		SysTopicResendInterval:  1 << 30,
		Logger:                  quiet,
		InlineClient:            false,
	})
	door := &hooks.Handshake{Server: b.server}
	for _, h := range []mqtt.Hook{&hooks.Auth{}, &hooks.Sessions{Logger: b.logger}, &hooks.Persistence{Store: b.store}} {
		if err := door.Add(h); err != nil {
			return err
		}
	}
	co := conn.Options{
		MaxKeepAlive:     o.MaxKeepAlive,
		CertificateNames: o.CertificateNames,
		Quiet:            20 * time.Second,
		Connack: packet.Connack{
			ReceiveMaximum:    uint16(min(o.ReceiveMaximum, 65535)),
			HasMaximumQoS:     o.MaxQoS < 2, // [MQTT-3.2.2-9]
			MaximumQoS:        byte(o.MaxQoS),
			NoRetain:          o.NoRetain,
			TopicAliasMaximum: uint16(max(0, o.TopicAliasMaximum)),
		},
	}
	var total atomic.Int64
	for _, lo := range o.Listeners {
		def(&lo.Type, transport.TCP)
		def(&lo.MaxPacket, o.MaxPacket)
		def(&lo.ConnectTimeout, o.ConnectTimeout)
		co := co
		co.NoAnonymous = lo.NoAnonymous
		co.MaxPacket, co.Connack.MaximumPacketSize = lo.MaxPacket, uint32(lo.MaxPacket)
		l := &listener{opt: lo, conn: co, door: door, m: b.sessions, total: &total, limit: int64(lower(o.MaxConnections, b.room)), logger: b.logger.With("component", "listener")}
		if err := b.server.AddListener(l); err != nil {
			return err
		}
		b.listeners = append(b.listeners, l)
	}
	return nil
}

// ReloadAuth reads users and rules again and holds every connection to them. If they cannot be read, or something is wrong in them,
// everything stays as it is.
func (b *Broker) ReloadAuth() error {
	if err := b.auth.Reload(); err != nil {
		return err
	}
	b.sessions.Recheck()
	users, rules := b.auth.Counts()
	b.logger.Info("users and rules loaded again", "users", users, "rules", rules)
	return nil
}

// Addr returns the address of a listener, with the port that the system chose; "" if there is none of that name.
func (b *Broker) Addr(name string) string {
	for _, l := range b.listeners {
		if l.opt.Name == name {
			return l.Address()
		}
	}
	return ""
}

// Addrs returns the addresses of all listeners, in order.
func (b *Broker) Addrs() []string {
	var as []string
	for _, l := range b.listeners {
		as = append(as, l.Address())
	}
	return as
}

// AdminAddr returns the address of the HTTP API, "" if it has none.
func (b *Broker) AdminAddr() string { return b.admin.Addr() }

// Store returns the store, for inspection.
func (b *Broker) Store() *store.Store { return b.store }

// Sessions returns the sessions, for a look at them.
func (b *Broker) Sessions() *session.Manager { return b.sessions }

// Queues returns the queues, for managing them.
func (b *Broker) Queues() *feed.Queues { return b.queues }

// Run serves until ctx ends, then stops cleanly: what was accepted is committed and acknowledged, sessions and cursors are saved. It
// returns early, with an error, if the store fails for good.
func (b *Broker) Run(ctx context.Context) error {
	storeCtx, stopStore := context.WithCancel(context.WithoutCancel(ctx))
	defer stopStore()
	hubCtx, stopHub := context.WithCancel(storeCtx)
	defer stopHub()
	storeDone, hubDone, sweepDone := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { storeDone <- b.store.Run(storeCtx) }()
	go func() { hubDone <- b.hub.Run(hubCtx) }()
	go func() { sweepDone <- b.sessions.Run(hubCtx) }()
	adminDone := b.runAdmin(hubCtx)

	err := b.createQueues()
	if err == nil {
		err = b.server.Serve()
	}
	if err == nil {
		b.admin.Ready(true)
		for _, l := range b.listeners {
			b.logger.Info("listening", "listener", l.opt.Name, "type", l.opt.Type, "address", l.Address())
		}
		select {
		case <-ctx.Done():
		case err = <-storeDone:
			storeDone <- nil
			if err == nil {
				err = errors.New("store ended by itself")
			}
			b.logger.Error("store failed, stopping", "err", err)
		}
	}
	b.logger.Info("stopping")
	b.admin.Ready(false)
	b.stopServing(stopStore)
	stopHub()
	err = errors.Join(err, <-adminDone, <-hubDone, <-sweepDone)
	stopStore()
	return errors.Join(err, <-storeDone)
}

// runAdmin serves the API and makes statistics until ctx ends.
func (b *Broker) runAdmin(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() {
		var wg sync.WaitGroup
		if b.sys != nil {
			wg.Go(func() { b.sys.Run(ctx, b.parts()) })
		}
		err := b.admin.Run(ctx)
		wg.Wait()
		done <- err
	}()
	return done
}

// stopServing ends the listeners and every connection. Should one wait for a commit that does not come, since the disk is full,
// it ends with the store.
func (b *Broker) stopServing(stopStore func()) {
	for _, l := range b.listeners {
		l.Close(func(string) {}) // no new connections
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.opt.ShutdownTimeout)
	defer cancel()
	b.sessions.Shutdown(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, l := range b.listeners {
			l.wg.Wait()
		}
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		b.logger.Warn("connections do not end, stopping the store")
		stopStore()
		<-ended
	}
	// Only now: mochi counts connections in a way that does not allow for any that begin meanwhile.
	if err := b.server.Close(); err != nil {
		b.logger.Error("stopping mochi failed", "err", err)
	}
	b.sessions.Wait()
}

// createQueues creates and binds the queues of the configuration.
func (b *Broker) createQueues() error {
	for _, q := range b.opt.Queues {
		if !topic.ValidQueue(q.Name) {
			return fmt.Errorf("queue %q: a queue's name is 1 to 128 of A-Z a-z 0-9 _ . -", q.Name)
		}
		f, err := b.queues.Create(q.Name)
		if err == nil {
			err = b.queues.SetPolicy(q.Name, q.Policy)
		}
		if err != nil {
			return err
		}
		for _, filter := range q.Topics {
			flt, err := topic.ParseFilter(filter, topic.Limits{MaxLevels: b.opt.MaxTopicLevels, MaxBytes: b.opt.MaxTopicBytes})
			if err == nil && flt.Kind != topic.Plain {
				err = errors.New("only plain topic filters can be bound")
			}
			if err != nil {
				return fmt.Errorf("queue %q: bind %q: %w", q.Name, filter, err)
			}
			done := make(committed, 1)
			if err := b.queues.Bind(f, filter, done); err != nil {
				return fmt.Errorf("queue %q: bind %q: %w", q.Name, filter, err)
			}
			if err := <-done; err != nil {
				return fmt.Errorf("queue %q: bind %q: %w", q.Name, filter, err)
			}
		}
	}
	return b.queues.Enforce()
}

// committed is a store.Completion that tells a channel.
type committed chan error

// Committed implements store.Completion.
func (c committed) Committed(_ uint64, err error) { c <- err }

// Close releases the listeners' addresses and the data directory. Call it after Run has returned, or instead of Run.
func (b *Broker) Close() error {
	for _, l := range b.listeners {
		l.Close(func(string) {})
	}
	if b.admin != nil {
		b.admin.Close()
	}
	return b.store.Close()
}

// quietHandler passes mochi's errors on and nothing else: its warnings repeat, with whole packets, what we have said ourselves.
type quietHandler struct{ slog.Handler }

// Enabled implements slog.Handler.
func (h quietHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelError && h.Handler.Enabled(ctx, l)
}
