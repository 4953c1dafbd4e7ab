package hooks

import (
	"errors"
	"fmt"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgemq/edgemq/broker/conn"
)

// Handshake has mochi decode a CONNECT, check it, ask the hooks whether the client may come in, and answer. It does what the server's
// EstablishConnection does, with the same public parts in the same order, as far as it goes here. Two things are left out: the goroutine that would
// write, whose start wakes a thread and which would end without having done anything, and the registry of clients, which is the session manager's.
type Handshake struct {
	Server *mqtt.Server
	hooks  mqtt.Hooks // those of the server, which keeps its own to itself
}

// Add adds a hook, to the server too. All are added before the first Establish.
func (h *Handshake) Add(hook mqtt.Hook) error {
	if err := h.Server.AddHook(hook, nil); err != nil {
		return fmt.Errorf("add hook %s: %w", hook.ID(), err)
	}
	h.hooks.Log = h.Server.Log
	if err := h.hooks.Add(hook, nil); err != nil {
		return fmt.Errorf("add hook %s: %w", hook.ID(), err)
	}
	return nil
}

// Establish does the handshake of a connection whose CONNECT has come. An error says why the client is not in; without one it is, if the
// connection was kept.
func (h *Handshake) Establish(listener string, c *conn.Conn) error {
	cl := h.Server.NewClient(c, listener, "", false)
	defer cl.Stop(nil)
	body := c.TakeConnect()
	pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Connect, Remaining: len(body)}}
	if err := pk.ConnectDecode(body); err != nil {
		return fmt.Errorf("decode CONNECT: %w", err)
	}
	cl.ParseConnect(listener, pk)
	if code := pk.ConnectValidate(); code != packets.CodeSuccess {
		return errors.Join(code, h.Server.SendConnack(cl, code, false, nil))
	}
	if err := h.hooks.OnConnect(cl, pk); err != nil {
		return err
	}
	if !h.hooks.OnConnectAuthenticate(cl, pk) {
		code := packets.ErrBadUsernameOrPassword
		return errors.Join(code, h.Server.SendConnack(cl, code, false, nil))
	}
	h.hooks.OnSessionEstablish(cl, pk)
	if err := h.Server.SendConnack(cl, packets.CodeSuccess, false, nil); err != nil {
		return fmt.Errorf("answer CONNECT: %w", err)
	}
	h.hooks.OnSessionEstablished(cl, pk)
	return nil
}
