package broker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// retain publishes with RETAIN at QoS 1.
func retain(c *testbroker.Raw, v packet.Version, topic, payload string, expiry uint32) {
	id := c.NextID()
	c.Send(packet.AppendPublish(nil, v, &packet.Outgoing{
		Topic: topic, QoS: 1, PacketID: id, Retain: true, Payload: []byte(payload), HasExpiry: expiry > 0, Expiry: expiry,
	}))
	c.ExpectAck(packet.TypePuback, id)
}

// kept is what a new subscriber gets of a filter, sorted: topic=payload.
func kept(t *testing.T, addr string, filter string) (got []string) {
	t.Helper()
	c := testbroker.ConnectRaw(t, addr, packet.V5, nil)
	defer c.Close()
	c.Subscribe(filter, 1)
	for {
		d, ok := c.DeliveryWithin(nothingFor)
		if !ok {
			slices.Sort(got)
			return got
		}
		if !d.Retain { // [MQTT-3.3.1-8]
			t.Errorf("%q came without RETAIN", d.Topic)
		}
		c.Ack(d)
		got = append(got, d.Topic+"="+d.Payload)
	}
}

// A retained message is set, replaced and taken away; new subscribers get the last one. [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7]
func TestRetained(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		live := testbroker.ConnectRaw(t, b.Addr, v, clean("live"))
		live.Subscribe("r/#", 0)
		c := testbroker.ConnectRaw(t, b.Addr, v, clean("c"))
		for _, tt := range []struct {
			payload string
			retain  bool
			want    []string
		}{
			{"one", true, []string{"r/a=one"}},
			{"not", false, []string{"r/a=one"}},
			{"two", true, []string{"r/a=two"}},
			{"", false, []string{"r/a=two"}},
			{"", true, nil},
			{"", true, nil}, // there is none to take away
			{"three", true, []string{"r/a=three"}},
		} {
			if tt.retain {
				retain(c, v, "r/a", tt.payload, 0)
			} else {
				c.Publish("r/a", tt.payload)
			}
			if d := receive(t, live, 0, tt.payload, false); d.Retain { // [MQTT-3.3.1-12]
				t.Error("a subscriber that was there got it with RETAIN")
			}
			equal(t, kept(t, b.Addr, "r/a"), tt.want)
		}
		c.Send(packet.AppendPublish(nil, v, &packet.Outgoing{Topic: "r/a", Retain: true, Payload: []byte("QoS 0")}))
		c.Ping()
		receive(t, live, 0, "QoS 0", false)
		equal(t, kept(t, b.Addr, "r/a"), []string{"r/a=QoS 0"})
	})
}

// Which retained messages a filter finds is as for live ones; those under $ are found by no leading wildcard. 4.7.1.2 [MQTT-4.7.2-1]
func TestRetainedAndFilters(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
	topics := []string{"a", "a/b", "a/b/c", "/a", "a/", "b", "$queue/q"}
	for _, topic := range topics {
		retain(c, packet.V5, topic, "x", 0)
	}
	for filter, want := range map[string]string{
		"a": "a", "a/#": "a a/ a/b a/b/c", "#": "/a a a/ a/b a/b/c b", "+": "a b", "+/#": "/a a a/ a/b a/b/c b", "+/+": "/a a/ a/b",
		"a/+": "a/ a/b", "/#": "/a", "/+": "/a", "+/q": "", "+/b/#": "a/b a/b/c", "x/#": "", "A": "",
	} {
		var got []string
		for _, s := range kept(t, b.Addr, filter) {
			got = append(got, strings.TrimSuffix(s, "=x"))
		}
		if slices.Sort(got); strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", filter, got, want)
		}
	}
	for filter, want := range map[string]string{"+/#": "a", "a/#": "a", "#": "a", "+/q": "", "$share/g/#": "a"} { // the same, live
		sub := testbroker.ConnectRaw(t, b.Addr, packet.V5, nil)
		subscribe(t, sub, packet.V5, 0, packet.Subscription{Filter: filter, QoS: 1, RetainHandling: 2})
		c.Publish("$queue/q", "x")
		c.Publish("a", "x")
		var got []string
		for {
			d, ok := sub.DeliveryWithin(nothingFor)
			if !ok {
				break
			}
			got = append(got, d.Topic)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("live %s: %q, want %q", filter, got, want)
		}
		sub.Close()
	}
}

