package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

func TestQueueBeginsAtTheBeginning(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		pub := dial(t, p, clean(v))
		publish(t, pub, "water/a", numbers("a", 1, 300)...)
		publish(t, pub, "water/b", numbers("b", 1, 300)...)
		publish(t, pub, "other", "not for the queue")

		c := dial(t, p, clean(v))
		subscribe(t, c, "$queue/canal/water/#")
		expect(t, c, append(numbers("a", 1, 300), numbers("b", 1, 300)...))
		publish(t, pub, "water/c", "live")
		expect(t, c, []string{"live"})
	})
}

// The cursor belongs to the queue, not to a session: whoever attaches next goes on where the last one stopped.
func TestQueueCursorSurvives(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		publish(t, dial(t, p, clean(v)), "cursor", numbers("", 1, 500)...)
		next := 1
		for _, how := range []string{"close", "drop", "stop", "kill"} {
			c := dial(t, p, clean(v))
			subscribe(t, c, "$queue/cursor/cursor")
			ds := take(t, c, 100)
			first, err := strconv.Atoi(string(ds[0].Payload))
			if err != nil || first > next || how == "close" && first != next {
				t.Fatalf("before %s: the first message is %q, want %d", how, ds[0].Payload, next)
			}
			compare(t, payloads(ds), numbers("", first, first+99))
			for _, d := range ds[:80] {
				if err := d.Ack(); err != nil {
					t.Fatal(err)
				}
			}
			next = first + 80
			switch how {
			case "close":
				_ = c.Close()
			case "drop":
				c.Drop()
			case "stop":
				_ = c.Close()
				p.Stop()
				p.Restart()
			case "kill":
				_ = c.Close()
				p.Kill()
				p.Restart()
			}
		}
		c := dial(t, p, clean(v))
		subscribe(t, c, "$queue/cursor")
		for {
			d := receive(t, c, 1)[0]
			if string(d.Payload) == "500" {
				break
			}
		}
	})
}

func TestQueueFromConfiguration(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{Config: `
queue: {auto_create: false}
queues:
- name: orders
  topics: [shop/+/order, web/#]
- name: direct
`})
	pub := dial(t, p, clean(client.V5))
	publish(t, pub, "shop/north/order", "1")
	publish(t, pub, "shop/north/complaint", "no")
	publish(t, pub, "web/x/y", "2")
	publish(t, pub, "$queue/orders", "3")
	publish(t, pub, "$queue/direct", "4")
	c := dial(t, p, clean(client.V5))
	subscribe(t, c, "$queue/orders")
	expect(t, c, numbers("", 1, 3))
	d := dial(t, p, clean(client.V5))
	subscribe(t, d, "$queue/direct")
	expect(t, d, []string{"4"})

	err := c.Subscribe(patience(t), client.Subscription{Filter: "$queue/unknown", QoS: 1})
	if code(err) < 0x80 {
		t.Errorf("attaching to a queue that does not exist: %v", err)
	}
	token, err := pub.Publish(patience(t), client.Message{Topic: "$queue/unknown", QoS: 1})
	if err == nil {
		err = token.Wait(patience(t))
	}
	if code(err) < 0x80 {
		t.Errorf("publishing to a queue that does not exist: %v", err)
	}
}

// Direct messages are for their queue's consumers and nobody else.
func TestQueueDirectMessages(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		pub := dial(t, p, clean(v))
		all, one, other := dial(t, p, clean(v)), dial(t, p, clean(v)), dial(t, p, clean(v))
		subscribe(t, all, "#", "+/one")
		subscribe(t, one, "$queue/one/topics/#")
		subscribe(t, other, "$queue/two/topics/#", "$queue/two/#")
		publish(t, pub, "$queue/one", "direct")
		publish(t, pub, "topics/a", "for all")
		expect(t, one, []string{"direct", "for all"})
		expect(t, all, []string{"for all"})
		expect(t, other, []string{"for all"})

		// It waits for a consumer as any message does, over a kill too.
		publish(t, pub, "$queue/late", numbers("", 1, 50)...)
		p.Kill()
		p.Restart()
		late := dial(t, p, clean(v))
		subscribe(t, late, "$queue/late")
		expect(t, late, numbers("", 1, 50))
	})
}

// Several consumers of one queue get each message once between them, and each publisher's in its order.
func TestQueueSharedByConsumers(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		const publishers, consumers, each = 8, 3, 250
		var cs []client.Client
		for range consumers {
			c := dial(t, p, clean(v))
			subscribe(t, c, "$queue/shared/work/#")
			cs = append(cs, c)
		}
		for i := range publishers {
			background(t, dial(t, p, clean(v)), fmt.Sprintf("work/%d", i), numbers(fmt.Sprintf("%d ", i), 1, each)...)
		}
		type got struct {
			consumer int
			d        *client.Delivery
		}
		in := make(chan got)
		ctx := patience(t)
		for i, c := range cs {
			go func() {
				for {
					d, err := c.Next(ctx)
					if err != nil {
						return
					}
					_ = d.Ack()
					select {
					case in <- got{i, d}:
					case <-ctx.Done():
						return
					}
				}
			}()
		}
		seen := make([]int, publishers)
		for range publishers * each {
			select {
			case g := <-in:
				who, n, _ := strings.Cut(string(g.d.Payload), " ")
				publisher, _ := strconv.Atoi(who)
				if number, _ := strconv.Atoi(n); number != seen[publisher]+1 {
					t.Fatalf("consumer %d: publisher %d: %d after %d", g.consumer, publisher, number, seen[publisher])
				}
				seen[publisher]++
			case <-ctx.Done():
				t.Fatalf("received %v of %d each", seen, each)
			}
		}
	})
}

