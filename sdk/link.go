package sdk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
)

// One connection of a session.

// link is one connection.
type link struct {
	s       *session
	socket  *socket
	paho    mqtt.Client
	resumed bool
	writer  sync.WaitGroup

	once   sync.Once
	lost   chan struct{}
	err    error
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc

	topics map[string]string      // so that a topic is one string, however often it comes
	told   atomic.Bool            // the broker says what it refuses and why it closes
	closed atomic.Pointer[notice] // why the broker is about to close the connection

	ids  []uint16 // acknowledged since the last quiet
	runs []byte   // receipts since the last quiet
}

// connect makes a connection, up to the CONNACK.
func (s *session) connect(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.connectTimeout)
	defer cancel()
	conn, err := dial(ctx, s.o)
	if err != nil {
		return nil, err
	}
	l := &link{s: s, lost: make(chan struct{}), topics: map[string]string{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.socket = &socket{Conn: conn, in: l, writeTimeout: s.o.writeTimeout}
	l.paho = mqtt.NewClient(s.pahoOptions(l))
	token := l.paho.Connect().(*mqtt.ConnectToken)
	select {
	case <-token.Done():
		err = token.Error()
	case <-ctx.Done():
		_ = conn.Close() // which ends paho's attempt
		<-token.Done()
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		l.fail(err)
		for _, refusal := range []error{
			packets.ErrorRefusedNotAuthorised, packets.ErrorRefusedBadUsernameOrPassword,
			packets.ErrorRefusedIDRejected, packets.ErrorRefusedBadProtocolVersion,
		} {
			if errors.Is(err, refusal) {
				return nil, fmt.Errorf("%w: %w", ErrRefused, err)
			}
		}
		return nil, err
	}
	l.resumed = token.SessionPresent()
	return l, nil
}

func (s *session) pahoOptions(l *link) *mqtt.ClientOptions {
	o := mqtt.NewClientOptions()
	o.AddBroker(s.o.url.String())
	o.SetClientID(s.id).SetUsername(s.o.user).SetPassword(s.o.password)
	if s.o.credentials != nil {
		o.SetCredentialsProvider(s.o.credentials)
	}
	o.SetProtocolVersion(4).SetCleanSession(!s.o.durable)
	o.SetAutoReconnect(false).SetConnectRetry(false) // ours: paho's forgets what was acknowledged
	o.SetKeepAlive(s.o.keepAlive).SetPingTimeout(max(s.o.keepAlive/3, 100*time.Millisecond))
	o.SetConnectTimeout(s.o.connectTimeout).SetWriteTimeout(s.o.writeTimeout)
	if w := s.o.will; w != nil {
		o.SetBinaryWill(w.Topic(), w.body, s.o.willQoS, w.Retain)
	}
	o.SetCustomOpenConnectionFn(func(*url.URL, mqtt.ClientOptions) (net.Conn, error) { return l.socket, nil })
	o.SetConnectionLostHandler(func(_ mqtt.Client, err error) { l.fail(err) })
	return o
}

// fail ends the connection for this reason, unless it has one.
func (l *link) fail(err error) {
	l.once.Do(func() {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("closed by the broker: %w", err)
		}
		if n := l.closed.Load(); n != nil {
			err = fmt.Errorf("%w: %s (reason code 0x%02X)", err, n.text, n.code)
		}
		l.err = err
		close(l.lost)
		l.cancel()
		_ = l.socket.Close()
	})
}

// cause is why the connection was lost.
func (l *link) cause() error {
	<-l.lost
	return l.err
}

// published takes a delivery off the connection.
func (l *link) published(frame []byte) error {
	var p packet.Publish
	if err := packet.ParseDelivery(packet.V311, frame, &p); err != nil {
		return err
	}
	if bytes.HasPrefix(p.Topic, []byte(wire.Receipts)) {
		l.receipt(string(p.Topic), p.Payload)
		return nil
	}
	name, ok := l.topics[string(p.Topic)]
	if !ok {
		if len(l.topics) > 4096 {
			clear(l.topics)
		}
		name = trimTopic(string(p.Topic))
		l.topics[string(p.Topic)] = name
	}
	l.s.o.observer.Received(len(frame))
	if l.s.receive != nil {
		l.s.receive(l, delivery{topic: name, payload: bytes.Clone(p.Payload), id: p.PacketID, dup: p.Dup, retain: p.Retain})
	}
	return nil
}

func (l *link) granted(ok bool) { l.told.Store(ok) }

// acknowledged collects; quiet passes on.
func (l *link) acknowledged(id uint16) { l.ids = append(l.ids, id) }

func (l *link) quiet() {
	if len(l.ids) > 0 || len(l.runs) > 0 {
		l.s.out.acknowledged(l.ids, l.runs)
		l.ids, l.runs = l.ids[:0], l.runs[:0]
	}
}

// subscribe subscribes to filters at QoS 1 and waits for the answer. Refused ones are *FilterErrors, joined.
func (l *link) subscribe(ctx context.Context, filters ...string) error {
	if len(filters) == 0 {
		return nil
	}
	want := make(map[string]byte, len(filters))
	for _, f := range filters {
		want[f] = 1
	}
	// Not paho's Subscribe, which takes "$queue/" for a route of its own.
	token := l.paho.SubscribeMultiple(want, nil).(*mqtt.SubscribeToken)
	if err := l.await(ctx, token); err != nil {
		return err
	}
	var refused []error
	result := token.Result()
	for _, f := range slices.Compact(slices.Sorted(slices.Values(filters))) {
		if code, ok := result[f]; !ok || code > 2 {
			refused = append(refused, &FilterError{trimTopic(f)})
		}
	}
	return errors.Join(refused...)
}

// refusals are the filters that a SUBSCRIBE failed for.
func refusals(err error) (all []*FilterError) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if f, ok := e.(*FilterError); ok {
				all = append(all, f)
			}
		}
	}
	return all
}

func (l *link) unsubscribe(ctx context.Context, filters ...string) error {
	if len(filters) == 0 {
		return nil
	}
	return l.await(ctx, l.paho.Unsubscribe(filters...))
}

func (l *link) await(ctx context.Context, token mqtt.Token) error {
	select {
	case <-token.Done():
		return token.Error()
	case <-l.lost:
		return fmt.Errorf("%w: %w", ErrNotConnected, l.err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
