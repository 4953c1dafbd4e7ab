package e2e

import (
	"strconv"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// Issue 2, "How it is shown" 1: the README's promise with Debian's own tools.
func TestMosquittoSessionSurvivesKill(t *testing.T) {
	pub, sub := testbroker.Tool(t, "mosquitto_pub"), testbroker.Tool(t, "mosquitto_sub")
	for _, v := range []struct {
		name string
		args []string
	}{
		{"mqtt-3.1.1", []string{"-V", "311"}},
		{"mqtt-5", []string{"-V", "5", "-x", "4294967295"}},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			p := testbroker.Start(t, testbroker.Options{})
			host, port, _ := strings.Cut(p.Addr, ":")
			base := []string{"-h", host, "-p", port, "-q", "1"}
			session := append(append([]string{"-c", "-i", "keeper", "-t", "e2e/#"}, base...), v.args...)

			testbroker.Exec(t, nil, sub, append(session, "-E")...)
			want := numbers("message ", 1, 1000)
			testbroker.Exec(t, []byte(strings.Join(want, "\n")+"\n"), pub, append(base, "-l", "-t", "e2e/x")...)
			p.Kill()
			p.Restart()
			got := testbroker.Exec(t, nil, sub, append(session, "-C", "1000", "-W", "30")...)
			compare(t, lines(got), want)
		})
	}
}

func TestSessionKeepsItsPlace(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		for _, how := range []struct {
			name string
			stop func(p *testbroker.Process)
		}{
			{"kill", func(p *testbroker.Process) { p.Kill(); p.Restart() }},
			{"stop", func(p *testbroker.Process) { p.Stop(); p.Restart() }},
			{"disconnect", func(*testbroker.Process) {}},
		} {
			t.Run(how.name, func(t *testing.T) {
				p := testbroker.Start(t, testbroker.Options{})
				c := dial(t, p, durable(v, "reader"))
				if c.SessionPresent() {
					t.Error("a session is present before there was one")
				}
				subscribe(t, c, "place/+")
				publish(t, dial(t, p, clean(v)), "place/a", numbers("", 1, 200)...)
				expect(t, c, numbers("", 1, 100))
				take(t, c, 5) // sent, not acknowledged: they come again
				_ = c.Close()
				publish(t, dial(t, p, clean(v)), "place/b", numbers("", 201, 300)...)

				how.stop(p)
				c = dial(t, p, durable(v, "reader"))
				if !c.SessionPresent() {
					t.Error("the session is gone")
				}
				got := payloads(receive(t, c, 200))
				for len(got) > 200 || got[0] != "101" { // a kill may bring back what was acknowledged last
					if how.name != "kill" || got[0] > "101" {
						t.Fatalf("the first message is %q, want 101", got[0])
					}
					got = append(got[1:], payloads(receive(t, c, 1))...)
				}
				compare(t, got, numbers("", 101, 300))
			})
		}
	})
}

// What was in flight comes again in order, with DUP, and before what is new.
func TestUnacknowledgedComesAgain(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		c := dial(t, p, durable(v, "again"))
		subscribe(t, c, "again")
		publish(t, dial(t, p, clean(v)), "again", numbers("", 1, 20)...)
		first := take(t, c, 20)
		for i, d := range first {
			if d.Duplicate {
				t.Errorf("%d has DUP when first sent", i)
			}
		}
		c.Drop()
		publish(t, dial(t, p, clean(v)), "again", "21")
		c = dial(t, p, durable(v, "again"))
		got := receive(t, c, 21)
		compare(t, payloads(got), numbers("", 1, 21))
		for i, d := range got[:20] {
			if !d.Duplicate || d.PacketID != first[i].PacketID {
				t.Errorf("%q: DUP %v, packet %d; was packet %d", d.Payload, d.Duplicate, d.PacketID, first[i].PacketID)
			}
		}
		if got[20].Duplicate {
			t.Error("the new message has DUP")
		}
	})
}

