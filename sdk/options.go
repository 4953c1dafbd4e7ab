package sdk

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Option configures a Client.
type Option func(*settings)

// settings is what options fill in.
type settings struct {
	url            *url.URL
	clientID       string
	named          bool // the program has chosen it
	user, password string
	credentials    func() (user, password string)
	tls            *tls.Config
	header         http.Header
	keepAlive      time.Duration
	connectTimeout time.Duration
	writeTimeout   time.Duration
	minBackoff     time.Duration
	maxBackoff     time.Duration
	keepTrying     bool
	background     bool // do not wait for the first connection
	durable        bool
	window         int
	windowBytes    int
	admin          string
	adminToken     string
	logger         *slog.Logger
	observer       Observer
	onState        func(State)
	will           *Message
	willQoS        byte
}

func newSettings(address string, opts []Option) (*settings, error) {
	if !strings.Contains(address, "://") {
		address = "mqtt://" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("edgemq: broker's address: %w", err)
	}
	switch u.Scheme {
	case "mqtt", "tcp", "mqtts", "ssl", "tls", "ws", "wss", "unix":
	default:
		return nil, fmt.Errorf("edgemq: broker's address: scheme %q is not mqtt, mqtts, ws, wss or unix", u.Scheme)
	}
	s := &settings{
		url: u, keepAlive: 30 * time.Second, connectTimeout: 10 * time.Second, writeTimeout: 15 * time.Second,
		minBackoff: 20 * time.Millisecond, maxBackoff: 5 * time.Second,
		window: 16384, windowBytes: 16 << 20,
		logger: slog.New(slog.DiscardHandler), observer: nopObserver{},
	}
	if u.User != nil {
		s.user = u.User.Username()
		s.password, _ = u.User.Password()
	}
	for _, o := range opts {
		o(s)
	}
	if s.clientID == "" {
		host, _ := os.Hostname()
		s.clientID = fmt.Sprintf("sdk-%.20s-%s", host, strings.ToLower(rand.Text()[:10]))
	}
	return s, nil
}

// WithClientID sets the client id; the default is made up. Two clients with one id push each other out.
func WithClientID(id string) Option { return func(s *settings) { s.clientID, s.named = id, id != "" } }

// WithCredentials sets user name and password; they may stand in the address as well.
func WithCredentials(user, password string) Option {
	return func(s *settings) { s.user, s.password = user, password }
}

// WithCredentialsFunc sets a function that is asked for user name and password at each connection, for tokens that expire.
func WithCredentialsFunc(f func() (user, password string)) Option {
	return func(s *settings) { s.credentials = f }
}

// WithTLS sets the TLS configuration of mqtts:// and wss:// addresses.
func WithTLS(c *tls.Config) Option { return func(s *settings) { s.tls = c } }

// WithHTTPHeader sets headers of the WebSocket handshake of ws:// and wss:// addresses.
func WithHTTPHeader(h http.Header) Option { return func(s *settings) { s.header = h } }

// WithKeepAlive sets how often a quiet connection is probed; default 30 s. A dead one is noticed after 1.3 times that.
func WithKeepAlive(d time.Duration) Option { return func(s *settings) { s.keepAlive = d } }

// WithConnectTimeout bounds one attempt to connect; default 10 s.
func WithConnectTimeout(d time.Duration) Option { return func(s *settings) { s.connectTimeout = d } }

// WithWriteTimeout bounds one write to the connection, which is taken for lost if it does not end; default 15 s.
func WithWriteTimeout(d time.Duration) Option { return func(s *settings) { s.writeTimeout = d } }

// WithBackoff sets the pauses between attempts to connect again: from shortest, doubling, to longest. The default is 20 ms to 5 s.
func WithBackoff(shortest, longest time.Duration) Option {
	return func(s *settings) { s.minBackoff, s.maxBackoff = shortest, longest }
}

// WithPatience makes Dial go on trying until its context ends, where it otherwise fails with the first attempt.
func WithPatience() Option { return func(s *settings) { s.keepTrying = true } }

// WithSession makes the client's session outlive its connections: the broker keeps its subscriptions and what
// they have for it while it is away, for as long as the broker is configured to. It needs WithClientID. The next program of that
// id subscribes again within ten seconds of Dial: what nobody has subscribed to by then is acknowledged, and logged.
func WithSession() Option { return func(s *settings) { s.durable = true } }

// WithWindow bounds what is sent and not acknowledged: messages (at most 32000; default 16384) and their bytes
// (default 16 MiB). Sending blocks at the bound.
func WithWindow(messages, bytes int) Option {
	return func(s *settings) { s.window, s.windowBytes = min(max(messages, 1), 32000), max(bytes, 1) }
}

// WithAdmin sets the address of the broker's admin API (http://host:port), which seeking and asking for the lag need,
// and its token, if it has one.
func WithAdmin(address, token string) Option {
	return func(s *settings) { s.admin, s.adminToken = strings.TrimSuffix(address, "/"), token }
}

// WithLogger sets where the client logs to; default nowhere.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.logger = l } }

// WithObserver sets who is told of what happens, for metrics. See Metrics.
func WithObserver(o Observer) Option { return func(s *settings) { s.observer = o } }

// WithStateFunc sets a function that is called when the connection is lost, is back, or could not be made. It
// is called in turn and must not block.
func WithStateFunc(f func(State)) Option { return func(s *settings) { s.onState = f } }

// WithWill sets what the broker publishes if the client goes without saying goodbye. Of the message topic, body and Retain count.
func WithWill(m *Message, qos byte) Option {
	return func(s *settings) { s.will, s.willQoS = m, qos }
}

// State is the state of a client's connection.
type State struct {
	ClientID  string
	Connected bool
	Resumed   bool  // the broker still had the session (WithSession)
	Err       error // why the connection was lost or not made
	Attempt   int   // attempts since the connection was lost
	Pending   int   // messages sent and not acknowledged: they are sent again, in order, once connected
}

// Observer is told of what happens. Its methods are called often and from many goroutines; they must not block.
type Observer interface {
	Sent(bytes int)                           // a message was handed to the connection
	Acknowledged(latency time.Duration)       // the broker has it on disk
	Failed(known Knowledge)                   // a message was given up
	Received(bytes int)                       // a message came
	Duplicate()                               // a message came again and was not shown
	Connection(up bool)                       // the connection came up or was lost
	Handled(latency time.Duration, err error) // a PushConsumer's handler returned
}

type nopObserver struct{}

func (nopObserver) Sent(int)                     {}
func (nopObserver) Acknowledged(time.Duration)   {}
func (nopObserver) Failed(Knowledge)             {}
func (nopObserver) Received(int)                 {}
func (nopObserver) Duplicate()                   {}
func (nopObserver) Connection(bool)              {}
func (nopObserver) Handled(time.Duration, error) {}
