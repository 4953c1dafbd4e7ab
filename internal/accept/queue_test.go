package accept

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/sdk"
)

// A consumer that is attached to nothing gets nothing, and an SDK consumer's Poll says so at once.
func TestAT11(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	versions(t, "AT-11 not attached", func(t *testing.T, v packet.Version) {
		c := connect(t, b.Addr, v, "")
		connect(t, b.Addr, v, "").publish("$queue/AT11", "x")
		c.nothing()
		s, err := sdk.Dial(t.Context(), "mqtt://"+b.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if d, err := s.PullConsumer().Poll(ctx); d != nil || err != nil {
			t.Errorf("%v, %v", d, err)
		}
	})
}

func TestAT12(t *testing.T) {
	versions(t, "AT-12 attach twice is a union", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		p, c := connect(t, b.Addr, v, "p"), connect(t, b.Addr, v, "c")
		c.attach("Q1", "T1")
		c.attach("Q1", "T2")
		p.publish("$queue/Q1", "q")
		p.publish("T1", "1")
		p.publish("T2", "2")
		c.want("q", "1", "2")
		c.nothing()
	})
}

// A raw client may attach to several queues; the SDK's consumer is of one, and says so.
func TestAT13(t *testing.T) {
	versions(t, "AT-13 another queue", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		p, c := connect(t, b.Addr, v, "p"), connect(t, b.Addr, v, "c")
		c.attach("Q1", "T1")
		c.attach("Q2", "T2")
		p.publish("T1", "1")
		p.publish("T2", "2")
		p.publish("$queue/Q1", "q")
		c.wantAny("1", "2", "q")
		s, err := sdk.Dial(t.Context(), "mqtt://"+b.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		q := s.PullConsumer()
		if err := q.AttachQueue(t.Context(), "Q3"); err != nil {
			t.Fatal(err)
		}
		if err := q.AttachQueue(t.Context(), "Q4"); !errors.Is(err, sdk.ErrAttached) {
			t.Errorf("%v, want ErrAttached", err)
		}
		p.publish("$queue/Q3", "still here")
		await(t, "the message of the queue that it is attached to", func() bool {
			d, err := q.Poll(t.Context())
			return err == nil && d != nil && string(d.Body()) == "still here"
		})
	})
}

func TestAT14(t *testing.T) {
	versions(t, "AT-14 bound to nothing", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		p, c := connect(t, b.Addr, v, "p"), connect(t, b.Addr, v, "c")
		c.attach("Q1")
		p.publish("T1", "1")
		p.publish("Q1", "a topic of the same name")
		p.publish("$queue/Q1", "q")
		c.want("q")
		c.nothing()
	})
}

func TestAT15(t *testing.T) {
	versions(t, "AT-15 bound twice", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		p, c := connect(t, b.Addr, v, "p"), connect(t, b.Addr, v, "c")
		p.publish("T1", numbers("", 10)...)
		c.attach("Q1", "T1", "T1", "+", "#")
		p.publish("T1", "live")
		c.want(append(numbers("", 10), "live")...)
		c.nothing()
	})
}

func TestAT16(t *testing.T) {
	versions(t, "AT-16 stored before the first attach", func(t *testing.T, v packet.Version) {
		n := size(2500, 10_000)
		b := testbroker.Run(t, testbroker.Options{})
		p := connect(t, b.Addr, v, "p")
		p.publish("T1", numbers("t", n)...)
		p.publish("$queue/Q1", numbers("q", n)...)
		c := connect(t, b.Addr, v, "c")
		c.attach("Q1", "T1")
		got := c.take(2 * n)
		want := map[byte]int{}
		for _, p := range got { // the attach binds while what was sent to the queue is already on its way, so the two may mix
			if n := number(t, p); n != want[p[0]] {
				t.Fatalf("%s, want %d", p, want[p[0]])
			}
			want[p[0]]++
		}
		c.nothing()
	})
}

func TestAT17(t *testing.T) {
	versions(t, "AT-17 two queues of one topic", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		p, one, two := connect(t, b.Addr, v, "p"), connect(t, b.Addr, v, "1"), connect(t, b.Addr, v, "2")
		one.attach("Q1", "T1")
		p.publish("T1", numbers("", 100)...)
		one.want(numbers("", 100)...)
		two.attach("Q2", "T1")
		two.want(numbers("", 50)...)
		p.publish("T1", "new")
		one.want("new")
		for i := 50; i < 100; i++ {
			two.want(numbers("", 100)[i])
		}
		two.want("new")
	})
}

