package session

import (
	"net"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
)

// TestFence: what a connection has taken and not handed to the store when a higher epoch comes is not stored.
func TestFence(t *testing.T) {
	m := manager(t, store.Options{})
	m.opt.ReceiveMaximum, m.opt.MaxQoS, m.opt.Topics, m.opt.Window, m.opt.MaxExpiry = 10, 2, topic.Limits{MaxLevels: 9, MaxBytes: 99}, 10, Never
	link := func(epoch string) (*Link, error) {
		t.Helper()
		ours, theirs := net.Pipe()
		t.Cleanup(func() { _ = theirs.Close(); m.Wait() })
		l := m.NewLink(ours)
		l.Version = packet.V5
		l.Connect = &packet.Connect{
			Version: packet.V5, ClientID: "p", Clean: true, ReceiveMaximum: 9, User: []packet.UserProperty{{Name: wire.Epoch, Value: epoch}},
		}
		_, err := m.Attach(l)
		t.Cleanup(func() { m.Detach(l); l.Close() })
		return l, err
	}
	old, err := link("1")
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Publish(&packet.Publish{Topic: []byte("t"), QoS: 1, PacketID: 1, Payload: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if _, err := link("2"); err != nil {
		t.Fatal(err)
	}
	old.Flush()
	if next := m.log.Next(); next != 1 {
		t.Errorf("%d messages are stored", next-1)
	}
	if _, err := link("1"); codeOf(err) != packet.CodeNotAuthorized {
		t.Errorf("a connection of the lower epoch: %v", err)
	}
}
