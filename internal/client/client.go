// Package client is one face for the two MQTT clients that edgemq's tools and tests use: paho.golang for
// MQTT 5 and paho.mqtt.golang for 3.1.1. It keeps what callers rely on and the two libraries differ in:
//
//   - Publish hands messages over in order and returns at once; the Token is done when the broker's answer
//     is there, and it says success only if that answer was.
//   - Deliveries wait in an inbox of their own, so a slow consumer never stalls keep-alive, and each is
//     acknowledged when the caller says so, or never.
//   - There is no reconnecting behind the caller's back: a lost connection ends the Client, and Err says why.
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/edgemq/edgemq/internal/diagnose"
)

// Version is an MQTT protocol version.
type Version byte

// The versions, with their numbers in CONNECT.
const (
	V311 Version = 4
	V5   Version = 5
)

// ParseVersion reads what users write: 5, 5.0, 3.1.1, 311.
func ParseVersion(s string) (Version, error) {
	switch strings.TrimPrefix(strings.ToLower(s), "v") {
	case "5", "5.0", "mqttv5":
		return V5, nil
	case "3.1.1", "311", "4", "mqttv311":
		return V311, nil
	}
	return 0, fmt.Errorf("MQTT version %q is not 5 or 3.1.1", s)
}

func (v Version) String() string {
	if v == V311 {
		return "3.1.1"
	}
	return "5"
}

const defaultTimeout = 10 * time.Second

// Options say where and how to connect.
type Options struct {
	URL            string // mqtt://, mqtts://, ws://, wss:// or unix://; user and password may stand in it
	TLS            TLS
	ID             string // client id; "" lets the broker choose (V5) or makes one up
	Version        Version
	CleanStart     bool
	SessionExpiry  uint32 // seconds, V5 only; 0xFFFFFFFF is for ever
	User, Password string
	KeepAlive      time.Duration // default 30 s
	ReceiveMaximum uint16        // deliveries the broker may have unacknowledged, V5 only; default 1024
	Timeout        time.Duration // for connecting and for each answer; default 10 s
}

// Property is a user property.
type Property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Message is an application message. What 3.1.1 cannot say is ignored there.
type Message struct {
	Topic   string
	Payload []byte
	QoS     byte
	Retain  bool

	ContentType     string
	ResponseTopic   string
	CorrelationData []byte
	Expiry          *uint32 // seconds
	UTF8            bool    // the payload is declared to be text
	User            []Property

	// Deliveries only.
	Duplicate      bool
	PacketID       uint16
	SubscriptionID *int
}

// Subscription is a filter and how to be served by it.
type Subscription struct {
	Filter            string
	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
	RetainHandling    byte
}

// Delivery is a received message.
type Delivery struct {
	Message
	ack func() error
}

// Ack tells the broker that the message has been dealt with. Acks must come in the order of the deliveries.
func (d *Delivery) Ack() error {
	if d.QoS == 0 {
		return nil
	}
	return d.ack()
}

// Client is a connection to a broker.
type Client interface {
	// Publish hands m to the connection, after all messages before it, and returns; it waits only while
	// the broker's receive window is full.
	Publish(ctx context.Context, m Message) (*Token, error)
	// Subscribe waits for the answer. The error is a *RefusedError if the broker refuses.
	Subscribe(ctx context.Context, s Subscription) error
	Unsubscribe(ctx context.Context, filter string) error
	// Next waits for the next delivery. Its error is ctx's, or Err's if the connection is gone.
	Next(ctx context.Context) (*Delivery, error)
	// Done is closed when the connection is gone, for whatever reason.
	Done() <-chan struct{}
	// Err says why the connection is gone; nil while it is not.
	Err() error
	ID() string
	// SessionPresent reports whether the broker had kept a session for this client.
	SessionPresent() bool
	// Close sends DISCONNECT and releases everything. It is safe to call more than once.
	Close() error
	// Drop closes the socket without a DISCONNECT, as a crash would.
	Drop()
}

