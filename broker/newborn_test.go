package broker_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// ask sends a packet and waits for the answer of a type, past deliveries; false if the connection ends before it or it is a refusal.
func ask(c *testbroker.Raw, frame []byte, want packet.Type) bool {
	if c.TrySend(frame) != nil {
		return false
	}
	for {
		f, err := c.TryNext()
		if err != nil {
			return false
		}
		if packet.TypeOf(f) == want {
			return want != packet.TypeSuback || f[len(f)-1] < 0x80
		}
	}
}

func subscribeTo(filter string) []byte {
	return packet.AppendSubscribe(nil, packet.V311, &packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: filter, QoS: 1}}})
}

// The first SUBACK of a new session does not wait for the disk, so a power cut may take its subscription back. Then the session is
// gone with it, and the client, which is told so, subscribes again: a session that is there has all that was granted. And
// it is there if a message that it was to get was acknowledged to its publisher.
func TestNewSessionAtAPowerCut(t *testing.T) {
	t.Parallel()
	const clients = 3
	for cut := 0; ; cut++ {
		d := newDisk(t)
		b := runOn(t, d, nil)
		pub := testbroker.ConnectRaw(t, b.addr, packet.V311, clean("pub"))
		var cs [clients]*testbroker.Raw
		for i := range cs {
			cs[i] = testbroker.DialRaw(t, b.addr, packet.V311)
		}
		d.CutAfter(cut)
		var first, second, acked [clients]bool
		for i, c := range cs {
			if !ask(c, packet.AppendConnect(nil, &packet.Connect{Version: packet.V311, ClientID: fmt.Sprint(i)}), packet.TypeConnack) {
				break
			}
			if i == 1 { // something else comes first
				ask(c, packet.AppendPingreq(nil), packet.TypePingresp)
			}
			first[i] = ask(c, subscribeTo(fmt.Sprint("first/", i)), packet.TypeSuback)
			acked[i] = first[i] && ask(pub, packet.AppendPublish(nil, packet.V311, &packet.Outgoing{
				QoS: 1, PacketID: 1, Topic: fmt.Sprint("first/", i), Payload: []byte("before"),
			}), packet.TypePuback)
			second[i] = ask(c, subscribeTo(fmt.Sprint("second/", i)), packet.TypeSuback)
		}
		over := !d.Cut()
		_ = b.end() // the store's failure

		b = runOn(t, d.AfterCut(uint64(cut)), nil)
		pub = testbroker.ConnectRaw(t, b.addr, packet.V311, clean("pub"))
		for i := range clients {
			c := testbroker.DialRaw(t, b.addr, packet.V311)
			present := c.Connect(&packet.Connect{ClientID: fmt.Sprint(i)}).SessionPresent
			switch {
			case !present && (acked[i] || second[i]):
				t.Fatalf("cut %d: session %d is gone; first SUBACK %v, message acknowledged %v, second SUBACK %v", cut, i, first[i], acked[i], second[i])
			case !present:
				continue
			}
			for _, want := range []struct {
				filter  string
				granted bool
			}{{"first/", first[i]}, {"second/", second[i]}} {
				if !want.granted {
					continue
				}
				pub.Publish(fmt.Sprint(want.filter, i), "after")
				for done := false; !done; {
					del, ok := c.DeliveryWithin(testbroker.Patience)
					if !ok {
						t.Fatalf("cut %d: session %d is there, its subscription to %s%d is not", cut, i, want.filter, i)
					}
					done = del.Topic == fmt.Sprint(want.filter, i) && del.Payload == "after"
					c.Ack(del)
				}
			}
		}
		if err := b.end(); err != nil {
			t.Fatal(err)
		}
		if over {
			break
		}
	}
}

// Of a durable session's SUBACKs only the first, of a session that is new, does not wait for the disk; none does of a session that is clean.
func TestSubackAndTheDisk(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	b := runOn(t, d, nil)
	old := testbroker.ConnectRaw(t, b.addr, packet.V311, &packet.Connect{ClientID: "old"})
	old.Subscribe("a", 1)
	old.Ping()
	free := make(chan struct{})
	release := sync.OnceFunc(func() { close(free) })
	defer release()
	d.Inject(func(op vfstest.Op) error {
		if op.Kind == vfstest.Datasync {
			<-free
		}
		return nil
	})
	for i := 0; ; i++ {
		c := testbroker.ConnectRaw(t, b.addr, packet.V311, &packet.Connect{ClientID: fmt.Sprint(i)})
		c.Send(subscribeTo("a"))
		if _, ok := c.NextWithin(time.Second); ok {
			c.Send(subscribeTo("b"))
			if _, ok := c.NextWithin(50 * time.Millisecond); ok {
				t.Error("the second SUBACK came before the disk had the subscription")
			}
			break
		}
		if i == 5 { // one may be so slow that its session was saved meanwhile
			t.Fatal("the first SUBACK waits for the disk")
		}
	}
	old.Send(subscribeTo("b"))
	if _, ok := old.NextWithin(50 * time.Millisecond); ok {
		t.Error("the SUBACK of a session that was there came before the disk had the subscription")
	}
	c := testbroker.ConnectRaw(t, b.addr, packet.V311, clean("clean"))
	c.Subscribe("a", 1)
	c.Subscribe("b", 1)
	release()
	old.Expect(packet.TypeSuback)
}
