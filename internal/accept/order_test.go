package accept

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// number is the number at the end of a text.
func number(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyz"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Everything that was acknowledged is there after a kill.
func TestAT23(t *testing.T) {
	versions(t, "AT-23 acknowledged is on disk", func(t *testing.T, v packet.Version) {
		b := testbroker.Start(t, testbroker.Options{})
		connect(t, b.Addr, v, "p").publish("T", numbers("", 5000)...)
		b.Kill()
		b.Restart()
		c := connect(t, b.Addr, v, "c")
		c.attach("Q", "T")
		c.want(numbers("", 5000)...)
	})
}

// checker checks that each publisher's messages of each name come in order, without a gap or a repetition.
type checker struct {
	mu   sync.Mutex
	next map[string]int // by name and publisher
	n    int
}

// got takes a payload "publisher number" that came from a name.
func (k *checker) got(name, payload string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	who, num, _ := strings.Cut(payload, " ")
	if k.next == nil {
		k.next = map[string]int{}
	}
	key := name + " " + who
	if n, err := strconv.Atoi(num); err != nil || n != k.next[key] {
		return fmt.Errorf("%s: publisher %s: %s, want %d", name, who, num, k.next[key])
	}
	k.next[key]++
	k.n++
	return nil
}

func TestAT24(t *testing.T) {
	versions(t, "AT-24 order of each publisher in each name", func(t *testing.T, v packet.Version) {
		const publishers, consumers, names = 20, 10, 100
		each := size(200, 10_000)
		b := testbroker.Run(t, testbroker.Options{})
		name := func(i int) string {
			if i%10 == 0 {
				return fmt.Sprint("$queue/q", i/10)
			}
			return fmt.Sprint("t", i)
		}
		var k checker
		var wg sync.WaitGroup
		for p := range publishers {
			wg.Go(func() {
				c := connect(t, b.Addr, v, fmt.Sprint("p", p))
				sent := map[string]int{}
				for start := 0; start < each; start += 200 {
					var buf []byte
					for i := start; i < min(start+200, each); i++ {
						n := name((i + p) % names)
						buf = packet.AppendPublish(buf, v, &packet.Outgoing{QoS: 1, PacketID: c.id(), Topic: n, Payload: fmt.Appendf(nil, "%d %d", p, sent[n])})
						sent[n]++
					}
					c.Send(buf)
					c.acks(min(200, each-start))
				}
			})
		}
		for q := range consumers {
			wg.Go(func() {
				c := connect(t, b.Addr, v, fmt.Sprint("c", q))
				var topics []string
				for i := range names {
					if i%10 != 0 && i/10 == q {
						topics = append(topics, name(i))
					}
				}
				c.attach(fmt.Sprint("q", q), topics...)
				for range publishers * each / consumers {
					d := c.Delivery()
					c.Ack(d)
					if err := k.got(d.Topic, d.Payload); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if k.n != publishers*each {
			t.Errorf("%d came, want %d", k.n, publishers*each)
		}
	})
}

func TestAT25(t *testing.T) {
	t.Run("AT-25 the checker", func(t *testing.T) {
		for _, tc := range []struct {
			order string
			legal bool
		}{
			{"1 0,1 1,1 2,2 0,2 1,2 2", true},
			{"1 0,2 0,1 1,2 1,1 2,2 2", true},
			{"2 0,2 1,1 1,2 2,1 0,1 2", false},
		} {
			var k checker
			var err error
			for p := range strings.SplitSeq(tc.order, ",") {
				err = errors.Join(err, k.got("T", p))
			}
			if (err == nil) != tc.legal {
				t.Errorf("%s: %v", tc.order, err)
			}
		}
	})
	versions(t, "AT-25 two publishers", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		var wg sync.WaitGroup
		for p := range 2 {
			wg.Go(func() {
				connect(t, b.Addr, v, fmt.Sprint("p", p)).publish("T", numbers(fmt.Sprint(p, " "), 300)...)
			})
		}
		c := connect(t, b.Addr, v, "c")
		c.attach("Q", "T")
		var k checker
		for range 600 {
			if err := k.got("T", c.take(1)[0]); err != nil {
				t.Fatal(err)
			}
		}
		wg.Wait()
	})
}

func TestAT26(t *testing.T) {
	versions(t, "AT-26 small, large, small", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		var want []string
		for i := range 9 {
			want = append(want, fmt.Sprint(i, strings.Repeat("x", []int{100, 200 << 10, 100}[i%3])))
		}
		p, c := connect(t, b.Addr, v, "p"), connect(t, b.Addr, v, "c")
		p.publish("T", want...)
		c.attach("Q", "T")
		for i, w := range want {
			if got := c.take(1)[0]; got != w {
				t.Fatalf("message %d is %.10q… of %d bytes", i, got, len(got))
			}
		}
	})
}

// The connection is cut again and again. What comes twice is what was not acknowledged, in order, and nothing is out of turn.
func TestAT27(t *testing.T) {
	versions(t, "AT-27 consumer is cut", func(t *testing.T, v packet.Version) {
		n, cut := size(2000, 100_000), size(100, 1000)
		b := testbroker.Run(t, testbroker.Options{Set: []string{"session.window=64", "session.max_window=64"}})
		connect(t, b.Addr, v, "p").publish("T", numbers("", n)...)
		next := 0 // of what came first
		for done := 0; done < n; {
			c := connectAs(t, b.Addr, v, &packet.Connect{ClientID: "c", HasSessionExpiry: true, SessionExpiry: 100})
			if done == 0 {
				c.attach("Q", "T")
			}
			last := -1
			for i := 0; i < cut && done < n; i++ {
				d := c.Delivery()
				m := number(t, d.Payload)
				if last >= 0 && m != last+1 || m > next || m < next-64-64 {
					t.Fatalf("%d after %d, the next new one is %d", m, last, next)
				}
				if last = m; m == next {
					next++
				}
				if i < cut-10 { // the last few of each connection are lost
					c.Ack(d)
					done = max(done, m+1)
				} else if m == n-1 {
					c.Ack(d)
					done = n
				}
			}
			c.Ping2()
			c.Close()
		}
		if next != n {
			t.Errorf("%d came, want %d", next, n)
		}
	})
}

// Ping2 waits for the answer to a PINGREQ, so that what was sent before has been read; deliveries in between are passed over.
func (c *client) Ping2() {
	c.t.Helper()
	c.Send(packet.AppendPingreq(nil))
	for packet.TypeOf(c.Next()) != packet.TypePingresp {
	}
}

// The publisher is cut with publishes unanswered and sends them again; with a @MessageId each is stored once, in order.
func TestAT28(t *testing.T) {
	t.Parallel()
	t.Run("AT-28 publisher is cut", func(t *testing.T) {
		n := size(2000, 100_000)
		b := testbroker.Run(t, testbroker.Options{})
		next := 0 // not acknowledged
		for next < n {
			c := connect(t, b.Addr, packet.V5, "p")
			var buf []byte
			for i := next; i < min(n, next+400); i++ {
				props := packet.AppendUser(nil, "@MessageId", strconv.Itoa(i))
				buf = packet.AppendPublish(buf, packet.V5, &packet.Outgoing{QoS: 1, PacketID: c.id(), Topic: "T", Props: props, Payload: []byte(strconv.Itoa(i))})
			}
			c.Send(buf)
			acked := min(200, n-next)
			c.acks(acked) // of the others the answers are lost
			next += acked
			c.Close()
		}
		c := connect(t, b.Addr, packet.V5, "c")
		c.attach("Q", "T")
		c.want(numbers("", n)...)
		c.nothing()
	})
}

// With Receive Maximum 1 there is never a later message before an earlier one, over reconnects too.
func TestAT29(t *testing.T) {
	t.Parallel()
	t.Run("AT-29 receive maximum 1", func(t *testing.T) {
		n := size(300, 10_000)
		b := testbroker.Run(t, testbroker.Options{})
		hello := func() *client {
			return connectAs(t, b.Addr, packet.V5, &packet.Connect{ClientID: "c", HasSessionExpiry: true, SessionExpiry: 100, ReceiveMaximum: 1})
		}
		c := hello()
		c.attach("Q", "T")
		c.subscribe("T")
		connect(t, b.Addr, packet.V5, "p").publish("T", numbers("", n)...)
		rng := rand.New(rand.NewPCG(29, 29))
		// Two ways to the same messages: the queue, and the ordinary subscription. Each must be in order.
		var seen [2]int
		for seen[0] < n || seen[1] < n {
			d := c.Delivery()
			way := 0
			if user(d, "@Offset") == "" {
				way = 1
			}
			if m := number(t, d.Payload); m != seen[way] {
				t.Fatalf("way %d: %d, want %d", way, m, seen[way])
			}
			if rng.IntN(20) == 0 { // gone without an answer: it comes again
				c.Close()
				c = hello()
				continue
			}
			c.Ack(d)
			seen[way]++
		}
		c.nothing()
	})
}

// After a kill consumption goes on at or before what was acknowledged last, and never behind it.
func TestAT39(t *testing.T) {
	versions(t, "AT-39 cursors survive a kill", func(t *testing.T, v packet.Version) {
		n, rounds := 600, 3
		b := testbroker.Start(t, testbroker.Options{})
		connect(t, b.Addr, v, "p").publish("T", numbers("", n)...)
		acked := 0
		for round := range rounds {
			c := connect(t, b.Addr, v, fmt.Sprint("c", round))
			c.attach("Q", "T")
			first := number(t, c.hold(1)[0].Payload)
			if first > acked {
				t.Fatalf("%d comes first, and %d was not acknowledged", first, acked)
			}
			c.Close()
			c = connect(t, b.Addr, v, fmt.Sprint("d", round))
			c.attach("Q")
			got := c.take(100)
			acked = max(acked, number(t, got[99])+1)
			c.Ping2()
			b.Kill()
			b.Restart()
		}
	})
}

func TestAT54(t *testing.T) {
	versions(t, "AT-54 shared subscription", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		var ms []*client
		for i := range 3 {
			c := connect(t, b.Addr, v, fmt.Sprint("m", i))
			c.subscribe("$share/g/T1")
			ms = append(ms, c)
		}
		const publishers, each = 12, 50
		for p := range publishers {
			connect(t, b.Addr, v, fmt.Sprint("p", p)).publish("T1", numbers(fmt.Sprint(p, " "), each)...)
		}
		type got struct {
			from int
			d    testbroker.Delivery
		}
		in := make(chan got)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for i, c := range ms {
			wg.Go(func() {
				for {
					frame, err := c.TryNextWithin(quiet)
					if err == nil {
						select {
						case in <- got{i, c.Parse(frame)}:
							continue
						case <-stop:
							return
						}
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
		// Nobody acknowledges. The member with the most goes, and what it had goes to the others, once each.
		had := map[int][]testbroker.Delivery{}
		owner := map[string]int{}
		for range publishers * each {
			g := <-in
			if _, twice := owner[g.d.Payload]; twice {
				t.Fatalf("%q came twice", g.d.Payload)
			}
			owner[g.d.Payload] = g.from
			had[g.from] = append(had[g.from], g.d)
		}
		dead := 0
		for i := range ms {
			if len(had[i]) > len(had[dead]) {
				dead = i
			}
		}
		if len(had[dead]) < 50 {
			t.Fatalf("the largest part is %d", len(had[dead]))
		}
		ms[dead].Close()
		var k checker
		for range had[dead] {
			g := <-in
			if owner[g.d.Payload] != dead || g.from == dead {
				t.Fatalf("%q comes again, to %d", g.d.Payload, g.from)
			}
			delete(owner, g.d.Payload)
			if err := k.got("T1", g.d.Payload); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case g := <-in:
			t.Errorf("%q comes again", g.d.Payload)
		case <-time.After(quiet):
		}
		close(stop)
		wg.Wait()
	})
}

// What is stored while a session is offline, within the same second, comes in the stored order.
func TestAT93(t *testing.T) {
	versions(t, "AT-93 offline session", func(t *testing.T, v packet.Version) {
		n := size(5000, 1_000_000)
		b := testbroker.Run(t, testbroker.Options{})
		hello := func() *client {
			return connectAs(t, b.Addr, v, &packet.Connect{ClientID: "c", HasSessionExpiry: true, SessionExpiry: 1000})
		}
		c := hello()
		c.subscribe("T/#")
		c.Close()
		p := connect(t, b.Addr, v, "p")
		for i := 0; i < n; i += 200 { // over several topics
			p.publish(fmt.Sprint("T/", i/200%7), slices.Clone(numbers("", i+200)[i:])...)
		}
		c = hello()
		for i := range n {
			if got := c.take(1)[0]; got != strconv.Itoa(i) {
				t.Fatalf("%s, want %d", got, i)
			}
		}
		c.nothing()
	})
}
