// Package hooks adapts edgemq's parts to mochi's hooks. It has no state of its own: every hook finds the
// connection behind mochi's client and lets it do the work.
package hooks

import (
	"log/slog"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgemq/edgemq/broker/conn"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// connOf returns the connection behind a client, nil for mochi's own inline client.
func connOf(cl *mqtt.Client) *conn.Conn {
	c, _ := cl.Net.Conn.(*conn.Conn)
	return c
}

// Auth lets clients in. What they may do once they are is the session's business: messages do not pass through mochi.
type Auth struct{ mqtt.HookBase }

// ID implements mqtt.Hook.
func (*Auth) ID() string { return "edgemq-auth" }

// Provides implements mqtt.Hook.
func (*Auth) Provides(b byte) bool { return b == mqtt.OnConnectAuthenticate || b == mqtt.OnACLCheck }

// OnConnectAuthenticate implements mqtt.Hook.
func (*Auth) OnConnectAuthenticate(cl *mqtt.Client, _ packets.Packet) bool {
	c := connOf(cl)
	return c != nil && c.Authenticate()
}

// OnACLCheck implements mqtt.Hook.
func (*Auth) OnACLCheck(*mqtt.Client, string, bool) bool { return true }

// Sessions ties mochi's clients to edgemq's sessions. mochi keeps none of its own: it is told that every
// client is clean and that nothing outlives its connection.
type Sessions struct {
	mqtt.HookBase
	Logger *slog.Logger
}

// ID implements mqtt.Hook.
func (*Sessions) ID() string { return "edgemq-sessions" }

// Provides implements mqtt.Hook.
func (*Sessions) Provides(b byte) bool {
	switch b {
	case mqtt.OnConnect, mqtt.OnSessionEstablish, mqtt.OnSessionEstablished:
		return true
	}
	return false
}

// OnConnect implements mqtt.Hook.
func (*Sessions) OnConnect(cl *mqtt.Client, _ packets.Packet) error {
	cl.Properties.Clean = true
	cl.Properties.Props.SessionExpiryInterval = 0
	return nil
}

// OnSessionEstablish implements mqtt.Hook: the client is authenticated, the CONNACK comes next.
func (h *Sessions) OnSessionEstablish(cl *mqtt.Client, _ packets.Packet) {
	c := connOf(cl)
	if c == nil {
		return
	}
	if err := c.Attach(); c.Denied() {
		h.Logger.Info("client refused", "client", cl.ID, "err", err)
	} else if err != nil {
		h.Logger.Error("attaching a session failed", "client", cl.ID, "err", err)
	}
}

// OnSessionEstablished implements mqtt.Hook: the CONNACK is queued, deliveries may follow it. mochi's part is over; that its client stops
// is not to end the connection.
func (h *Sessions) OnSessionEstablished(cl *mqtt.Client, _ packets.Packet) {
	c := connOf(cl)
	switch {
	case c == nil:
	case c.Attached():
		c.Keep()
		c.Link().Start()
	default: // the CONNACK said that we are unavailable
		_ = c.Close() // never fails
	}
}

// Persistence is mochi's door to the store. Clients' publishes never get here, the connection takes them to the
// store itself (session.Link.Publish); what does come are inline publishes of a program that embeds the broker.
type Persistence struct {
	mqtt.HookBase
	Store *store.Store
}

// ID implements mqtt.Hook.
func (*Persistence) ID() string { return "edgemq-persistence" }

// Provides implements mqtt.Hook.
func (*Persistence) Provides(b byte) bool { return b == mqtt.OnPublish }

// OnPublish implements mqtt.Hook: it returns when the message is on disk. Whatever it returns, mochi itself delivers nothing, and an
// error is one that mochi does not take for success.
func (h *Persistence) OnPublish(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	if err := h.publish(cl, pk); err != nil {
		h.Log.Error("storing an inline publish failed", "topic", pk.TopicName, "err", err)
		return pk, packets.ErrRejectPacket
	}
	return pk, packets.CodeSuccessIgnore
}

func (h *Persistence) publish(cl *mqtt.Client, pk packets.Packet) error {
	defer h.Store.Use().Done()
	client, err := h.Store.ClientID(cl.ID, false)
	if err != nil {
		return err
	}
	id, err := h.Store.TopicID(pk.TopicName)
	if err != nil {
		return err
	}
	msg := store.Message{Topic: id, Client: client, Payload: pk.Payload}
	msg.Flags = msg.Flags.WithQoS(min(pk.FixedHeader.Qos, 1))
	if pk.FixedHeader.Retain {
		msg.Flags |= record.FlagRetain
	}
	if n := pk.Properties.MessageExpiryInterval; n > 0 {
		msg.Flags |= record.FlagExpiry
		msg.Expiry = n
	}
	done := make(waiter, 1)
	if err := h.Store.Append([]store.Message{msg}, nil, true, done); err != nil {
		return err
	}
	return <-done
}

// waiter is a store.Completion that tells a channel.
type waiter chan error

// Committed implements store.Completion.
func (w waiter) Committed(_ uint64, err error) { w <- err }
