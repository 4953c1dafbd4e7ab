package admin

import (
	"encoding/json"
	"time"
)

// Error is the answer to what could not be done.
type Error struct {
	Error string `json:"error"`
}

// Done is the answer to what has no other.
type Done struct {
	OK       bool  `json:"ok"`
	Messages int64 `json:"messages,omitempty"` // that were moved or purged

	Offset uint64 `json:"offset,omitempty"` // of a reset: where the queue begins now
	Note   string `json:"note,omitempty"`   // why that is not what was asked for, if it is not
}

// Queue is a queue as it is now; counters begin at the broker's start.
type Queue struct {
	Name        string     `json:"name"`
	Bindings    []string   `json:"bindings"`
	Paused      bool       `json:"paused"`
	Members     int        `json:"members"`   // sessions attached
	Depth       int64      `json:"depth"`     // messages not settled
	LagBytes    int64      `json:"lag_bytes"` // and their bytes
	Oldest      *time.Time `json:"oldest,omitempty"`
	LagSeconds  float64    `json:"lag_seconds"` // age of the oldest
	InFlight    int        `json:"in_flight"`   // with consumers
	Retrying    int        `json:"retrying"`    // refused, to come again
	Cursor      uint64     `json:"cursor"`      // all below this offset is settled, and above it perhaps more
	NextOffset  uint64     `json:"next_offset"` // of the log: what the next message stored gets, so a cursor there has settled everything
	Sent        uint64     `json:"sent"`
	Settled     uint64     `json:"settled"`
	Expired     uint64     `json:"expired"`
	Redelivered uint64     `json:"redelivered"`
	Dead        uint64     `json:"dead"`    // gone to the dead letters
	Dropped     uint64     `json:"dropped"` // by its limits
	DeadLetter  string     `json:"dead_letter"`
	Settings    Settings   `json:"settings"` // in force
	Set         []string   `json:"set"`      // those that were set for this queue, and not by the broker's settings
}

// Settings are those of a queue. PATCH /v1/queues/<name> takes any of them, and null for what the broker's settings say.
// Durations are texts like 1h30m, or numbers of seconds.
type Settings struct {
	MaxInFlight   int      `json:"max_in_flight"`  // 0: the consumer's window
	MaxDeliveries int      `json:"max_deliveries"` // 0: any number
	RetryDelay    []string `json:"retry_delay"`
	DeadLetter    string   `json:"dead_letter"`
	Ordered       bool     `json:"ordered"`
	Exclusive     bool     `json:"exclusive"`
	AckTimeout    string   `json:"ack_timeout"` // 0s: none
	MaxMessages   int64    `json:"max_messages"`
	MaxBytes      int64    `json:"max_bytes"`
	MaxAge        string   `json:"max_age"`
	Overflow      string   `json:"overflow"` // drop_oldest or reject
}

// NewQueue is what POST /v1/queues takes.
type NewQueue struct {
	Name   string   `json:"name"`
	Topics []string `json:"topics,omitempty"`
	// Settings are as PATCH takes them.
	Settings map[string]json.RawMessage `json:"settings,omitempty"`
}

// Binding is what bind and unbind take.
type Binding struct {
	Filter string `json:"filter"`
}

// Reset is what reset takes: earliest, latest, a Unix time in µs, an RFC 3339 time, a duration back, or offset:<n>.
type Reset struct {
	To string `json:"to"`
}

// Move is what move takes; redrive takes it without To.
type Move struct {
	To    string `json:"to,omitempty"`
	Count *int   `json:"count,omitempty"` // from 1; nil for all
}

// Topic is a topic and what is stored of it.
type Topic struct {
	Name     string     `json:"name"`
	Messages uint64     `json:"messages"`
	Bytes    uint64     `json:"bytes"`
	First    uint64     `json:"first_offset,omitempty"`
	Last     uint64     `json:"last_offset,omitempty"`
	FirstAt  *time.Time `json:"first_time,omitempty"`
	LastAt   *time.Time `json:"last_time,omitempty"`
}

// Topics is a page of topics.
type Topics struct {
	Topics []Topic `json:"topics"`
	Next   string  `json:"next,omitempty"` // for the parameter after
}

// Message is a stored message. A payload that is not UTF-8 is in PayloadBase64.
type Message struct {
	Offset          uint64      `json:"offset"`
	Time            time.Time   `json:"time"`
	Topic           string      `json:"topic"`
	Client          string      `json:"client"`
	QoS             byte        `json:"qos"`
	Retain          bool        `json:"retain,omitempty"`
	Expiry          *uint32     `json:"expiry_seconds,omitempty"`
	ContentType     string      `json:"content_type,omitempty"`
	ResponseTopic   string      `json:"response_topic,omitempty"`
	CorrelationData []byte      `json:"correlation_data_base64,omitempty"`
	User            [][2]string `json:"user_properties,omitempty"`
	Payload         *string     `json:"payload,omitempty"`
	PayloadBase64   []byte      `json:"payload_base64,omitempty"`
	UTF8            bool        `json:"payload_is_text,omitempty"` // declared by the publisher
}

