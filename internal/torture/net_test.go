package torture

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// few makes a number that "make torture" wants small in an ordinary run.
func few(n int) int {
	if *heavy {
		return n
	}
	return n / 50
}

// network starts the real broker for a test of what clients can do to it.
func network(t *testing.T, set ...string) *testbroker.Process {
	t.Helper()
	return testbroker.Start(t, testbroker.Options{Set: append([]string{"limits.connect_timeout=1s", "store.journal_file=32MiB"}, set...)})
}

func raw(t *testing.T, b *testbroker.Process, id string) *testbroker.Raw {
	return testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: id, Clean: true})
}

// Sockets on which nothing, half a CONNECT, or one byte at a time comes are closed in time, and leave nothing behind.
func TestHalfOpenConnections(t *testing.T) {
	t.Parallel()
	b := network(t)
	before := measure(t, b)
	hello := packet.AppendConnect(nil, &packet.Connect{Version: packet.V5, ClientID: "half", Clean: true})
	for i := range few(5000) {
		c, err := net.Dial("tcp", b.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write(hello[:i%len(hello)])
	}
	witness := raw(t, b, "witness")
	witness.Publish("t", "in between")
	witness.Close()
	calms(t, b, before)
	slow := testbroker.DialRaw(t, b.Addr, packet.V5)
	for _, p := range append(hello, packet.AppendPingreq(nil)...) {
		slow.Send([]byte{p})
	}
	slow.Expect(packet.TypeConnack)
	slow.Expect(packet.TypePingresp)
}

// A flood of clients that connect and go, politely or not.
func TestConnectFlood(t *testing.T) {
	t.Parallel()
	b := network(t)
	before := measure(t, b)
	began := time.Now()
	n := few(20_000)
	var wg sync.WaitGroup
	for w := range 10 {
		wg.Go(func() {
			for i := range n / 10 {
				c, err := net.Dial("tcp", b.Addr)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = c.Write(packet.AppendConnect(nil, &packet.Connect{Version: packet.V5, ClientID: fmt.Sprint("flood", w, "-", i), Clean: true}))
				_ = c.SetReadDeadline(time.Now().Add(testbroker.Patience))
				if _, err := c.Read(make([]byte, 100)); err != nil {
					t.Error(err)
				}
				if i%2 == 0 {
					_, _ = c.Write(packet.AppendDisconnect(nil, packet.V5, &packet.Disconnect{}))
				}
				_ = c.Close()
			}
		})
	}
	wg.Wait()
	t.Logf("%d connections in %v", n, time.Since(began).Round(time.Millisecond))
	calms(t, b, before)
}

// Subscribers that do not read cost what the settings say and hold nobody up.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	b := network(t, "session.window_bytes=256KiB", "store.tail_bytes=8MiB", "store.cache_bytes=8MiB")
	const readers = 50
	for i := range readers {
		raw(t, b, fmt.Sprint("deaf", i)).Subscribe("t", 1)
	}
	witness := raw(t, b, "witness")
	witness.Subscribe("t", 1)
	p := raw(t, b, "p")
	before := measure(t, b)
	body := strings.Repeat("x", 100<<10)
	n := few(50 * 100)
	for range n {
		if code := p.Publish("t", body); code != 0 {
			t.Fatalf("PUBACK 0x%X", code)
		}
		witness.Ack(witness.Delivery())
	}
	after := measure(t, b)
	t.Logf("%d messages of 100 KiB for %d readers that do not read: before %v, after %v", n, readers, before, after)
	// Each may have its window under way and as much in the socket; the tail and the cache are their own.
	if bound := before.rss + readers*3*256<<10 + 128<<20; after.rss > bound {
		t.Errorf("it uses %d MiB, more than %d", after.rss>>20, bound>>20)
	}
}

