package broker_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// A persistent consumer that reconnects in a loop, mostly while the old connection is still there, loses nothing, whatever
// happens meanwhile. [mochi#173]
func TestTakeoverLoopLosesNothing(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		c := testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		c.Subscribe("t/#", 1)
		const publishers, each = 4, 400
		var wg sync.WaitGroup
		for p := range publishers {
			wg.Go(func() {
				pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean(fmt.Sprint("p", p)))
				for n := 1; n <= each; n++ {
					if pub.Publish(fmt.Sprint("t/", p), fmt.Sprintf("%d %d", p, n)) != 0 {
						t.Error("a publish was refused")
					}
				}
			})
		}
		var done atomic.Bool
		go func() { wg.Wait(); done.Store(true) }()
		seen, last := map[string]bool{}, [publishers]int{}
		take := func(c *testbroker.Raw, frame []byte) {
			d := c.Parse(frame)
			var p, n int
			if _, err := fmt.Sscan(d.Payload, &p, &n); err != nil {
				t.Fatal(err)
			}
			if !seen[d.Payload] {
				if n != last[p]+1 {
					t.Fatalf("%q came after number %d", d.Payload, last[p])
				}
				last[p], seen[d.Payload] = n, true
			} else if !d.Dup {
				t.Errorf("%q came again without DUP", d.Payload)
			}
			c.Ack(d)
		}
		deadline := time.Now().Add(testbroker.Patience)
		for round := 0; len(seen) < publishers*each; round++ {
			if time.Now().After(deadline) {
				t.Fatalf("%d messages of %d came", len(seen), publishers*each)
			}
			most := 1 + round%7
			if done.Load() {
				most = 1 << 20
			}
			for range most {
				frame, err := c.TryNextWithin(20 * time.Millisecond)
				if err != nil {
					break
				}
				take(c, frame)
			}
			if round%3 == 0 {
				c.Close()
			}
			next := testbroker.DialRaw(t, b.Addr, v)
			if ack := next.Connect(keeper("c")); ack.Code != 0 || !ack.SessionPresent {
				t.Fatalf("CONNACK %+v", ack)
			}
			c.Close()
			c = next
		}
	})
}

// Of many connections of one client that come at once one is left, and it is served.
func TestManyTakeOversAtOnce(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	for round := range 20 {
		type event struct {
			i int
			t packet.Type // 0: closed
		}
		events := make(chan event)
		var conns [12]*testbroker.Raw
		for i := range conns {
			conns[i] = testbroker.DialRaw(t, b.Addr, packet.V5)
		}
		for i, c := range conns {
			go func() {
				hello := keeper("c")
				hello.Version = packet.V5
				c.Send(packet.AppendConnect(nil, hello)) // the answer may not come: another may take over before
				for {
					frame, err := c.TryNext()
					if err != nil {
						events <- event{i, 0}
						return
					}
					events <- event{i, packet.TypeOf(frame)}
				}
			}()
		}
		alive := map[int]bool{}
		for i := range conns {
			alive[i] = true
		}
		for len(alive) > 1 {
			if e := <-events; e.t == 0 {
				delete(alive, e.i)
			}
		}
		for i := range alive {
			conns[i].Send(packet.AppendPingreq(nil))
			for e := (event{}); e.t != packet.TypePingresp; {
				if e = <-events; e.t == 0 {
					t.Fatalf("round %d: no connection is left", round)
				}
			}
			conns[i].Close()
			<-events
		}
	}
}

// A consumer that stops reading holds up nobody, and is replaced at once. [mochi#95, mochi#150]
func TestTakeoverOfOneThatDoesNotRead(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		deaf := testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		deaf.Subscribe("t", 1)
		pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
		const all = 100
		for i := range all {
			pub.Publish("t", fmt.Sprint(i)+" "+strings.Repeat("x", 200_000))
		}
		start := time.Now()
		c := testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		if took := time.Since(start); took > time.Second {
			t.Errorf("the takeover took %v", took)
		}
		for i := range all {
			d := c.Delivery()
			if !strings.HasPrefix(d.Payload, fmt.Sprint(i, " ")) {
				t.Fatalf("got %q, want %d", d.Payload[:10], i)
			}
			c.Ack(d)
		}
		code := deaf.ExpectClosed()
		if v == packet.V311 && code != -1 {
			t.Errorf("a 3.1.1 client was sent DISCONNECT 0x%X", code)
		}
	})
}

// One subscriber stops reading. Others go on meanwhile, the broker's memory stays where it is, and the one gets everything
// in order when it reads again.
func TestSlowSubscriberCatchesUp(t *testing.T) {
	o := diskOptions(nil)
	o.Store.Dir, o.Store.FS = t.TempDir(), nil // the real disk: the other one takes memory
	b := runWith(t, nil, o)
	slow := testbroker.ConnectRaw(t, b.addr, packet.V311, keeper("slow"))
	slow.Subscribe("t", 1)
	quick := testbroker.ConnectRaw(t, b.addr, packet.V311, keeper("quick"))
	quick.Subscribe("t", 1)
	pub := testbroker.ConnectRaw(t, b.addr, packet.V5, clean("pub"))
	const all, size = 8000, 4 << 10
	body := strings.Repeat("x", size)
	before := heap()
	for i := 0; i < all; i += 100 {
		var burst []byte
		for n := range 100 {
			burst = packet.AppendPublish(burst, packet.V5, &packet.Outgoing{QoS: 1, PacketID: uint16(1 + n), Topic: "t", Payload: fmt.Append(nil, i+n, " ", body)})
		}
		pub.Send(burst)
		for n := range 100 {
			pub.ExpectAck(packet.TypePuback, uint16(1+n))
		}
		for n := range 100 {
			got := quick.Delivery()
			if !strings.HasPrefix(got.Payload, fmt.Sprint(i+n, " ")) {
				t.Fatalf("the quick one got %q, want %d", got.Payload[:10], i+n)
			}
			quick.Ack(got)
		}
	}
	if grown := heap() - before; grown > 24<<20 {
		t.Errorf("the broker took %d MiB for a subscriber that does not read", grown>>20)
	}
	for i := range all {
		got := slow.Delivery()
		if !strings.HasPrefix(got.Payload, fmt.Sprint(i, " ")) {
			t.Fatalf("the slow one got %q, want %d", got.Payload[:10], i)
		}
		slow.Ack(got)
	}
	pub.Publish("t", "live")
	if got := slow.Delivery(); got.Payload != "live" {
		t.Errorf("got %q", got.Payload[:10])
	}
}