// Topics that begin with $ are topics like any, live, retained and in replays, but that no leading wildcard matches them. [MQTT-4.7.2-1]
func TestDollarTopics(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		subs := map[string]*testbroker.Raw{}
		for _, filter := range []string{"#", "+/b", "+/#", "$share/g/#", "$aws/#", "$aws/b", "$aws/+", "$share/g/$aws/#", "$s/earliest/$aws/#", "$SYSTEM/#"} {
			subs[filter] = testbroker.ConnectRaw(t, b.Addr, v, clean("sub "+filter))
			subs[filter].Subscribe(filter, 1)
		}
		pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
		retain(pub, v, "$aws/b", "kept", 0)
		retain(pub, v, "$SYSTEM/b", "kept", 0)
		retain(pub, v, "end/b", "end", 0)
		for filter, sub := range subs {
			want := []string{"$aws/b"}
			switch {
			case strings.HasPrefix(filter, "$SYSTEM"):
				want = []string{"$SYSTEM/b"}
			case !strings.Contains(filter, "$aws"):
				want = []string{"end/b"}
			}
			var got []string
			for range want {
				got = append(got, sub.Delivery().Topic)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", filter, got, want)
			}
			nothing(t, sub)
		}
		for filter, want := range map[string]string{"#": "end/b", "+/b": "end/b", "$aws/#": "$aws/b", "$SYSTEM/+": "$SYSTEM/b"} {
			if got := kept(t, b.Addr, filter); len(got) != 1 || !strings.HasPrefix(got[0], want+"=") {
				t.Errorf("retained for %s: %q, want %s", filter, got, want)
			}
		}
	})
}

// Retain Handling says when retained messages are sent, Retain As Published whether the flag stays, and the Subscription Identifier
// comes with them. [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.3.1-13] [MQTT-3.3.4-3]
func TestRetainOptions(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	retain(pub, packet.V5, "r", "x", 0)
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c"))
	for i, tt := range []struct {
		handling  byte
		reconnect bool
		unsub     bool
		sent      bool
	}{
		{2, false, false, false},
		{1, false, false, false}, // it is there already
		{0, false, false, true},
		{0, true, false, true},
		{1, true, false, false},
		{1, false, true, true},
	} {
		if tt.reconnect {
			leave(t, b, c, "c")
			c = testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper("c"))
		}
		if tt.unsub {
			unsubscribe(t, c, "r", 0)
		}
		subscribe(t, c, packet.V5, uint32(i+1), packet.Subscription{Filter: "r", QoS: 1, RetainHandling: tt.handling, RetainAsPublished: i%2 == 0})
		if tt.sent {
			d := receive(t, c, 1, "x", false)
			if ids := d.SubscriptionIDs(nil); !d.Retain || !slices.Equal(ids, []uint32{uint32(i + 1)}) {
				t.Errorf("row %d: RETAIN %v, subscription identifiers %v", i, d.Retain, ids)
			}
			c.Ack(d)
		}
		retain(pub, packet.V5, "r", "x", 0)
		d := receive(t, c, 1, "x", false)
		if d.Retain != (i%2 == 0) {
			t.Errorf("row %d: live RETAIN %v", i, d.Retain)
		}
		c.Ack(d)
	}
	nothing(t, c)
}

