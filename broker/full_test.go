package broker_test

import (
	"context"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// minFree is what must be free on the disk of runSmall.
const minFree = 1 << 20

// runSmall runs a broker on a disk.
func runSmall(t *testing.T, disk *vfstest.Disk) (addr string, b *broker.Broker, stop func()) {
	t.Helper()
	b, err := broker.Open(broker.Options{
		Listeners:   []broker.Listener{{Name: "test", Type: "tcp", Address: "127.0.0.1:0"}},
		SysInterval: -1,
		Store:       store.Options{Dir: "data", FS: disk, JournalFileBytes: 1 << 20, MinFree: minFree},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	return b.Addrs()[0], b, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// fillDisk leaves so little free that the broker refuses publishes.
func fillDisk(t *testing.T, disk *vfstest.Disk, b *broker.Broker) {
	t.Helper()
	disk.SetCapacity(disk.Used() + minFree/2)
	for deadline := time.Now().Add(testbroker.Patience); !b.Store().Stats().Full; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the store does not notice that the disk is full")
		}
	}
}

// A Will that cannot be published since the disk is full waits for room, whatever Wills its client leaves after it and if the broker ends; each
// is published once.
func TestWillsWhileDiskIsFull(t *testing.T) {
	t.Parallel()
	disk := vfstest.NewDisk(vfstest.Never)
	t.Cleanup(func() { _ = disk.Close() })
	addr, b, stop := runSmall(t, disk)
	fillDisk(t, disk, b)
	leave := func(will string) {
		hello := &packet.Connect{ClientID: "c", Clean: true, Will: &packet.Will{Topic: "will", QoS: 1, Payload: []byte(will)}}
		testbroker.ConnectRaw(t, addr, packet.V5, hello).Close()
	}
	leave("first")
	leave("second")
	leave("third")
	for b.Sessions().Stats().Connections > 0 {
		time.Sleep(time.Millisecond)
	}
	stop()
	addr, b, stop = runSmall(t, disk)
	defer stop()
	fillDisk(t, disk, b)
	leave("fourth")
	watcher := testbroker.ConnectRaw(t, addr, packet.V5, &packet.Connect{ClientID: "watcher", Clean: true})
	watcher.Subscribe("will", 1)
	disk.SetCapacity(1 << 40)
	got := map[string]int{}
	for range 4 {
		d := watcher.Delivery()
		got[d.Payload]++
		watcher.Ack(d)
	}
	if d, ok := watcher.DeliveryWithin(300 * time.Millisecond); ok {
		t.Errorf("a fifth: %q", d.Payload)
	}
	for _, will := range []string{"first", "second", "third", "fourth"} {
		if got[will] != 1 {
			t.Errorf("%q came %d times", will, got[will])
		}
	}
}

// A full disk refuses publishes and nothing else: a PUBREL that comes with them is carried out, so that its packet id is not
// taken, after a restart, for that of a message stored before. [MQTT-4.3.3-10]
func TestPubrelWhileDiskIsFull(t *testing.T) {
	t.Parallel()
	disk := vfstest.NewDisk(vfstest.Never)
	t.Cleanup(func() { _ = disk.Close() })
	publish := func(id uint16, payload string) []byte {
		return packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 2, PacketID: id, Topic: "t", Payload: []byte(payload)})
	}
	pubrel := func(id uint16) []byte { return packet.AppendAck(nil, packet.V5, packet.TypePubrel, id, 0, "") }
	hello := &packet.Connect{ClientID: "c", HasSessionExpiry: true, SessionExpiry: 600}

	addr, b, stop := runSmall(t, disk)
	c := testbroker.ConnectRaw(t, addr, packet.V5, hello)
	c.Send(publish(1, "first"))
	c.ExpectAck(packet.TypePubrec, 1)
	fillDisk(t, disk, b)
	c.Send(append(append(pubrel(1), publish(2, "refused")...), publish(2, "refused again")...))
	if code := c.ExpectAck(packet.TypePubcomp, 1); code != 0 {
		t.Errorf("PUBCOMP %#x", code)
	}
	for range 2 {
		if code := c.ExpectAck(packet.TypePubrec, 2); code != packet.CodeQuotaExceeded {
			t.Errorf("PUBREC %#x", code)
		}
	}
	c.Close()
	old := testbroker.ConnectRaw(t, addr, packet.V311, &packet.Connect{ClientID: "old", Clean: true})
	old.Send(packet.AppendPublish(nil, packet.V311, &packet.Outgoing{QoS: 1, PacketID: 1, Topic: "t"}))
	old.ExpectClosed()
	if n := b.Sessions().Stats().Refused; n != 3 {
		t.Errorf("%d publishes are counted as refused, want 3", n)
	}
	disk.SetCapacity(1 << 40)
	stop()

	addr, b, stop = runSmall(t, disk)
	defer stop()
	c = testbroker.ConnectRaw(t, addr, packet.V5, hello)
	next := b.Store().Next()
	c.Send(publish(1, "second"))
	if code := c.ExpectAck(packet.TypePubrec, 1); code != 0 {
		t.Errorf("PUBREC %#x", code)
	}
	if got := b.Store().Next(); got != next+1 {
		t.Errorf("%d messages stored, want 1", got-next)
	}
}
