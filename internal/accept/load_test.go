package accept

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// heap is what is alive in memory.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// flow sends messages to a topic and has them come back, one at a time, and returns how long each took.
func flow(t testing.TB, addr, name string, n int) []time.Duration {
	t.Helper()
	c := connect(t, addr, packet.V5, "flow-"+name)
	c.subscribe(name)
	p := connect(t, addr, packet.V5, "flow-pub-"+name)
	var took []time.Duration
	for i := range n {
		sent := time.Now()
		p.SendPublish(1, p.id(), name, strconv.Itoa(i))
		d := c.Delivery()
		c.Ack(d)
		took = append(took, time.Since(sent))
		p.acks(1)
	}
	slices.Sort(took)
	return took
}

// A backlog costs no memory, and its consumer that returns drains all of it, in order, while others go on.
func TestAT82(t *testing.T) { // and AT-83
	t.Run("AT-82 a backlog, AT-83 its consumer returns", func(t *testing.T) { // not beside others: it looks at the memory of the process
		n := size(40_000, 5_000_000)
		b := testbroker.Run(t, testbroker.Options{Set: []string{"store.tail_bytes=4MiB", "store.cache_bytes=4MiB"}})
		c := connect(t, b.Addr, packet.V5, "c")
		c.attach("Q1", "T")
		c.Close()
		p := connect(t, b.Addr, packet.V5, "p")
		publish := func(from, to int) {
			for ; from < to; from += 500 {
				var buf []byte
				for i := from; i < from+500; i++ {
					buf = packet.AppendPublish(buf, packet.V5, &packet.Outgoing{QoS: 1, PacketID: p.id(), Topic: "T", Payload: fmt.Appendf(nil, "%d %s", i, pad)})
				}
				p.Send(buf)
				p.acks(500)
			}
		}
		publish(0, n/2)
		before := heap()
		alone := flow(t, b.Addr, "before", 100)
		publish(n/2, n)
		if grown := heap() - before; grown > 12<<20 {
			t.Errorf("the heap has grown by %d KiB with %d messages waiting", grown>>10, n/2)
		}
		var beside []time.Duration
		var wg sync.WaitGroup
		wg.Go(func() { beside = flow(t, b.Addr, "beside", 100) })
		began := time.Now()
		c = connect(t, b.Addr, packet.V5, "c")
		c.attach("Q1")
		for i := range n {
			d := c.Delivery()
			c.Ack(d)
			if num, _, _ := strings.Cut(d.Payload, " "); num != strconv.Itoa(i) {
				t.Fatalf("%s, want %d", num, i)
			}
		}
		drained := time.Since(began)
		wg.Wait()
		t.Logf("drained %d in %v; round trips p50 %v alone, %v beside; p99 %v, %v", n, drained, alone[50], beside[50], alone[99], beside[99])
		if p50 := beside[50]; p50 > 20*alone[50]+50*time.Millisecond { // CI machines are what they are; the figures are in the log
			t.Errorf("the live flow waits: %v, %v without the drain", p50, alone[50])
		}
	})
}

var pad = strings.Repeat("x", 100)

// A backlog is spread over ten queues, which ten consumers drain: nothing is lost, nothing comes twice, in the order of each.
func TestAT84(t *testing.T) {
	t.Parallel()
	t.Run("AT-84 emergency expansion", func(t *testing.T) {
		n := size(3000, 5_000_000)
		dir := t.TempDir()
		b := testbroker.Run(t, testbroker.Options{Dir: dir})
		a := adminOf(t, dir)
		connect(t, b.Addr, packet.V5, "p").publish("$queue/Q1", numbers("", n)...)
		for i := range 10 {
			var done struct{ Messages int }
			if a.call("POST", "/v1/queues/Q1/move", fmt.Sprintf(`{"to": "part%d", "count": %d}`, i, n/10), &done); done.Messages != n/10 {
				t.Fatalf("part %d: %d moved", i, done.Messages)
			}
		}
		if q := a.queue("Q1"); q.Depth != 0 {
			t.Errorf("%d are left", q.Depth)
		}
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				c := connect(t, b.Addr, packet.V5, fmt.Sprint("c", i))
				c.attach(fmt.Sprint("part", i))
				c.want(numbers("", n)[i*n/10 : (i+1)*n/10]...)
				c.nothing()
			})
		}
		wg.Wait()
	})
}

// The disk is synced as often as groups are committed, and not for each client.
func TestAT88(t *testing.T) {
	t.Run("AT-88 fsyncs", func(t *testing.T) {
		idle, active, each := size(100, 1000), size(50, 100), 20
		b := testbroker.Run(t, testbroker.Options{})
		for i := range idle {
			connectAs(t, b.Addr, packet.V5, &packet.Connect{ClientID: fmt.Sprint("idle", i), HasSessionExpiry: true, SessionExpiry: 100})
		}
		var cs []*client
		for i := range active {
			cs = append(cs, connect(t, b.Addr, packet.V5, fmt.Sprint("active", i)))
		}
		before := b.Store().Stats().Syncs
		var wg sync.WaitGroup
		for i, c := range cs {
			wg.Go(func() {
				for range each { // one at a time: each waits for its sync
					c.publish(fmt.Sprint("T", i), "x")
				}
			})
		}
		wg.Wait()
		syncs := int(b.Store().Stats().Syncs - before)
		t.Logf("%d syncs for %d publishes of %d clients", syncs, active*each, active)
		if syncs > active*each/3 {
			t.Errorf("%d syncs for %d publishes", syncs, active*each)
		}
	})
}

// A consumer that takes its time keeps no other one waiting, and holds no more than its window.
func TestAT90(t *testing.T) {
	versions(t, "AT-90 a slow consumer", func(t *testing.T, v packet.Version) {
		dir := t.TempDir()
		b := testbroker.Run(t, testbroker.Options{Dir: dir, Set: []string{"session.window=20", "session.max_window=20"}})
		slow, fast := connect(t, b.Addr, v, "slow"), connect(t, b.Addr, v, "fast")
		slow.attach("slow", "T1")
		fast.attach("fast", "T1")
		p := connect(t, b.Addr, v, "p")
		n := size(2000, 100_000)
		for i := 0; i < n; i += 500 {
			p.publish("T1", numbers("", i+500)[i:]...)
			for j := i; j < i+500; j++ {
				if got := fast.take(1)[0]; got != strconv.Itoa(j) {
					t.Fatalf("%s, want %d", got, j)
				}
			}
			slow.take(1)
		}
		a := adminOf(t, dir)
		if q := a.queue("slow"); q.InFlight > 20 || q.Depth < int64(n-n/500-1) {
			t.Errorf("slow: %d in flight, depth %d", q.InFlight, q.Depth)
		}
	})
}