func TestCleanSessionForgets(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		c := dial(t, p, durable(v, "forget"))
		subscribe(t, c, "forget")
		_ = c.Close()
		publish(t, dial(t, p, clean(v)), "forget", "old")
		o := durable(v, "forget")
		o.CleanStart = true
		c = dial(t, p, o)
		if c.SessionPresent() {
			t.Error("the session is still there")
		}
		publish(t, dial(t, p, clean(v)), "forget", "unsubscribed")
		subscribe(t, c, "forget")
		publish(t, dial(t, p, clean(v)), "forget", "new")
		expect(t, c, []string{"new"})
	})
}

func TestTakeover(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		pub := dial(t, p, clean(v))
		first := dial(t, p, durable(v, "taken"))
		subscribe(t, first, "taken")
		publish(t, pub, "taken", numbers("", 1, 10)...)
		expect(t, first, numbers("", 1, 4))
		take(t, first, 6)

		second := dial(t, p, durable(v, "taken"))
		if err := ended(t, first); v == client.V5 && code(err) != 0x8E {
			t.Errorf("the first connection ended with %v, want 0x8E", err)
		}
		for next := 5; next <= 10; {
			d := take(t, second, 1)[0]
			if err := d.Ack(); err != nil {
				t.Fatal(err)
			}
			n, err := strconv.Atoi(string(d.Payload))
			switch {
			case err != nil || n > next || n < next && !d.Duplicate: // an acknowledgement may not have reached the broker before the takeover
				t.Fatalf("got %q, want %d", d.Payload, next)
			case n == next:
				next++
			}
		}
		publish(t, pub, "taken", "11")
		expect(t, second, []string{"11"})
	})
}

// A session that is taken over again and again, with messages coming all the time, misses none.
func TestTakeoverLosesNothing(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		c := dial(t, p, durable(v, "restless"))
		subscribe(t, c, "restless/#")
		const n = 2000
		sent := background(t, dial(t, p, clean(v)), "restless/a", numbers("", 1, n)...)
		next := 1
		for deadline := patience(t); next <= n; {
			for _, d := range take(t, c, min(37, n-next+1)) {
				if err := d.Ack(); err != nil {
					t.Fatal(err)
				}
				switch got, want := string(d.Payload), numbers("", next, next)[0]; {
				case got == want:
					next++
				case !d.Duplicate: // a duplicate's first ack did not reach the broker before the takeover
					t.Fatalf("got %q, want %q", got, want)
				}
			}
			if deadline.Err() != nil {
				t.Fatalf("got only as far as %d", next)
			}
			old := c
			c = dial(t, p, durable(v, "restless"))
			ended(t, old)
		}
		<-sent
	})
}

func TestSessionExpires(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	o := client.Options{Version: client.V5, ID: "short", SessionExpiry: 1}
	c := dial(t, p, o)
	subscribe(t, c, "short")
	_ = c.Close()
	present := true
	for ctx := patience(t); present && ctx.Err() == nil; {
		// Looking must not keep it alive: connect as somebody else and see whether it still receives.
		c = dial(t, p, client.Options{Version: client.V5, ID: "short", SessionExpiry: 1})
		present = c.SessionPresent()
		_ = c.Close()
		if present {
			<-timeAfter(1500)
		}
	}
	if present {
		t.Error("the session does not expire")
	}
}

// A client that comes back subscribes again, as most do, while the backlog is already on its way to it through
// a small window. The deliveries must go on whatever the order of SUBACK, PUBLISH and PUBACK.
func TestSubscribeAgainDuringDelivery(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	o := durable(client.V5, "again-and-again")
	o.ReceiveMaximum = 5
	c := dial(t, p, o)
	subscribe(t, c, "backlog/#")
	publish(t, dial(t, p, clean(client.V5)), "backlog/a", numbers("", 1, 1000)...)
	_ = c.Close()
	for from := 1; from < 1000; from += 100 {
		c := dial(t, p, o)
		subscribed := make(chan error, 1)
		ctx := patience(t)
		go func() {
			subscribed <- c.Subscribe(ctx, client.Subscription{Filter: "backlog/#", QoS: 1})
		}()
		expect(t, c, numbers("", from, from+99))
		if err := <-subscribed; err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
}