func TestAT18(t *testing.T) {
	versions(t, "AT-18 direct messages are the queue's alone", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		p := connect(t, b.Addr, v, "p")
		var readers []*client
		for i, filter := range []string{"#", "+/Q1", "$share/g/#", "$share/h/+/Q1", "$queue/Q2/#", "$s/earliest/#", "$exclusive/+/Q1", "$v5/#"} {
			c := connect(t, b.Addr, v, "r"+numbers("", 10)[i])
			c.subscribe(filter)
			readers = append(readers, c)
		}
		p.publish("$queue/Q1", "direct")
		p.publish("any/Q1", "marker") // all of them have this, and nothing before it
		for i, c := range readers {
			if d := c.Delivery(); d.Topic != "any/Q1" {
				t.Errorf("reader %d got %q", i, d.Topic)
			}
		}
		c := connect(t, b.Addr, v, "c")
		c.attach("Q1")
		c.want("direct")
	})
}

func TestAT20(t *testing.T) {
	versions(t, "AT-20 new messages after the end", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		p, c := connect(t, b.Addr, v, "p"), connect(t, b.Addr, v, "c")
		c.attach("Q1", "T1")
		c.nothing()
		p.publish("T1", "1")
		c.want("1")
		c.nothing()
		p.publish("$queue/Q1", "2")
		c.want("2")
	})
}

// The mark is the last thing to come, however many there are, and comes soon after the last message.
func TestAT19(t *testing.T) {
	versions(t, "AT-19 the end of the backlog is told", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		n := size(2000, 100_000)
		p, c := connect(t, b.Addr, v, "p"), connect(t, b.Addr, v, "c")
		p.publish("$queue/Q1", numbers("", n)...)
		c.subscribe("$v5/$queue/Q1")
		for i := range n {
			d := c.Delivery()
			if d.Topic != "$queue/Q1" {
				t.Fatalf("%s after %d of %d", d.Topic, i, n)
			}
			c.Ack(d)
		}
		last := time.Now()
		if d := c.Delivery(); d.Topic != "$queue/Q1/$caught-up" {
			t.Fatal(d.Topic)
		}
		if waited := time.Since(last); waited > time.Second {
			t.Errorf("the mark came %v after the last message", waited)
		}
	})
}

func TestAT21(t *testing.T) {
	versions(t, "AT-21 a topic and a queue of one name", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		p, c, s := connect(t, b.Addr, v, "p"), connect(t, b.Addr, v, "c"), connect(t, b.Addr, v, "s")
		c.attach("X")
		s.subscribe("X")
		p.publish("X", "topic")
		p.publish("$queue/X", "queue")
		c.want("queue")
		s.want("topic")
		c.nothing()
		s.nothing()
	})
}

// The one that attached first has all; the other takes over what it leaves, and nothing comes to both as new.
func TestAT22(t *testing.T) {
	versions(t, "AT-22 exclusive", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{Config: "queues: [{name: Q1, exclusive: true}]"})
		p, one, two := connect(t, b.Addr, v, "p"), connect(t, b.Addr, v, "1"), connect(t, b.Addr, v, "2")
		one.attach("Q1", "T1")
		two.attach("Q1", "T1")
		p.publish("T1", numbers("a", 20)...)
		connect(t, b.Addr, v, "p2").publish("T1", numbers("b", 20)...)
		one.want(append(numbers("a", 20), numbers("b", 10)...)...)
		two.nothing()
		one.Close()
		two.want(numbers("b", 20)[10:]...)
		two.nothing()
	})
}

// Whatever the order of the filters in the SUBSCRIBE, what comes of it is the same.
func TestAT92(t *testing.T) {
	versions(t, "AT-92 order of filters", func(t *testing.T, v packet.Version) {
		dir := t.TempDir()
		b := testbroker.Run(t, testbroker.Options{Dir: dir})
		a := adminOf(t, dir)
		p := connect(t, b.Addr, v, "p")
		p.publish("T1", numbers("a", 10)...)
		p.publish("T2", numbers("b", 10)...)
		p.publish("T1", numbers("c", 10)...)
		want := slices.Concat(numbers("a", 10), numbers("b", 10), numbers("c", 10))
		for i, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
			q := fmt.Sprint("Q", i)
			filters := []string{"$queue/" + q, "$queue/" + q + "/T1", "$queue/" + q + "/T2"}
			c := connect(t, b.Addr, v, fmt.Sprint("c", i))
			c.subscribe(filters[order[0]], filters[order[1]], filters[order[2]])
			got := map[string][]string{}
			for range want {
				d := c.Delivery()
				c.Ack(d)
				got[d.Topic] = append(got[d.Topic], d.Payload)
			}
			if !slices.Equal(got["T1"], slices.Concat(want[:10], want[20:])) || !slices.Equal(got["T2"], want[10:20]) {
				t.Errorf("%v: %q", order, got)
			}
			await(t, "the last acknowledgement", func() bool { return a.queue(q).Depth == 0 })
			if x := a.queue(q); !slices.Equal(x.Bindings, []string{"T1", "T2"}) || x.Cursor != 31 {
				t.Errorf("%v: %+v", order, x)
			}
		}
	})
}
