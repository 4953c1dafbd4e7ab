package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/internal/wire"
)

// withProps publishes at QoS 1 with user properties, given as name, value, name, value, …, and returns the PUBACK.
func withProps(t *testing.T, c *testbroker.Raw, topic, payload string, props ...string) packet.Ack {
	t.Helper()
	var b []byte
	for i := 0; i < len(props); i += 2 {
		b = packet.AppendUser(b, props[i], props[i+1])
	}
	c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 1, PacketID: c.NextID(), Topic: topic, Props: b, Payload: []byte(payload)}))
	var a packet.Ack
	if err := packet.ParseAck(packet.V5, c.Expect(packet.TypePuback), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// AT-77: the same (client, epoch, id) published three times is stored once, also over a restart; a lower epoch is refused.
func TestAT77Idempotence(t *testing.T) {
	t.Parallel()
	o := testbroker.Options{Dir: t.TempDir()}
	b := testbroker.Run(t, o)
	connect := func(b *testbroker.InProcess, epoch string) (*testbroker.Raw, *packet.Connack) {
		t.Helper()
		c := testbroker.DialRaw(t, b.Addr, packet.V5)
		con := &packet.Connect{ClientID: "p", Clean: true}
		if epoch != "" {
			con.User = []packet.UserProperty{{Name: wire.Epoch, Value: epoch}}
		}
		return c, c.Connect(con)
	}
	refused := func(what string, code byte, reason, want string) {
		t.Helper()
		if code != packet.CodeNotAuthorized || !strings.Contains(reason, want) {
			t.Errorf("%s: %#x %q, want 0x87 and %q", what, code, reason, want)
		}
	}
	c, _ := connect(b, "")
	for i := range 3 {
		a := withProps(t, c, "t", "x", wire.MessageID, "7", wire.Epoch, "4")
		off, _ := packet.FindUser(a.Props, wire.Offset)
		if a.Code != 0 || i > 0 && string(off) != "1" {
			t.Errorf("publish %d: %#x, %s %q", i, a.Code, wire.Offset, off)
		}
	}
	c.Publish("$delayed/3600/later", "y") // without an id
	withProps(t, c, "$delayed/3600/later", "z", wire.MessageID, "d", wire.Epoch, "4")
	b.Stop()
	b = testbroker.Run(t, o)
	c, _ = connect(b, "")
	a := withProps(t, c, "t", "x", wire.MessageID, "7", wire.Epoch, "4")
	if off, _ := packet.FindUser(a.Props, wire.Offset); string(off) != "1" || b.Store().Next() != 2 {
		t.Errorf("after a restart: offset %q, %d messages", off, b.Store().Next()-1)
	}
	withProps(t, c, "$delayed/3600/later", "z", wire.MessageID, "d", wire.Epoch, "4")
	if n := b.Sessions().Stats().Duplicates; n != 2 {
		t.Errorf("%d duplicates after the restart, want 2: that of the delayed message too", n)
	}
	a = withProps(t, c, "t", "x", wire.MessageID, "8", wire.Epoch, "3")
	refused("a publish of a lower epoch, after a restart", a.Code, a.Reason(), "@Epoch 3 is over, a producer of this client id has 4")
	if a = withProps(t, c, "t", "x", wire.MessageID, "8", wire.Epoch, "four"); a.Code != packet.CodeImplementation {
		t.Errorf("a senseless epoch: %#x", a.Code)
	}

	// A CONNECT has an epoch as well: then the connection is of it, and takes nothing over from a newer one.
	newer, ack := connect(b, "9")
	if ack.Code != 0 {
		t.Fatalf("%#x %s", ack.Code, ack.ReasonString)
	}
	c.ExpectClosed() // taken over, as MQTT has it
	_, ack = connect(b, "8")
	refused("a CONNECT of a lower epoch", ack.Code, ack.ReasonString, "a producer of this client id has 9")
	newer.Ping()
	if code := newer.Publish("t", "still there"); code != 0 {
		t.Errorf("the newer one's publish: %#x", code)
	}
	next := b.Store().Next()
	v3 := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: "p", Clean: true}) // one that knows no epochs gets in
	out := packet.Outgoing{Props: packet.AppendUser(packet.AppendUser(nil, wire.MessageID, "9"), wire.Epoch, "8"), Payload: []byte("zombie")}
	v3.SendPublish(1, 1, "$v5/t", string(packet.AppendEnvelope(nil, &out)))
	v3.ExpectClosed() // but its publish of an old epoch does not
	if b.Store().Next() != next {
		t.Error("what a fenced producer published is stored")
	}
}

// What a connection of an old epoch has on its way when its successor is let in is not stored after that.
func TestFencedInFlight(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	con := func(epoch int) *packet.Connect {
		return &packet.Connect{ClientID: "p", Clean: true, User: []packet.UserProperty{{Name: wire.Epoch, Value: fmt.Sprint(epoch)}}}
	}
	old := testbroker.ConnectRaw(t, b.Addr, packet.V5, con(1))
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for id := uint16(1); ; id++ {
			select {
			case <-stop:
				return
			default:
			}
			var burst []byte
			for range 50 {
				burst = packet.AppendPublish(burst, packet.V5, &packet.Outgoing{Topic: "t", Payload: []byte("old")})
			}
			if old.TrySend(burst) != nil {
				return
			}
		}
	}()
	for b.Store().Next() < 500 {
		time.Sleep(time.Millisecond)
	}
	for epoch := 2; epoch < 6; epoch++ {
		testbroker.ConnectRaw(t, b.Addr, packet.V5, con(epoch))
		next := b.Store().Next()
		time.Sleep(10 * time.Millisecond)
		if now := b.Store().Next(); now != next {
			t.Fatalf("%d messages were stored after the CONNACK of the successor", now-next)
		}
	}
	close(stop)
	<-done
}