// Many topics, many subscriptions, many retained messages, deep names.
func TestManyNames(t *testing.T) {
	t.Parallel()
	b := network(t)
	p := raw(t, b, "p")
	grow := func(what string, n int, do func()) {
		before, began := measure(t, b), time.Now()
		do()
		after := measure(t, b)
		t.Logf("%d %s: %v, %d KiB of memory more, %.2f KiB each", n, what, time.Since(began).Round(time.Millisecond), (after.rss-before.rss)>>10, float64(after.rss-before.rss)/1024/float64(n))
	}
	publish := func(n int, o func(i int) *packet.Outgoing) {
		const window = 500
		for i := range n {
			x := o(i)
			x.QoS, x.PacketID = 1, uint16(i%60_000)+1
			p.Send(packet.AppendPublish(nil, packet.V5, x))
			if i >= window {
				p.Expect(packet.TypePuback)
			}
		}
		for range min(n, window) {
			p.Expect(packet.TypePuback)
		}
	}
	n := few(50_000)
	grow("topics", n, func() {
		publish(n, func(i int) *packet.Outgoing {
			return &packet.Outgoing{Topic: fmt.Sprintf("plant/%d/line/%d/value", i%97, i)}
		})
	})
	n = few(20_000)
	grow("retained messages", n, func() {
		publish(n, func(i int) *packet.Outgoing {
			return &packet.Outgoing{Retain: true, Topic: fmt.Sprint("ret/", i), Payload: []byte("kept")}
		})
	})
	all := raw(t, b, "all")
	all.Subscribe("ret/+", 0)
	for range n {
		all.Delivery()
	}
	all.Close()
	n = few(10_000)
	many := raw(t, b, "many")
	grow("subscriptions of one client", n, func() {
		for i := 0; i < n; i += 100 {
			var s packet.Subscribe
			for k := range 100 {
				s.Filters = append(s.Filters, packet.Subscription{Filter: fmt.Sprintf("many/+/%d", i+k), QoS: 1})
			}
			s.PacketID = many.NextID()
			many.Send(packet.AppendSubscribe(nil, packet.V5, &s))
			many.Expect(packet.TypeSuback)
		}
	})
	for i := 0; i < n; i += 9 {
		p.Publish(fmt.Sprintf("many/x/%d", i), "x")
		d := many.Delivery()
		if d.Topic != fmt.Sprintf("many/x/%d", i) {
			t.Fatalf("got %s", d.Topic)
		}
		many.Ack(d)
	}

	deep := raw(t, b, "deep")
	name := strings.TrimSuffix(strings.Repeat("a/", 128), "/")
	began := time.Now()
	for i := range 120 { // as many wildcards as there are levels: 2 to the 128th names match
		f := strings.Split(name, "/")
		for k := range f {
			if (k*i)%3 == 0 {
				f[k] = "+"
			}
		}
		deep.Subscribe(strings.Join(f[:127], "/")+"/#", 1)
	}
	p.Publish(name, "deep")
	if d := deep.Delivery(); d.Payload != "deep" {
		t.Errorf("got %q", d.Payload)
	}
	t.Logf("120 filters of 128 levels with wildcards: %v", time.Since(began).Round(time.Millisecond))
}

// Packet ids wrap around, in both directions and at both levels, with some of them in use all the time.
func TestPacketIDsWrapAround(t *testing.T) {
	t.Parallel()
	b := network(t)
	n := 66_000
	if !*heavy {
		n = 3000
	}
	p := &Plant{H: NewHistory(Reader{Name: "s"})}
	s, pub := NewClient(p.H, "s", packet.V5, 1), NewClient(p.H, "p", packet.V311, 2)
	s.Addr, pub.Addr, s.Late = b.Addr, b.Addr, 0.01
	for _, c := range []*Client{s, pub} {
		if err := c.Connect(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Subscribe("t", "t", 2); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= n; i++ {
		if err := pub.Publish(&Message{Source: "p", Topic: "t", N: i, QoS: byte(1 + i%2)}); err != nil {
			t.Fatal(err)
		}
		for wait := 0; pub.Pending() > 500; wait++ {
			if time.Sleep(200 * time.Microsecond); wait > 100_000 {
				t.Fatal("the broker does not answer")
			}
		}
		if i%5000 == 0 {
			s.Settle()
		}
	}
	s.Settle()
	for pub.Pending() > 0 {
		time.Sleep(time.Millisecond)
	}
	p.await(time.Now().Add(testbroker.Patience), "s")
	report(t, p, p.H.Check())
	s.Break()
	pub.Break()
}

// One client id is taken over a hundred times a second while messages flow to it: nothing is lost, out of order or there twice at QoS 2.
func TestTakeovers(t *testing.T) {
	t.Parallel()
	b := network(t)
	before := measure(t, b)
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		p := &Plant{H: NewHistory(Reader{Name: "s"})}
		s, pub := NewClient(p.H, "s", v, 1), NewClient(p.H, fmt.Sprint("p", v), v, 2)
		s.Addr, pub.Addr = b.Addr, b.Addr
		if err := pub.Connect(); err != nil {
			t.Fatal(err)
		}
		topic := fmt.Sprint("t", v)
		n, takeovers, began := 0, 0, time.Now()
		for ; takeovers < few(2000); takeovers++ {
			if err := s.Connect(); err != nil {
				t.Fatal(err)
			}
			if takeovers == 0 {
				if err := s.Subscribe(topic, topic, 2); err != nil {
					t.Fatal(err)
				}
			}
			for range 5 {
				n++
				_ = pub.Publish(&Message{Source: pub.ID, Topic: topic, N: n, QoS: byte(1 + n%2)})
			}
			<-time.After(time.Until(began.Add(time.Duration(takeovers) * 10 * time.Millisecond)))
		}
		rate := float64(takeovers) / time.Since(began).Seconds()
		for pub.Pending() > 0 { // what is not acknowledged need not come
			time.Sleep(time.Millisecond)
		}
		p.await(time.Now().Add(testbroker.Patience), "s")
		report(t, p, p.H.Check())
		t.Logf("MQTT %d: %d takeovers, %.0f a second, %d messages", v, takeovers, rate, n)
		s.Break()
		pub.Break()
		// The session goes, for the next version's client has the same id.
		testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "s", Clean: true}).Close()
	}
	calms(t, b, before)
}
