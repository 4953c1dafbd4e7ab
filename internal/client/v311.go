package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

// v311 is a connection by paho.mqtt.golang.
type v311 struct {
	life
	paho    mqtt.Client
	conn    net.Conn
	id      string
	present bool
	timeout time.Duration
	window  chan struct{} // 3.1.1 has no receive maximum; this is what we allow ourselves
}

// window311 is small enough for any broker's patience and large enough to keep a disk busy.
const window311 = 256

func connect311(ctx context.Context, conn net.Conn, o Options) (Client, error) {
	if o.ID == "" {
		if !o.CleanStart {
			return nil, errors.New("MQTT 3.1.1 needs a client id to keep a session")
		}
		o.ID = "edgemq-" + rand.Text()[:12]
	}
	c := &v311{life: newLife(), conn: conn, id: o.ID, timeout: o.Timeout, window: make(chan struct{}, window311)}
	opts := mqtt.NewClientOptions().
		AddBroker("tcp://broker").
		SetCustomOpenConnectionFn(func(*url.URL, mqtt.ClientOptions) (net.Conn, error) { return &politeConn{Conn: conn}, nil }).
		SetProtocolVersion(uint(V311)).
		SetClientID(o.ID).
		SetCleanSession(o.CleanStart).
		SetKeepAlive(time.Duration(seconds(o.KeepAlive)) * time.Second).
		SetConnectTimeout(o.Timeout).
		SetWriteTimeout(o.Timeout).
		// After a reconnection of its own, paho says of publishes that were never acknowledged that they were.
		SetAutoReconnect(false).
		SetConnectRetry(false).
		SetOrderMatters(true).
		SetStore(mqtt.NewOrderedMemoryStore()).
		SetAutoAckDisabled(true).
		// Subscriptions have no handlers of their own: paho would register that of $queue/q under q and never call it.
		SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) { c.inbox.put(c.delivery(m)) }).
		SetConnectionLostHandler(func(_ mqtt.Client, err error) { c.end(fmt.Errorf("%w: %w", ErrLost, err)) })
	if o.User != "" {
		opts.SetUsername(o.User).SetPassword(o.Password)
	}
	c.paho = mqtt.NewClient(opts)
	token := c.paho.Connect().(*mqtt.ConnectToken)
	select {
	case <-token.Done():
	case <-ctx.Done():
		_ = conn.Close()
		return nil, ctx.Err()
	}
	if err := token.Error(); err != nil {
		if code := token.ReturnCode(); code > 0 && code <= 5 {
			return nil, Refused(V311, code, "")
		}
		return nil, err
	}
	c.present = token.SessionPresent()
	return c, nil
}

func (c *v311) ID() string           { return c.id }
func (c *v311) SessionPresent() bool { return c.present }

func (c *v311) delivery(m mqtt.Message) *Delivery {
	return &Delivery{
		Message: Message{
			Topic: m.Topic(), Payload: m.Payload(), QoS: m.Qos(), Retain: m.Retained(), Duplicate: m.Duplicate(), PacketID: m.MessageID(),
		},
		ack: func() error {
			if err := c.Err(); err != nil {
				return err // paho would drop the ack without a word
			}
			m.Ack()
			return nil
		},
	}
}

func (c *v311) Publish(ctx context.Context, m Message) (*Token, error) {
	what := "publish to " + m.Topic
	if err := c.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	select {
	case c.window <- struct{}{}:
	case <-c.done:
		return nil, fmt.Errorf("%s: %w", what, c.err)
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", what, ctx.Err())
	}
	sent := c.paho.Publish(m.Topic, m.QoS, m.Retain, m.Payload)
	token := newToken()
	go func() {
		defer func() { <-c.window }()
		select {
		case <-sent.Done():
		case <-c.done:
			select { // an answer that is there already wins over the end of the connection
			case <-sent.Done():
			default:
				token.finish(fmt.Errorf("%s: not acknowledged: %w", what, c.err))
				return
			}
		}
		token.finish(c.outcome(what, sent.Error()))
	}()
	return token, nil
}

func (c *v311) outcome(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: not acknowledged: %w", what, c.why(err))
}

// why prefers the reason the connection ended for to the words paho has for it.
func (c *v311) why(err error) error {
	select {
	case <-c.done:
		return c.err
	case <-time.After(reasonPatience):
		return err // the connection is there: it was about something else
	}
}

func (c *v311) Subscribe(ctx context.Context, s Subscription) error {
	what := "subscribe to " + s.Filter
	token := c.paho.Subscribe(s.Filter, s.QoS, nil).(*mqtt.SubscribeToken)
	if err := c.wait(ctx, what, token); err != nil {
		return err
	}
	for _, code := range token.Result() { // one filter, under whatever name paho gave it
		if code >= 0x80 {
			return &RefusedError{What: what, Code: code, words: "failure"}
		}
	}
	return nil
}

func (c *v311) Unsubscribe(ctx context.Context, filter string) error {
	return c.wait(ctx, "unsubscribe from "+filter, c.paho.Unsubscribe(filter))
}

func (c *v311) wait(ctx context.Context, what string, token mqtt.Token) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	select {
	case <-token.Done():
	case <-c.done:
		return fmt.Errorf("%s: %w", what, c.err)
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("%s: no answer within %v", what, c.timeout)
		}
		return ctx.Err()
	}
	if err := token.Error(); err != nil {
		return fmt.Errorf("%s: %w", what, c.why(err))
	}
	return nil
}

func (c *v311) Close() error {
	c.end(ErrClosed)
	c.paho.Disconnect(uint(c.timeout / time.Millisecond))
	return nil
}

func (c *v311) Drop() {
	c.end(ErrClosed)
	_ = c.conn.Close()
	c.paho.Disconnect(0)
}
