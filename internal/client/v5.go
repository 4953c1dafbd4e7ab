package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session/state"
)

// v5 is a connection by paho.golang.
type v5 struct {
	life
	paho    *paho.Client
	raw     net.Conn
	conn    *packetConn
	session *session
	ack     *paho.Connack
	timeout time.Duration
	send    sync.Mutex // keeps publishes in the order of their packet ids
}

// session takes paho's automatic acks out: paho acknowledges when the handler returns, and its manual mode
// collects acks for up to 50 ms and forgets them at a DISCONNECT. Here the Delivery acknowledges.
type session struct{ *state.State }

func (s session) Ack(*packets.Publish) error { return nil }

func connect5(ctx context.Context, conn net.Conn, o Options) (Client, error) {
	c := &v5{
		life:    newLife(),
		raw:     conn,
		conn:    newPacketConn(&politeConn{Conn: conn}),
		session: &session{state.NewInMemory()},
		timeout: o.Timeout,
	}
	c.paho = paho.NewClient(paho.ClientConfig{
		Conn:          c.conn,
		Session:       c.session,
		PacketTimeout: o.Timeout,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			c.inbox.put(c.delivery(p.Packet))
			return true, nil
		}},
		OnServerDisconnect: func(d *paho.Disconnect) {
			reason := ""
			if d.Properties != nil {
				reason = d.Properties.ReasonString
			}
			// Put beside ErrLost, so that callers who reconnect need not know the difference.
			c.end(fmt.Errorf("%w: %w", ErrLost, &RefusedError{Code: d.ReasonCode, Reason: reason, words: codeWords(d.ReasonCode)}))
		},
		OnClientError: func(err error) { c.end(fmt.Errorf("%w: %w", ErrLost, err)) },
	})
	cp := &paho.Connect{
		ClientID:   o.ID,
		CleanStart: o.CleanStart,
		KeepAlive:  seconds(o.KeepAlive),
		Properties: &paho.ConnectProperties{RequestProblemInfo: true, ReceiveMaximum: &o.ReceiveMaximum},
	}
	if o.SessionExpiry > 0 {
		cp.Properties.SessionExpiryInterval = &o.SessionExpiry
	}
	if o.User != "" {
		cp.Username, cp.UsernameFlag = o.User, true
	}
	if o.Password != "" {
		cp.Password, cp.PasswordFlag = []byte(o.Password), true
	}
	ack, err := c.paho.Connect(ctx, cp)
	if err != nil {
		if ack != nil && ack.ReasonCode >= 0x80 {
			reason := ""
			if ack.Properties != nil {
				reason = ack.Properties.ReasonString
			}
			err = Refused(V5, ack.ReasonCode, reason)
		}
		_ = c.session.Close()
		return nil, err
	}
	c.ack = ack
	return c, nil
}

func seconds(d time.Duration) uint16 { return uint16(min(max(d, time.Second)/time.Second, 65535)) }

func (c *v5) ID() string           { return c.paho.ClientID() }
func (c *v5) SessionPresent() bool { return c.ack.SessionPresent }

func (c *v5) delivery(p *paho.Publish) *Delivery {
	d := &Delivery{Message: Message{
		Topic: p.Topic, Payload: p.Payload, QoS: p.QoS, Retain: p.Retain, Duplicate: p.Duplicate(), PacketID: p.PacketID,
	}}
	if props := p.Properties; props != nil {
		d.ContentType, d.ResponseTopic, d.CorrelationData = props.ContentType, props.ResponseTopic, props.CorrelationData
		d.Expiry, d.SubscriptionID = props.MessageExpiry, props.SubscriptionIdentifier
		d.UTF8 = props.PayloadFormat != nil && *props.PayloadFormat == 1
		for _, u := range props.User {
			d.User = append(d.User, Property{u.Key, u.Value})
		}
	}
	d.ack = func() error {
		if err := c.Err(); err != nil {
			return err
		}
		return c.session.State.Ack(p.Packet())
	}
	return d
}