// Retained messages expire, whether anybody asks for them or not, and say how long they still have.
func TestRetainedExpire(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	start := time.Now()
	retain(pub, packet.V5, "e/short", "x", 1)
	retain(pub, packet.V5, "e/long", "x", 100)
	retain(pub, packet.V5, "e/replaced", "x", 1)
	retain(pub, packet.V5, "e/replaced", "y", 0)
	for b.Sessions().Retained() > 2 {
		if time.Since(start) > testbroker.Patience {
			t.Fatal("it does not expire")
		}
		<-time.After(5 * time.Millisecond)
	}
	if took := time.Since(start); took < 900*time.Millisecond {
		t.Errorf("expired after %v", took)
	}
	equal(t, kept(t, b.Addr, "e/#"), []string{"e/long=x", "e/replaced=y"})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
	c.Subscribe("e/long", 0)
	if d := receive(t, c, 0, "x", false); !d.HasExpiry || d.Expiry >= 100 || d.Expiry < 60 {
		t.Errorf("expiry %d", d.Expiry)
	}
}

// Retained messages live as long as the broker's data, not longer than their expiry.
func TestRetainedSurviveRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := testbroker.Run(t, testbroker.Options{Dir: dir})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	retain(pub, packet.V5, "r/kept", "x", 0)
	retain(pub, packet.V5, "r/long", "x", 1000)
	retain(pub, packet.V5, "r/short", "x", 1)
	retain(pub, packet.V5, "r/gone", "x", 0)
	retain(pub, packet.V5, "r/gone", "", 0)
	b.Stop()
	<-time.After(time.Second)
	b = testbroker.Run(t, testbroker.Options{Dir: dir})
	equal(t, kept(t, b.Addr, "r/#"), []string{"r/kept=x", "r/long=x"})
}

// A retained message set while the retained ones are being sent comes once as one or the other, never the old after the new.
func TestRetainedWhileSubscribing(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 300 {
			retain(pub, packet.V5, "r", fmt.Sprint(i), 0)
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		c := testbroker.ConnectRaw(t, b.Addr, packet.V311, nil)
		c.Subscribe("r", 0)
		last := -1
		for {
			d, ok := c.DeliveryWithin(20 * time.Millisecond)
			if !ok {
				break
			}
			var n int
			_, _ = fmt.Sscan(d.Payload, &n)
			if n < last {
				t.Fatalf("%d after %d", n, last)
			}
			last = n
		}
		c.Close()
	}
}

// Many retained messages to one subscriber with a small window arrive completely, each once, the rest of them after a reconnect.
func TestManyRetained(t *testing.T) {
	t.Parallel()
	n := 40_000
	if testing.Short() {
		n = 2000
	}
	b := testbroker.Run(t, testbroker.Options{})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	for from := 0; from < n; from += 1000 {
		var p []byte
		for i := range 1000 {
			p = packet.AppendPublish(p, packet.V5, &packet.Outgoing{
				Topic: fmt.Sprintf("many/%d/%d", (from+i)%100, from+i), QoS: 1, PacketID: uint16(i + 1), Retain: true, Payload: fmt.Append(nil, from+i),
			})
		}
		pub.Send(p)
		for i := range uint16(1000) {
			pub.ExpectAck(packet.TypePuback, i+1)
		}
	}
	o := keeper("c")
	o.ReceiveMaximum = 10
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, o)
	c.Subscribe("#", 1)
	seen := map[string]bool{}
	again, left := 0, 0
	for len(seen) < n {
		d := c.Delivery()
		if seen[d.Topic] {
			if again++; again > 10*left || !d.Dup {
				t.Fatalf("%q came again, DUP %v", d.Topic, d.Dup)
			}
		}
		if seen[d.Topic] = true; !strings.HasSuffix(d.Topic, "/"+d.Payload) || !d.Retain {
			t.Fatalf("%q on %q, RETAIN %v", d.Payload, d.Topic, d.Retain)
		}
		if len(seen) == (2*left+1)*n/8 {
			left++
			leave(t, b, c, "c") // with ten unacknowledged
			c = testbroker.ConnectRaw(t, b.Addr, packet.V5, o)
			continue
		}
		c.Ack(d)
	}
	nothing(t, c)
}
