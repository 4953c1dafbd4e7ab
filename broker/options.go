package broker

import (
	"io/fs"
	"log/slog"
	"time"

	"github.com/edgemq/edgemq/broker/admin"
	"github.com/edgemq/edgemq/broker/auth"
	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/transport"
	"github.com/edgemq/edgemq/store"
)

// Listener is one address that clients connect to.
type Listener struct {
	Name    string // of the listener, for logs; unique
	Type    string // "tcp", "tls", "ws", "wss" or "unix"; "" means "tcp"
	Address string // host:port, where port 0 lets the system choose; of "unix" a path

	MaxConnections int           // 0 means no limit
	MaxPacket      int           // bytes; 0 means Options.MaxPacket
	ConnectTimeout time.Duration // from accept to CONNECT, with the handshakes of TLS and WebSocket; 0 means Options.ConnectTimeout

	NoAnonymous bool // clients need a user's name and password, or a certificate with Options.CertificateNames

	TLS     transport.TLSOptions // "tls" and "wss"
	Path    string               // "ws" and "wss"; "" means /mqtt
	Origins []string             // "ws" and "wss": hosts of web pages that may connect besides those of the same host; "*" for all
	Mode    fs.FileMode          // "unix": permissions of the socket; 0 means 0660
}

// Queue is a queue that exists from the start, bound to topics.
type Queue struct {
	Name   string
	Topics []string // filters
	Policy feed.Policy
}

// Topic says what is kept of the topics that match a filter.
type Topic struct {
	Filter  string
	NoStore bool              // their messages go to live subscribers only
	Policy  store.TopicPolicy // its MaxAge is for how long, 0 what Store.MaxAge or RetainAge says, negative for ever
}

// Options say how a broker behaves. internal/config fills them from config.yaml; every zero is a default.
type Options struct {
	Listeners []Listener // none means one on 127.0.0.1:1883
	Store     store.Options

	Auth             auth.Options
	CertificateNames bool // the name in a client's certificate is its user's

	StoreQoS0No bool     // QoS 0 messages go to live subscribers only
	Exclude     []string // filters of topics whose messages go to live subscribers only
	Topics      []Topic  // what is kept of which topics; the first that matches counts

	Queues           []Queue
	NoQueueCreation  bool          // queues are not created by using them
	MaxSessionExpiry uint32        // seconds; 0 means 0xFFFFFFFF, no limit
	V3SessionExpiry  uint32        // seconds, of 3.1.1 sessions that are not clean; 0 means never
	Window           int           // unacknowledged deliveries to a 3.1.1 client; 0 means 1024
	MaxWindow        int           // to an MQTT 5 client, which may ask for less; 0 means 1024
	WindowBytes      int           // and their bytes; 0 means 8 MiB
	MaxLagBytes      int64         // how far a clean session may fall behind; 0 means 1 GiB, negative no limit
	MaxLagTime       time.Duration // likewise; 0 means an hour, negative no limit

	DedupWindow time.Duration // how long a publisher's @MessageIds are remembered; 0 means 2 min, negative turns it off
	DedupCount  int           // ids of one publisher; 0 means 65,536, which is more than a client can have unacknowledged
	DedupTotal  int           // ids of all; 0 means 1,000,000

	MaxQoS   int  // of clients' publishes and of subscriptions; 0 means 2, negative 0
	NoRetain bool // no messages are retained, and none sent

	ConnectTimeout    time.Duration // from accept to CONNECT; 0 means 10 s
	MaxPacket         int           // bytes; 0 means 1 MiB
	MaxTopicLevels    int           // 0 means 128
	MaxTopicBytes     int           // at most 16384, for a name is a key in the state; 0 means 8192
	ReceiveMaximum    int           // unacknowledged publishes of an MQTT 5 client; 0 means 1024
	TopicAliasMaximum int           // 0 means 64, negative none
	MaxKeepAlive      uint16        // seconds; 0 leaves it to the client
	MaxConnections    int           // in all; 0 means no limit

	Admin       admin.Options
	SysInterval time.Duration // between statistics under $SYS; 0 means 10 s, negative none

	ShutdownTimeout time.Duration // for acknowledging what was accepted; 0 means 10 s

	Logger *slog.Logger // nil discards
}

// withDefaults fills in the zeros.
func (o Options) withDefaults() Options {
	if len(o.Listeners) == 0 {
		o.Listeners = []Listener{{Name: "default", Type: "tcp", Address: "127.0.0.1:1883"}}
	}
	def(&o.MaxQoS, 2)
	o.MaxQoS = min(max(0, o.MaxQoS), 2)
	def(&o.MaxSessionExpiry, 0xFFFFFFFF)
	def(&o.V3SessionExpiry, 0xFFFFFFFF)
	def(&o.Window, 1024)
	def(&o.MaxWindow, 1024)
	def(&o.WindowBytes, 8<<20)
	def(&o.MaxLagBytes, 1<<30)
	def(&o.MaxLagTime, time.Hour)
	def(&o.DedupWindow, 2*time.Minute)
	def(&o.DedupCount, 1<<16)
	def(&o.DedupTotal, 1_000_000)
	def(&o.ConnectTimeout, 10*time.Second)
	def(&o.MaxPacket, 1<<20)
	def(&o.MaxTopicLevels, 128)
	def(&o.MaxTopicBytes, 8192)
	def(&o.ReceiveMaximum, 1024)
	def(&o.TopicAliasMaximum, 64)
	def(&o.SysInterval, 10*time.Second)
	def(&o.ShutdownTimeout, 10*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Store.Logger = o.Logger
	return o
}

// def sets what is zero to its default.
func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