var (
	// ErrLost means that the connection broke.
	ErrLost = errors.New("connection lost")
	// ErrClosed means that this side closed the connection.
	ErrClosed = errors.New("connection closed")
)

// RefusedError is a broker's "no".
type RefusedError struct {
	What   string // "connect", "publish to a/b"; "" if it ended the connection of its own accord
	Code   byte
	Reason string // the broker's own words; may be empty
	words  string // of the code
}

func (e *RefusedError) Error() string {
	out := fmt.Sprintf("%s: refused by the broker: %s (0x%02X)", e.What, e.words, e.Code)
	if e.What == "" {
		out = fmt.Sprintf("disconnected by the broker: %s (0x%02X)", e.words, e.Code)
	}
	if e.Reason != "" {
		out += ": " + e.Reason
	}
	return out
}

// ConnectError says why there is no connection to a broker, and what to try.
type ConnectError struct {
	Where string
	Err   error
	Hint  string // "" if there is none
}

func (e *ConnectError) Error() string {
	out := "connect to " + e.Where + ": " + e.Err.Error()
	if e.Hint != "" {
		out += "; " + e.Hint
	}
	return out
}

// Unwrap returns what happened.
func (e *ConnectError) Unwrap() error { return e.Err }

// unreachable makes a ConnectError. ctx is the caller's, since the time for connecting is over.
func unreachable(ctx context.Context, u *url.URL, err error) error {
	return &ConnectError{cmp.Or(u.Host, u.Path), err, diagnose.Hint(ctx, u, err)}
}

// Refused is the error for a CONNACK with a code that says no.
func Refused(v Version, code byte, reason string) error {
	words := codeWords(code)
	if v == V311 && int(code) < len(connack311) {
		words = connack311[code]
	}
	if v == V311 && code == 1 || code == 0x84 {
		reason = cmp.Or(reason, "it does not take MQTT "+v.String()+": try --mqtt with the other version")
	}
	return &RefusedError{What: "connect", Code: code, Reason: reason, words: words}
}

// connack311 are the return codes of MQTT 3.1.1.
var connack311 = [...]string{"accepted", "unacceptable protocol version", "client id rejected", "server unavailable", "bad user name or password", "not authorized"}

// Token is a publish under way.
type Token struct {
	done chan struct{}
	err  error
}

// Done is closed when the outcome is known.
func (t *Token) Done() <-chan struct{} { return t.done }

// Wait waits for the broker's answer (QoS 0: for nothing).
func (t *Token) Wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newToken() *Token { return &Token{done: make(chan struct{})} }

func (t *Token) finish(err error) {
	t.err = err
	close(t.done)
}

// Dial connects.
func Dial(ctx context.Context, o Options) (Client, error) {
	if o.KeepAlive == 0 {
		o.KeepAlive = 30 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Version == 0 {
		o.Version = V5
	}
	if o.ReceiveMaximum == 0 {
		o.ReceiveMaximum = 1024 // paho sets memory aside for each
	}
	u, err := ParseURL(o.URL)
	if err != nil {
		return nil, err
	}
	if u.User != nil {
		o.User = u.User.Username()
		o.Password, _ = u.User.Password()
	}
	conn, err := open(ctx, u, &o)
	if err != nil {
		return nil, unreachable(ctx, u, err)
	}
	connect := connect5
	if o.Version == V311 {
		connect = connect311
	}
	timed, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	c, err := connect(timed, conn, o)
	if err != nil {
		_ = conn.Close()
		if refused, ok := errors.AsType[*RefusedError](err); ok {
			return nil, refused
		}
		if ctx.Err() == nil && timed.Err() != nil {
			err = fmt.Errorf("no answer within %v", o.Timeout)
		}
		return nil, unreachable(ctx, u, err)
	}
	return c, nil
}
