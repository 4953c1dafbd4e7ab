package broker_test

import (
	"sync"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// hold has every sync of the journal wait until release is called.
func hold(d *vfstest.Disk) (release func()) {
	gate := make(chan struct{})
	stop := d.Inject(func(op vfstest.Op) error {
		if op.Kind == vfstest.Datasync {
			<-gate
		}
		return nil
	})
	return sync.OnceFunc(func() {
		close(gate)
		stop()
	})
}

// A PUBREL frees the client's packet id, so it goes out when no crash can make us send the PUBLISH again, also if it is asked for twice: by
// two PUBRECs, or by a client that comes back before the first is on disk. [MQTT-4.3.3-8]
func TestPubrelWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		for name, again := range map[string]func(c *testbroker.Raw, b *diskBroker, id uint16) *testbroker.Raw{
			"twice": func(c *testbroker.Raw, _ *diskBroker, id uint16) *testbroker.Raw {
				ack(c, v, packet.TypePubrec, id)
				c.Ping()
				c.Ping() // nothing but its answer has come
				return c
			},
			"over two connections": func(_ *testbroker.Raw, b *diskBroker, _ uint16) *testbroker.Raw {
				c := testbroker.ConnectRaw(t, b.addr, v, keeper("c"))
				c.Ping()
				return c
			},
		} {
			t.Run(name, func(t *testing.T) {
				d := newDisk(t)
				b := runOn(t, d, nil)
				c := testbroker.ConnectRaw(t, b.addr, v, keeper("c"))
				c.Subscribe("t", 2)
				pub := testbroker.ConnectRaw(t, b.addr, v, clean("pub"))
				publish2(pub, v, 1, "t", "x", false)
				id := receive(t, c, 2, "x", false).PacketID
				release := hold(d)
				t.Cleanup(release)
				ack(c, v, packet.TypePubrec, id)
				c.Ping()
				c = again(c, b, id)
				release()
				c.ExpectAck(packet.TypePubrel, id)
				b.stop()
			})
		}
	})
}

// The same from the other side: a PUBLISH that is sent again over another connection is not acknowledged before it is on disk, and one whose PUBREL
// is sent again is not over before that is.
func TestPublishAgainWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		d := newDisk(t)
		b := runOn(t, d, nil)
		c := testbroker.ConnectRaw(t, b.addr, v, keeper("c"))
		again := func(frame []byte) {
			release := hold(d)
			defer release()
			c.Send(frame)
			c.Ping()
			old := c
			c = testbroker.ConnectRaw(t, b.addr, v, keeper("c"))
			old.Close()
			c.Send(frame)
			c.Ping()
			c.Ping() // nothing but its answer has come
		}
		for id := range uint16(3) {
			o := packet.Outgoing{QoS: 2, PacketID: id + 1, Topic: "t", Payload: []byte("again"), Dup: true}
			again(packet.AppendPublish(nil, v, &o))
			c.ExpectAck(packet.TypePubrec, id+1)
			again(packet.AppendAck(nil, v, packet.TypePubrel, id+1, 0, ""))
			c.ExpectAck(packet.TypePubcomp, id+1)
		}
		if err := b.end(); err != nil {
			t.Fatal(err)
		}
		if n := stored(t, d, "again"); n != 3 {
			t.Errorf("%d messages are stored, want 3", n)
		}
	})
}