// What a consumer that leaves had not acknowledged goes to the others, in order.
func TestQueueHandsOver(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		pub := dial(t, p, clean(v))
		first := dial(t, p, clean(v))
		subscribe(t, first, "$queue/hand/over")
		publish(t, pub, "over", numbers("", 1, 20)...)
		take(t, first, 20)
		second := dial(t, p, clean(v))
		subscribe(t, second, "$queue/hand")
		first.Drop()
		expect(t, second, numbers("", 1, 20))
	})
}

func TestQueueUnbindAndDetach(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		pub, c := dial(t, p, clean(v)), dial(t, p, clean(v))
		subscribe(t, c, "$queue/q/a", "$queue/q/b")
		publish(t, pub, "a", "1")
		publish(t, pub, "b", "2")
		expect(t, c, numbers("", 1, 2))
		if err := c.Unsubscribe(patience(t), "$queue/q/a"); err != nil {
			t.Fatal(err)
		}
		publish(t, pub, "a", "unbound")
		publish(t, pub, "b", "3")
		expect(t, c, []string{"3"})
		if err := c.Unsubscribe(patience(t), "$queue/q"); err != nil {
			t.Fatal(err)
		}
		publish(t, pub, "b", "4")
		nothing(t, c)
		subscribe(t, c, "$queue/q")
		expect(t, c, []string{"4"})
	})
}

func TestQueueNames(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	c := dial(t, p, clean(client.V5))
	for _, filter := range []string{"$queue/", "$queue", "$queue/a b", "$queue/+", "$queue/#", "$queue/ü", "$queue/" + strings.Repeat("x", 129), "$queue/q/a/#/b"} {
		if err := c.Subscribe(patience(t), client.Subscription{Filter: filter, QoS: 1}); code(err) < 0x80 {
			t.Errorf("subscribe to %q: %v", filter, err)
		}
	}
	for _, topic := range []string{"$queue/a b", "$queue/", "$queue", "$queue/q/topic"} {
		token, err := c.Publish(patience(t), client.Message{Topic: topic, QoS: 1})
		if err == nil {
			err = token.Wait(patience(t))
		}
		if code(err) < 0x80 {
			t.Errorf("publish to %q: %v", topic, err)
		}
	}
	subscribe(t, c, "$queue/"+strings.Repeat("x", 128))
}

// Issue 2, "How it is shown" 3, in small: queues bound after everything was published, with kills between.
func TestManyQueuesAfterTheFact(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	const queues, topics, each = 5, 25, 40
	pub := dial(t, p, clean(client.V5))
	for n := 1; n <= each; n++ {
		for topic := range topics {
			token, err := pub.Publish(patience(t), client.Message{Topic: fmt.Sprintf("after/%d", topic), Payload: fmt.Appendf(nil, "%d %d", topic, n), QoS: 1})
			if err != nil {
				t.Fatal(err)
			}
			if n == each && topic == topics-1 {
				if err := token.Wait(patience(t)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for q := range queues {
		publish(t, pub, fmt.Sprintf("$queue/q%d", q), fmt.Sprintf("direct %d", q))
	}
	p.Kill()
	p.Restart()
	for q := range queues {
		c := dial(t, p, clean(client.V5))
		for topic := q; topic < topics; topic += queues {
			subscribe(t, c, fmt.Sprintf("$queue/q%d/after/%d", q, topic))
		}
		next := map[string]int{}
		direct := 0
		for range topics/queues*each + 1 {
			d := receive(t, c, 1)[0]
			if strings.HasPrefix(string(d.Payload), "direct") {
				direct++
				continue
			}
			topic, n, _ := strings.Cut(string(d.Payload), " ")
			number, _ := strconv.Atoi(n)
			if id, _ := strconv.Atoi(topic); id%queues != q || number != next[topic]+1 {
				t.Fatalf("queue %d: %q after %d", q, d.Payload, next[topic])
			}
			next[topic] = number
		}
		if direct != 1 {
			t.Errorf("queue %d: %d direct messages", q, direct)
		}
		_ = c.Close()
		if q == 2 {
			p.Kill()
			p.Restart()
		}
	}
}

// Queues add their position and origin to what they deliver; ordinary subscribers get what was published.
func TestQueueHeaders(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	ordinary, queued := dial(t, p, clean(client.V5)), dial(t, p, clean(client.V5))
	subscribe(t, ordinary, "headers")
	subscribe(t, queued, "$queue/headers/headers")
	pub := dial(t, p, client.Options{Version: client.V5, ID: "meter-7", CleanStart: true})
	token, err := pub.Publish(patience(t), client.Message{Topic: "headers", QoS: 1, User: []client.Property{{Name: "mine", Value: "1"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := token.Wait(patience(t)); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, ordinary, 1)[0].User; !slices.Equal(got, []client.Property{{Name: "mine", Value: "1"}}) {
		t.Errorf("an ordinary subscriber got %v", got)
	}
	got := map[string]string{}
	for _, u := range receive(t, queued, 1)[0].User {
		got[u.Name] = u.Value
	}
	if got["mine"] != "1" || got["@Producer"] != "meter-7" || got["@Offset"] == "" || got["@StoreTimestamp"] == "" || !strings.HasPrefix(got["@BornHost"], "127.0.0.1:") {
		t.Errorf("a queue's consumer got %v", got)
	}
}
