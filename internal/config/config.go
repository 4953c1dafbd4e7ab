// Package config is the one place where edgemq's settings come together: defaults, a YAML file,
// environment variables EDGEMQ_… and command line flags, the later ones winning.
//
// The table in keys.go is the reference: each row is a key with its default, the values it may
// take, and its documentation. config.yaml is written from it (go test ./internal/config -update).
// Whatever does not match the table is refused by name, with the place it came from.
package config

import (
	"time"
)

// Config is everything that can be set. The table in keys.go documents each field.
type Config struct {
	Listeners []Listener
	Data      string
	Auth      Auth
	Log       Log
	Store     Store
	Retention Retention
	Topics    []Topic
	Session   Session
	Dedup     Dedup
	Queue     QueueDefaults
	Queues    []Queue
	Limits    Limits
	Admin     Admin
	Sys       Sys
	Shutdown  Shutdown
}

// Sys says how often statistics are published under $SYS.
type Sys struct {
	Interval time.Duration
}

// Auth says who may connect and do what.
type Auth struct {
	Anonymous   string // AnonymousAuto, AnonymousLoopback, AnonymousTrue or AnonymousFalse
	UsersFile   string
	ACLFile     string
	TLSIdentity string // IdentityNone or IdentityCN
	ClientIDs   string // a key of clientIDs
}

// The values of Auth.Anonymous.
const (
	AnonymousAuto     = "auto"
	AnonymousLoopback = "loopback"
	AnonymousTrue     = "true"
	AnonymousFalse    = "false"
)

// Log says what is logged and how.
type Log struct {
	Level  string
	Format string
}

// Store holds the settings of the durable store.
type Store struct {
	Sync               string
	SyncInterval       time.Duration
	JournalFile        int64
	CheckpointBytes    int64
	CheckpointInterval time.Duration
	SegmentBytes       int64
	SharedBelow        int64
	TailBytes          int64
	CacheBytes         int64
	MinFree            int64
	QoS0               bool
	Exclude            []string
}

// Retention says when stored messages are deleted.
type Retention struct {
	Age    time.Duration
	Bytes  int64
	Topics []TopicRetention
}

// TopicRetention is the age limit of the topics that match Filter.
type TopicRetention struct {
	Filter string
	Age    time.Duration
}

// Topic says what is kept of the topics that match Filter.
type Topic struct {
	Filter      string
	Store       bool
	Keep        string
	MaxAge      time.Duration
	MaxBytes    int64
	MaxMessages int
	Overflow    string
	Protect     bool
}

// Session holds the settings of clients' sessions.
type Session struct {
	MaxExpiry   time.Duration
	V3Expiry    time.Duration
	Window      int
	MaxWindow   int
	WindowBytes int64
	MaxLag      Lag
}

// Lag is how far a clean session may fall behind.
type Lag struct {
	Bytes int64
	Time  time.Duration
}

// Dedup says how well publishers' @MessageIds are remembered.
type Dedup struct {
	Window    time.Duration
	PerClient int
	Total     int
}

// QueueDefaults hold for all queues.
type QueueDefaults struct {
	AutoCreate bool
}

// Queue is a queue that exists from the start, and what it is bound to.
type Queue struct {
	Name          string
	Topics        []string
	MaxInFlight   int
	MaxDeliveries int
	RetryDelay    []string
	DeadLetter    string
	Ordered       bool
	Exclusive     bool
	AckTimeout    time.Duration
	MaxMessages   int
	MaxBytes      int64
	MaxAge        time.Duration
	Overflow      string
}

// Limits bound what one client may use.
type Limits struct {
	ConnectTimeout time.Duration
	MaxPacket      int64
	MaxQoS         int
	Retain         bool
	MaxTopicLevels int
	MaxTopicBytes  int
	ReceiveMaximum int
	TopicAliases   int
	KeepAliveMax   time.Duration
	MaxConnections int
}

// Shutdown says how to stop.
type Shutdown struct {
	Timeout time.Duration
}

// Default returns the settings that hold where nothing else is said.
func Default() *Config {
	c, err := Load(Source{Env: []string{}})
	if err != nil {
		panic("config: the defaults are not valid: " + err.Error()) // a test loads them
	}
	return c
}
