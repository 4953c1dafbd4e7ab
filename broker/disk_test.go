package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// diskBroker is a broker on a disk that fails and fills up.
type diskBroker struct {
	*broker.Broker
	t    *testing.T
	disk *vfstest.Disk
	addr string
	stop context.CancelFunc
	done chan error
}

func diskOptions(d *vfstest.Disk) broker.Options {
	return broker.Options{
		Listeners: []broker.Listener{{Name: "test", Type: "tcp", Address: "127.0.0.1:0"}},
		Store: store.Options{
			Dir: "data", FS: d, JournalFileBytes: 256 << 10, CheckpointBytes: 256 << 10, SegmentBytes: 256 << 10,
			TailBytes: 64 << 10, CacheBytes: 1 << 20, MinFree: 128 << 10, CheckpointInterval: time.Hour,
		},
		ShutdownTimeout: 5 * time.Second,
	}
}

func newDisk(t *testing.T) *vfstest.Disk {
	d := vfstest.NewDisk(vfstest.Never)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func runOn(t *testing.T, d *vfstest.Disk, tweak func(*broker.Options)) *diskBroker {
	t.Helper()
	o := diskOptions(d)
	if tweak != nil {
		tweak(&o)
	}
	return runWith(t, d, o)
}

func runWith(t *testing.T, d *vfstest.Disk, o broker.Options) *diskBroker {
	t.Helper()
	b := &diskBroker{t: t, disk: d, done: make(chan error, 1)}
	var err error
	if b.Broker, err = broker.Open(o); err != nil {
		t.Fatal(err)
	}
	b.addr = b.Addrs()[0]
	var ctx context.Context
	ctx, b.stop = context.WithCancel(context.Background())
	go func() { b.done <- b.Run(ctx) }()
	t.Cleanup(func() {
		if b.done != nil {
			_ = b.end()
		}
	})
	return b
}

// end stops the broker and returns what Run and Close say.
func (b *diskBroker) end() error {
	b.t.Helper()
	b.stop()
	select {
	case err := <-b.done:
		b.done = nil
		return errors.Join(err, b.Close())
	case <-time.After(testbroker.Patience):
		panic("the broker does not end") // with all stacks
	}
}

// stored counts the messages in a stopped broker's store whose payload begins with prefix.
func stored(t *testing.T, d *vfstest.Disk, prefix string) int {
	t.Helper()
	s, err := store.Open(diskOptions(d).Store)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	n := 0
	for from := s.First(); from < s.Committed(); {
		recs, next, err := s.NewReader().Read(nil, from, store.Limits{MaxRecords: 1000}, func(uint64, uint32) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range recs {
			if strings.HasPrefix(string(r.Payload), prefix) {
				n++
			}
		}
		from = next
	}
	return n
}

// slowly makes every sync take that long.
func slowly(d *vfstest.Disk, pause time.Duration) {
	d.Inject(func(op vfstest.Op) error {
		if op.Kind == vfstest.Datasync {
			time.Sleep(pause)
		}
		return nil
	})
}

// A clean stop answers what it has accepted: no publisher is left in doubt about a message that is stored.
func TestStopAcknowledgesWhatWasAccepted(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	b := runOn(t, d, func(o *broker.Options) { o.ReceiveMaximum = 65535 })
	slowly(d, 5*time.Millisecond)
	var wg sync.WaitGroup
	acked := make([]int, 6)
	var under sync.WaitGroup
	for i := range acked {
		v := []packet.Version{packet.V311, packet.V5}[i%2]
		c := testbroker.ConnectRaw(t, b.addr, v, clean(fmt.Sprint("p", i)))
		under.Add(1)
		wg.Go(func() {
			wg.Go(func() {
				for n := uint16(1); n < 5000; n++ {
					p := packet.AppendPublish(nil, v, &packet.Outgoing{QoS: 1, PacketID: n, Topic: "a", Payload: fmt.Appendf(nil, "p%d.", i)})
					if c.TrySend(p) != nil {
						return
					}
				}
			})
			for {
				frame, err := c.TryNext()
				if err != nil {
					return
				}
				if packet.TypeOf(frame) == packet.TypePuback {
					if acked[i]++; acked[i] == 20 {
						under.Done()
					}
				}
			}
		})
	}
	under.Wait()
	if err := b.end(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	for i, n := range acked {
		if got := stored(t, d, fmt.Sprintf("p%d.", i)); got != n {
			t.Errorf("publisher %d: %d messages are stored, %d were acknowledged", i, got, n)
		}
	}
}

// A stop does not wait for clients that do nothing, or for a store that cannot write.
func TestStopWithStuckClients(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	b := runOn(t, d, func(o *broker.Options) { o.ConnectTimeout = time.Hour })
	testbroker.DialRaw(t, b.addr, packet.V5) // says nothing
	half := testbroker.DialRaw(t, b.addr, packet.V5)
	half.Send([]byte{0x10, 0x20, 0})
	part := testbroker.ConnectRaw(t, b.addr, packet.V311, clean("part"))
	part.Send([]byte{0x30, 0x7F, 0, 1, 'a'})
	idle := testbroker.ConnectRaw(t, b.addr, packet.V5, keeper("idle"))
	deaf := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("deaf"))
	deaf.Subscribe("a", 1)
	p := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("p"))
	for range 40 {
		p.Publish("a", strings.Repeat("x", 200<<10)) // more than its socket takes
	}
	start := time.Now()
	if err := b.end(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if code := idle.ExpectClosed(); code != int(packet.CodeShuttingDown) {
		t.Errorf("DISCONNECT 0x%X", code)
	}
	if code := part.ExpectClosed(); code != -1 {
		t.Errorf("a 3.1.1 client was sent DISCONNECT 0x%X", code)
	}
}

func TestStopWhileTheDiskIsFull(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	b := runOn(t, d, func(o *broker.Options) {
		o.ShutdownTimeout = 200 * time.Millisecond
		o.Store.CheckpointBytes = 64 << 20
	})
	c := testbroker.ConnectRaw(t, b.addr, packet.V5, keeper("c"))
	d.SetCapacity(d.Used())
	// Subscriptions are still taken, as far as the journal goes.
	long := strings.Repeat("x", 8000)
	for i := 0; ; i++ {
		if i > 1000 {
			t.Fatal("the journal does not fill up")
		}
		c.Send(packet.AppendSubscribe(nil, packet.V5, &packet.Subscribe{PacketID: c.NextID(), Filters: []packet.Subscription{{Filter: fmt.Sprint(i%4) + long}}}))
		frame, err := c.TryNextWithin(500 * time.Millisecond)
		if err != nil {
			break
		}
		if a, err := packet.ParseSuback(packet.V5, frame); err != nil || a.Codes[0] == packet.CodeQuotaExceeded {
			break
		}
	}
	start := time.Now()
	if err := b.end(); err != nil {
		t.Log(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestSecondBrokerIsRefused(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	b := runOn(t, d, nil)
	if _, err := broker.Open(diskOptions(d)); !errors.Is(err, store.ErrLocked) {
		t.Fatalf("a second broker on the same data: %v", err)
	}
	c := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("c"))
	c.Publish("a", "x")
}

// A disk that fails: nobody is told that a message is stored, and the broker ends with an error.
func TestSyncFails(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	b := runOn(t, d, nil)
	v5 := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("v5"))
	v3 := testbroker.ConnectRaw(t, b.addr, packet.V311, clean("v3"))
	v5.Publish("a", "before")
	v3.Publish("a", "before")
	d.Inject(vfstest.On(vfstest.Datasync, ".jrn", syscall.EIO))
	for _, c := range []*testbroker.Raw{v5, v3} {
		_ = c.TrySend(packet.AppendPublish(nil, c.Version(), &packet.Outgoing{QoS: 1, PacketID: 99, Topic: "a", Payload: []byte("after")}))
	}
	code := -1
	for {
		frame, err := v5.TryNext()
		if err != nil {
			break
		}
		switch packet.TypeOf(frame) {
		case packet.TypePuback:
			var a packet.Ack
			if err := packet.ParseAck(packet.V5, frame, &a); err != nil || a.PacketID != 99 || a.Code < 0x80 {
				t.Errorf("PUBACK %+v, %v", a, err)
			}
		case packet.TypeDisconnect:
			dis, err := packet.ParseServerDisconnect(frame)
			if err != nil {
				t.Fatal(err)
			}
			code = int(dis.Code)
		default:
			t.Errorf("got % X", frame)
		}
	}
	if code < 0x80 {
		t.Errorf("DISCONNECT 0x%X", code)
	}
	if frame, err := v3.TryNext(); err == nil {
		t.Errorf("a 3.1.1 client got % X", frame)
	}
	select {
	case err := <-b.done:
		if err == nil || !errors.Is(err, syscall.EIO) {
			t.Errorf("Run returned %v", err)
		}
		b.done = nil
		_ = b.Close()
	case <-time.After(testbroker.Patience):
		t.Error("the broker goes on")
	}
}

// A disk that is full: publishers are told, consumers go on, and once there is room so do publishers.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	b := runOn(t, d, func(o *broker.Options) { o.Exclude = []string{"live/#"} })
	consumer := testbroker.ConnectRaw(t, b.addr, packet.V5, keeper("consumer"))
	consumer.Subscribe("a", 1)
	v5 := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("v5"))
	v3 := testbroker.ConnectRaw(t, b.addr, packet.V311, clean("v3"))
	acked := 0
	for range 50 {
		v5.Publish("a", "x")
		acked++
	}
	d.SetCapacity(d.Used() + 200<<10)
	for i := 0; v5.Publish("a", strings.Repeat("x", 8<<10)) == 0; i++ {
		if acked++; i > 500 {
			t.Fatal("the disk does not fill up")
		}
	}
	if code := v5.Publish("a", "x"); code != packet.CodeQuotaExceeded {
		t.Errorf("PUBACK 0x%X", code)
	}
	v3.Send(packet.AppendPublish(nil, packet.V311, &packet.Outgoing{QoS: 1, PacketID: 7, Topic: "a"}))
	if frame, err := v3.TryNext(); err == nil {
		t.Errorf("a 3.1.1 client got % X", frame)
	}

	// Refusals come in their turn, after the answers to what went before.
	block := make(chan struct{})
	unblock := sync.OnceFunc(func() { close(block) })
	defer unblock()
	end := d.Inject(func(op vfstest.Op) error {
		if op.Kind == vfstest.Write && strings.HasSuffix(op.Name, ".jrn") {
			<-block
		}
		return nil
	})
	v5.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 1, PacketID: 1001, Topic: "live/x"}))
	v5.Ping() // by now it is on its way to the disk
	v5.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 1, PacketID: 1002, Topic: "a"}))
	if frame, err := v5.TryNextWithin(50 * time.Millisecond); err == nil {
		t.Errorf("got % X before the answer to what was published before", frame)
	}
	unblock()
	end()
	if code := v5.ExpectAck(packet.TypePuback, 1001); code != 0 {
		t.Errorf("PUBACK 0x%X for a message that is not stored", code)
	}
	if code := v5.ExpectAck(packet.TypePuback, 1002); code != packet.CodeQuotaExceeded {
		t.Errorf("PUBACK 0x%X", code)
	}

	for range acked {
		consumer.Ack(consumer.Delivery())
	}
	consumer.Ping() // nothing else came
	d.SetCapacity(0)
	deadline := time.Now().Add(testbroker.Patience)
	for v5.Publish("a", "room") != 0 {
		if time.Now().After(deadline) {
			t.Fatal("there is room, and publishers are still refused")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got := consumer.Delivery(); got.Payload != "room" {
		t.Errorf("got %q", got.Payload)
	}
}