func (c *v5) Publish(ctx context.Context, m Message) (*Token, error) {
	what := "publish to " + m.Topic
	if p := c.ack.Properties; p != nil {
		switch {
		case p.MaximumQoS != nil && m.QoS > *p.MaximumQoS:
			return nil, fmt.Errorf("%s: the broker takes QoS %d at most", what, *p.MaximumQoS)
		case m.Retain && !p.RetainAvailable:
			return nil, fmt.Errorf("%s: the broker takes no retained messages", what)
		}
	}
	pb := m.packet()
	if p := c.ack.Properties; p != nil && p.MaximumPacketSize != nil && publishSize(pb) > int(*p.MaximumPacketSize) {
		return nil, fmt.Errorf("%s: the message makes a packet of %d bytes, the broker takes %d at most", what, publishSize(pb), *p.MaximumPacketSize)
	}
	token := newToken()
	c.send.Lock()
	defer c.send.Unlock()
	if m.QoS == 0 {
		if err := c.write(pb); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		token.finish(nil)
		return token, nil
	}
	answer := make(chan packets.ControlPacket, 1)
	if err := c.session.AddToSession(ctx, pb, answer); err != nil {
		if gone := c.gone(err); gone != nil {
			err = gone
		}
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	// A failed write shows as the end of the connection, which the token waits for too.
	_ = c.write(pb)
	go func() { token.finish(c.outcome(what, answer)) }()
	return token, nil
}

func (c *v5) write(pb *packets.Publish) error {
	if err := c.Err(); err != nil {
		return err
	}
	if _, err := pb.WriteTo(c.conn); err != nil {
		c.end(fmt.Errorf("%w: %w", ErrLost, err))
		return c.Err()
	}
	return nil
}

// outcome waits for the broker's answer to a publish. The end of the connection loses to an answer that is
// there already.
func (c *v5) outcome(what string, answer <-chan packets.ControlPacket) error {
	var cp packets.ControlPacket
	select {
	case cp = <-answer:
	case <-c.done:
		select {
		case cp = <-answer:
		default:
			return fmt.Errorf("%s: not acknowledged: %w", what, c.err)
		}
	}
	var code byte
	var props *packets.Properties
	switch r := cp.Content.(type) {
	case *packets.Puback:
		code, props = r.ReasonCode, r.Properties
	case *packets.Pubrec:
		code, props = r.ReasonCode, r.Properties
	case *packets.Pubcomp:
		code, props = r.ReasonCode, r.Properties
	default: // the session was closed under it
		return fmt.Errorf("%s: not acknowledged: %w", what, ErrLost)
	}
	if code >= 0x80 {
		reason := ""
		if props != nil {
			reason = props.ReasonString
		}
		return &RefusedError{What: what, Code: code, Reason: reason, words: codeWords(code)}
	}
	return nil
}

// gone turns paho's words for "no connection any more" into the reason, once it is known.
func (c *v5) gone(err error) error {
	select {
	case <-c.done:
		return c.err
	default:
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	select { // the connection has ended, and its reason is on the way
	case <-c.done:
		return c.err
	case <-time.After(reasonPatience):
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
}

func (c *v5) Subscribe(ctx context.Context, s Subscription) error {
	what := "subscribe to " + s.Filter
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	ack, err := c.paho.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{
		Topic: s.Filter, QoS: s.QoS, NoLocal: s.NoLocal, RetainAsPublished: s.RetainAsPublished, RetainHandling: s.RetainHandling,
	}}})
	if ack != nil && len(ack.Reasons) == 1 && ack.Reasons[0] >= 0x80 {
		reason := ""
		if ack.Properties != nil {
			reason = ack.Properties.ReasonString
		}
		return &RefusedError{What: what, Code: ack.Reasons[0], Reason: reason, words: codeWords(ack.Reasons[0])}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, c.why(err))
	}
	return nil
}

func (c *v5) Unsubscribe(ctx context.Context, filter string) error {
	what := "unsubscribe from " + filter
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	ack, err := c.paho.Unsubscribe(ctx, &paho.Unsubscribe{Topics: []string{filter}})
	if ack != nil && len(ack.Reasons) == 1 && ack.Reasons[0] >= 0x80 {
		return &RefusedError{What: what, Code: ack.Reasons[0], words: codeWords(ack.Reasons[0])}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, c.why(err))
	}
	return nil
}

// why prefers the reason the connection ended for to the words a request failed with.
func (c *v5) why(err error) error {
	if gone := c.Err(); gone != nil {
		return gone
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %v", c.timeout)
	}
	return err
}

func (c *v5) Close() error {
	c.end(ErrClosed)
	_ = c.paho.Disconnect(&paho.Disconnect{}) // a broken connection needs no DISCONNECT
	return c.session.Close()
}

func (c *v5) Drop() {
	_ = c.raw.Close()
	<-c.paho.Done()
	c.end(ErrClosed)
	_ = c.session.Close()
}

func (m *Message) packet() *packets.Publish {
	p := &packets.Properties{
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData, MessageExpiry: m.Expiry,
	}
	if m.UTF8 {
		one := byte(1)
		p.PayloadFormat = &one
	}
	for _, u := range m.User {
		p.User = append(p.User, packets.User{Key: u.Name, Value: u.Value})
	}
	return &packets.Publish{Topic: m.Topic, QoS: m.QoS, Retain: m.Retain, Payload: m.Payload, Properties: p}
}

func publishSize(p *packets.Publish) int {
	n := 2
	for _, b := range p.Buffers() {
		n += len(b)
	}
	for l := n >> 7; l > 0; l >>= 7 {
		n++
	}
	return n
}
