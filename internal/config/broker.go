package config

import (
	"log/slog"
	"time"

	"github.com/edgemq/edgemq/broker"
	"github.com/edgemq/edgemq/broker/auth"
	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
)

// Broker is the settings as the broker takes them. There a zero means the default; here, where it can be
// set, it means that there is no limit.
func (c *Config) Broker(logger *slog.Logger) broker.Options {
	o := broker.Options{
		Store:             c.store(logger),
		Auth:              auth.Options{Users: c.Auth.UsersFile, Rules: c.Auth.ACLFile, IDs: clientIDs[c.Auth.ClientIDs]},
		CertificateNames:  c.Auth.TLSIdentity == IdentityCN,
		StoreQoS0No:       !c.Store.QoS0,
		Exclude:           c.Store.Exclude,
		NoQueueCreation:   !c.Queue.AutoCreate,
		MaxSessionExpiry:  seconds(c.Session.MaxExpiry),
		V3SessionExpiry:   seconds(c.Session.V3Expiry),
		Window:            c.Session.Window,
		MaxWindow:         c.Session.MaxWindow,
		WindowBytes:       int(c.Session.WindowBytes),
		MaxLagBytes:       orNone(c.Session.MaxLag.Bytes),
		MaxLagTime:        orNone(c.Session.MaxLag.Time),
		DedupWindow:       orNone(c.Dedup.Window),
		DedupCount:        c.Dedup.PerClient,
		DedupTotal:        c.Dedup.Total,
		ConnectTimeout:    c.Limits.ConnectTimeout,
		MaxPacket:         int(c.Limits.MaxPacket),
		MaxQoS:            orNone(c.Limits.MaxQoS),
		NoRetain:          !c.Limits.Retain,
		MaxTopicLevels:    c.Limits.MaxTopicLevels,
		MaxTopicBytes:     c.Limits.MaxTopicBytes,
		ReceiveMaximum:    c.Limits.ReceiveMaximum,
		TopicAliasMaximum: orNone(c.Limits.TopicAliases),
		MaxKeepAlive:      uint16(seconds(c.Limits.KeepAliveMax)),
		MaxConnections:    c.Limits.MaxConnections,
		Admin:             c.admin(),
		SysInterval:       orNone(c.Sys.Interval),
		ShutdownTimeout:   c.Shutdown.Timeout,
		Logger:            logger,
	}
	for _, l := range c.Listeners {
		bl := l.broker()
		bl.NoAnonymous = !c.Auth.anonymous(&l)
		o.Listeners = append(o.Listeners, bl)
	}
	for _, t := range c.Topics {
		o.Topics = append(o.Topics, t.broker())
	}
	for _, q := range c.Queues {
		o.Queues = append(o.Queues, q.broker())
	}
	return o
}

func (t *Topic) broker() broker.Topic {
	return broker.Topic{Filter: t.Filter, NoStore: !t.Store, Policy: store.TopicPolicy{
		MaxAge: t.MaxAge, MaxBytes: t.MaxBytes, MaxMessages: int64(t.MaxMessages),
		Reject: t.Overflow == "reject", Unprotected: !t.Protect, Last: t.Keep == "last",
	}}
}

func (q *Queue) broker() broker.Queue {
	p := feed.Policy{
		MaxInFlight: q.MaxInFlight, MaxDeliveries: q.MaxDeliveries, DeadLetter: q.DeadLetter, Ordered: q.Ordered, Exclusive: q.Exclusive, AckTimeout: q.AckTimeout,
		Limits: feed.Limits{MaxMessages: int64(q.MaxMessages), MaxBytes: q.MaxBytes, MaxAge: q.MaxAge, Reject: q.Overflow == "reject"},
	}
	if q.MaxDeliveries == 0 {
		p.MaxDeliveries = -1 // for the broker 0 is the default
	}
	for _, s := range q.RetryDelay {
		d, err := ParseDuration(s)
		if err != nil {
			panic("config: " + err.Error()) // Load has checked the word
		}
		p.RetryDelay = append(p.RetryDelay, d)
	}
	return broker.Queue{Name: q.Name, Topics: q.Topics, Policy: p}
}

func (c *Config) store(logger *slog.Logger) store.Options {
	sync, err := store.ParseSyncMode(c.Store.Sync)
	if err != nil {
		panic("config: " + err.Error()) // Load has checked the word
	}
	return store.Options{
		Dir:                c.Data,
		Sync:               sync,
		SyncInterval:       c.Store.SyncInterval,
		JournalFileBytes:   c.Store.JournalFile,
		CheckpointBytes:    c.Store.CheckpointBytes,
		CheckpointInterval: c.Store.CheckpointInterval,
		SegmentBytes:       c.Store.SegmentBytes,
		SharedBelow:        c.Store.SharedBelow,
		TailBytes:          c.Store.TailBytes,
		CacheBytes:         c.Store.CacheBytes,
		RetainAge:          c.Retention.Age,
		RetainBytes:        c.Retention.Bytes,
		MinFree:            uint64(c.Store.MinFree),
		MaxAge:             c.maxAge(),
		Logger:             logger,
	}
}

// maxAge is the store's question for the age limit of a topic: 0 is retention.age, negative is none.
func (c *Config) maxAge() func(string) time.Duration {
	if len(c.Retention.Topics) == 0 {
		return nil
	}
	return func(name string) time.Duration {
		for _, r := range c.Retention.Topics {
			if topic.Match(r.Filter, name) {
				return orNone(r.Age)
			}
		}
		return 0
	}
}

// orNone turns the 0 of the settings, no limit, into the negative number of the options.
func orNone[T int | int64 | time.Duration](v T) T {
	if v == 0 {
		return -1
	}
	return v
}

// seconds rounds up: half a second must not become none.
func seconds(d time.Duration) uint32 {
	return uint32((d + time.Second - 1) / time.Second)
}