// Messages is a page of messages.
type Messages struct {
	Messages []Message `json:"messages"`
	Next     uint64    `json:"next,omitempty"` // for the parameter offset, if there may be more
}

// Session is a client's session.
type Session struct {
	Client        string         `json:"client"`
	Connected     bool           `json:"connected"`
	Remote        string         `json:"remote,omitempty"`
	User          string         `json:"user,omitempty"`
	Protocol      string         `json:"protocol,omitempty"`
	Since         *time.Time     `json:"since,omitempty"` // of the connection, or of being offline
	Durable       bool           `json:"durable"`
	Expiry        *uint32        `json:"expiry_seconds,omitempty"` // absent: never
	Will          bool           `json:"will,omitempty"`
	InFlight      int            `json:"in_flight"`
	Receiving     int            `json:"receiving,omitempty"`
	Depth         int64          `json:"depth"` // messages not settled, of ordinary subscriptions
	LagBytes      int64          `json:"lag_bytes"`
	Oldest        *time.Time     `json:"oldest,omitempty"`
	Subscriptions []Subscription `json:"subscriptions,omitempty"`
	Filters       int            `json:"filters"`
}

// Subscription is one filter of a session.
type Subscription struct {
	Filter string `json:"filter"`
	QoS    byte   `json:"qos"`
	ID     uint32 `json:"id,omitempty"`
}

// Sessions is a page of sessions.
type Sessions struct {
	Sessions []Session `json:"sessions"`
	Next     string    `json:"next,omitempty"` // for the parameter after
}

// Connection is an open connection.
type Connection struct {
	Client   string    `json:"client,omitempty"`
	Remote   string    `json:"remote"`
	Protocol string    `json:"protocol,omitempty"`
	Since    time.Time `json:"since"`
}

// Status is the broker at a glance.
type Status struct {
	Version       string    `json:"version"`
	Started       time.Time `json:"started"`
	Ready         bool      `json:"ready"`
	Sync          string    `json:"sync"`
	Connections   int       `json:"connections"`
	Sessions      int       `json:"sessions"`
	Subscriptions int       `json:"subscriptions"`
	Queues        int       `json:"queues"`
	Topics        int       `json:"topics"`
	Retained      int       `json:"retained"`
	MessagesIn    int64     `json:"messages_in"`
	MessagesOut   int64     `json:"messages_out"`
	Refused       int64     `json:"refused"`
	First         uint64    `json:"first_offset"`
	Next          uint64    `json:"next_offset"`
	StoreBytes    int64     `json:"store_bytes"`
	DiskFree      uint64    `json:"disk_free_bytes"`
	Damaged       uint64    `json:"damaged"`
	Full          bool      `json:"full"`
	Failed        string    `json:"failed,omitempty"`
}

// Store is the store in figures.
type Store struct {
	Sync              string  `json:"sync"`
	First             uint64  `json:"first_offset"`
	Next              uint64  `json:"next_offset"`
	Committed         uint64  `json:"committed_offset"`
	Flushed           uint64  `json:"flushed_offset"`
	Checkpointed      uint64  `json:"checkpointed_offset"`
	Indexed           uint64  `json:"indexed_offset"`
	Groups            uint64  `json:"commit_groups"`
	Records           uint64  `json:"records"`
	Syncs             uint64  `json:"fsyncs"`
	SyncP50           float64 `json:"fsync_p50_seconds"`
	SyncP99           float64 `json:"fsync_p99_seconds"`
	CommitP50         float64 `json:"commit_p50_seconds"`
	CommitP99         float64 `json:"commit_p99_seconds"`
	JournalBytes      int64   `json:"journal_bytes"`
	TailBytes         int64   `json:"tail_bytes"`
	UnflushedBytes    int64   `json:"unflushed_bytes"`
	CacheBytes        int64   `json:"cache_bytes"`
	Segments          int     `json:"segments"`
	SegmentBytes      int64   `json:"segment_bytes"`
	LedgerBytes       int64   `json:"ledger_bytes"`
	DeletedSegments   uint64  `json:"deleted_segments"`
	Checkpoints       uint64  `json:"checkpoints"`
	CheckpointAge     float64 `json:"checkpoint_age_seconds"`
	CheckpointSeconds float64 `json:"checkpoint_seconds"`
	DiskFree          uint64  `json:"disk_free_bytes"`
	Damaged           uint64  `json:"damaged"`
	Full              bool    `json:"full"`
	Failed            string  `json:"failed,omitempty"`
}
