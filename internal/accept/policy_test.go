package accept

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// A refused message comes again after the first delay, the second, …, and then goes to the dead letters with what became of it. Others go
// on; in an ordered queue those of its publisher wait instead.
func TestAT78(t *testing.T) {
	versions(t, "AT-78 refusals and dead letters", func(t *testing.T, v packet.Version) {
		levels := []time.Duration{200 * time.Millisecond, 500 * time.Millisecond}
		if size(0, 1) == 1 {
			levels = []time.Duration{10 * time.Second, 30 * time.Second}
		}
		delays := fmt.Sprintf("[%v, %v]", levels[0], levels[1])
		b := testbroker.Run(t, testbroker.Options{Config: "queues: [{name: Q, topics: [T], max_deliveries: 3, retry_delay: " + delays +
			"}, {name: O, topics: [U], ordered: true, retry_delay: " + delays + "}]"})
		p, c := connect(t, b.Addr, v, "p"), connect(t, b.Addr, v, "c")
		again := func(d testbroker.Delivery, since time.Time, level time.Duration, payload string) {
			t.Helper()
			if waited := time.Since(since); d.Payload != payload || waited < level || waited > level+10*time.Second {
				t.Errorf("%q came again after %v, want %q after %v", d.Payload, waited, payload, level)
			}
		}
		c.attach("Q")
		p.publish("T", "bad", "good")
		d := c.Delivery()
		refused := time.Now()
		c.nack(d, "it burns")
		c.want("good")
		p.publish("T", "unaffected")
		c.want("unaffected")
		after := func(c *client, level time.Duration) testbroker.Delivery { // the full level may be as long as Delivery's patience
			t.Helper()
			d, ok := c.DeliveryWithin(level + testbroker.Patience)
			if !ok {
				t.Fatalf("nothing came again after %v", level)
			}
			return d
		}
		for _, level := range levels {
			d := after(c, level)
			again(d, refused, level, "bad")
			refused = time.Now()
			c.nack(d, "it burns")
		}
		five := connect(t, b.Addr, packet.V5, "dead")
		five.attach("Q-dead")
		dead := five.Delivery()
		for name, want := range map[string]string{
			"@Topic": "T", "@Queue": "Q", "@OriginOffset": "1", "@Redelivered": "3", "@Reason": "it burns", "@Producer": "p",
		} {
			if got := user(dead, name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		if dead.Payload != "bad" {
			t.Errorf("the dead letter is %q", dead.Payload)
		}
		c.nothing()

		o := connect(t, b.Addr, v, "o")
		o.attach("O")
		p.publish("U", "1", "2", "3")
		d = o.Delivery()
		refused = time.Now()
		o.nack(d, "not yet")
		d = after(o, levels[0]) // and not 2
		again(d, refused, levels[0], "1")
		o.Ack(d)
		o.want("2", "3")
	})
}

// nack refuses a delivery: by a PUBACK of MQTT 5, or as 3.1.1 does it.
func (c *client) nack(d testbroker.Delivery, reason string) {
	c.t.Helper()
	if c.Version() == packet.V5 {
		c.Send(packet.AppendAck(nil, c.Version(), packet.TypePuback, d.PacketID, 0x80, reason))
		return
	}
	queue := map[string]string{"T": "Q", "U": "O"}[d.Topic]
	c.SendPublish(0, 0, "$queue/"+queue+"/$nack", fmt.Sprintf("#%d  %s", d.PacketID, reason))
	c.Ack(d)
}

// Never early, not much late, in order among equals, and over a kill.
func TestAT79(t *testing.T) {
	versions(t, "AT-79 delayed messages", func(t *testing.T, v packet.Version) {
		b := testbroker.Start(t, testbroker.Options{})
		p := connect(t, b.Addr, v, "p")
		sent := time.Now()
		const n = 20
		for i := range n { // two delays by turns, then a kill
			p.publish(fmt.Sprintf("$delayed/%d/$queue/Q%d", 1+i%2, i%2), strconv.Itoa(i))
		}
		p.publish("$delayed/7200/$queue/Q0", "far away")
		b.Kill()
		b.Restart()
		for q := range 2 {
			c := connect(t, b.Addr, v, fmt.Sprint("c", q))
			c.attach(fmt.Sprint("Q", q))
			for i := q; i < n; i += 2 {
				d := c.Delivery()
				c.Ack(d)
				if d.Payload != strconv.Itoa(i) {
					t.Fatalf("%q, want %d", d.Payload, i)
				}
				if waited := time.Since(sent); waited < time.Duration(1+q)*time.Second {
					t.Fatalf("early: after %v", waited)
				}
			}
			c.nothing()
		}
		for _, topic := range []string{"$delayed/-1/T", "$delayed/x/T", "$delayed/1/$queue/a b", "$delayed/1/#"} {
			c := connect(t, b.Addr, v, "bad")
			id := c.id()
			c.SendPublish(1, id, topic, "")
			if v == packet.V311 {
				c.ExpectClosed()
			} else if code := c.ExpectAck(packet.TypePuback, id); code < 0x80 {
				t.Errorf("%s: %#x", topic, code)
			}
		}
	})
}

// Messages are found by key, id and time, also after a restart without the index, which is made again.
func TestAT80(t *testing.T) {
	t.Parallel()
	t.Run("AT-80 query by key", func(t *testing.T) {
		b := testbroker.Start(t, testbroker.Options{})
		p := connect(t, b.Addr, packet.V5, "p")
		put := func(topic, payload string, props ...string) {
			var b []byte
			for i := 0; i < len(props); i += 2 {
				b = packet.AppendUser(b, props[i], props[i+1])
			}
			p.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 1, PacketID: p.id(), Topic: topic, Props: b, Payload: []byte(payload)}))
			p.acks(1)
		}
		put("T/1", "one", "@MessageId", "id-1", "@SearchKey", "order-7")
		between := time.Now()
		put("T/2", "two", "@MessageId", "id-2", "@SearchKey", "order-7")
		put("T/2", "three", "@SearchKey", "order-8")
		p.publish("T/2", numbers("x", 100)...)
		a := adminOf(t, b.Dir())
		check := func(query string, want ...string) {
			t.Helper()
			var m struct{ Messages []struct{ Payload string } }
			a.call("GET", "/v1/messages?"+query, "", &m)
			var got []string
			for _, x := range m.Messages {
				got = append(got, x.Payload)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", query, got, want)
			}
		}
		all := func() {
			t.Helper()
			check("id=id-1", "one")
			check("id=id-3")
			check("key=order-7", "one", "two")
			check("key=order-8", "three")
			check("key=order-7&from="+strconv.FormatInt(between.UnixMicro(), 10), "two")
			check("key=order-7&to="+strconv.FormatInt(between.UnixMicro(), 10), "one")
			check("topic=T/%2B&limit=2", "one", "two")
			check("offset=3&topic=T/2&limit=1", "three")
		}
		all()
		b.Stop()
		if err := os.RemoveAll(filepath.Join(b.Dir(), "index")); err != nil {
			t.Fatal(err)
		}
		b.Restart()
		all()
	})
}

// A reset holds at once for a consumer that is attached, and after a kill.
func TestAT85(t *testing.T) {
	versions(t, "AT-85 reset", func(t *testing.T, v packet.Version) {
		b := testbroker.Start(t, testbroker.Options{})
		a := adminOf(t, b.Dir())
		p, c := connect(t, b.Addr, v, "p"), connect(t, b.Addr, v, "c")
		p.publish("T", numbers("", 5)...)
		time.Sleep(2 * time.Millisecond)
		at := time.Now()
		p.publish("T", numbers("", 10)[5:]...)
		c.attach("Q", "T")
		c.want(numbers("", 10)...)
		reset := func(to string) {
			t.Helper()
			a.call("POST", "/v1/queues/Q/reset", fmt.Sprintf("{\"to\": %q}", to), nil)
		}
		reset("earliest")
		c.want(numbers("", 10)...)
		reset(strconv.FormatInt(at.UnixMicro(), 10))
		c.want(numbers("", 10)[5:]...)
		reset("offset:9")
		c.want("8", "9")
		c.Close()
		await(t, "it to be gone", func() bool {
			var q struct{ Members int }
			a.call("GET", "/v1/queues/Q", "", &q)
			return q.Members == 0
		})
		reset("offset:3")
		p.publish("T", "10")
		b.Kill()
		b.Restart()
		c = connect(t, b.Addr, v, "c")
		c.attach("Q")
		c.want(numbers("", 11)[2:]...)
		reset("latest")
		connect(t, b.Addr, v, "p").publish("T", "11")
		c.want("11")
	})
}

// The lag that is shown is what is between the cursor and the end, whenever one looks; here with messages of one topic only.
func TestAT86(t *testing.T) {
	t.Parallel()
	t.Run("AT-86 lag", func(t *testing.T) {
		dir := t.TempDir()
		b := testbroker.Run(t, testbroker.Options{Dir: dir})
		a := adminOf(t, dir)
		p, c := connect(t, b.Addr, packet.V5, "p"), connect(t, b.Addr, packet.V5, "c")
		c.attach("Q", "T")
		sent, settled := 0, 0
		check := func() {
			t.Helper()
			var q queueInfo
			await(t, "the last acknowledgement", func() bool { q = a.queue("Q"); return q.Cursor == uint64(settled+1) })
			if end := int64(b.Store().Committed()); q.Depth != int64(sent-settled) || q.Depth != end-int64(q.Cursor) {
				t.Fatalf("depth %d, cursor %d, end %d; %d sent, %d settled", q.Depth, q.Cursor, end, sent, settled)
			}
			if want := float64(sent - settled); metric(t, a, `edgemq_queue_depth{queue="Q"}`) != want {
				t.Fatalf("the metric is not %v", want)
			}
		}
		check()
		for i := range 10 {
			p.publish("T", numbers("", 10*i)...)
			sent += 10 * i
			check()
			settled += len(c.take(5 * i))
			check()
		}
		c.take(sent - settled)
		settled = sent
		check()
	})
}

// metric reads one sample of GET /metrics.
func metric(t testing.TB, a *api, name string) float64 {
	t.Helper()
	resp, err := a.http.Get("http://localhost/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	for line := range strings.SplitSeq(b.String(), "\n") {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatal("there is no ", name)
	return 0
}

// What a queue has yet to deliver outlives retention; a queue with a limit loses the oldest and says so.
func TestAT87(t *testing.T) {
	versions(t, "AT-87 protected and capped", func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{
			Config: "queues: [{name: kept, topics: [T]}, {name: capped, topics: [T], max_messages: 100}]",
			Set:    []string{"retention.bytes=1MiB", "store.segment_bytes=1MiB", "store.shared_below=1", "store.checkpoint_bytes=4MiB", "store.tail_bytes=1MiB"},
		})
		n := 3000
		var payloads []string
		for i := range n {
			payloads = append(payloads, fmt.Sprintf("%d %s", i, strings.Repeat("x", 2000)))
		}
		p := connect(t, b.Addr, v, "p")
		p.publish("T", payloads...)
		capped := connect(t, b.Addr, v, "capped")
		time.Sleep(2500 * time.Millisecond) // retention, and the queue's limit, are looked after every second or two
		capped.attach("capped")
		if d := capped.Delivery(); d.Topic != "$queue/capped/$gap" || d.Payload != fmt.Sprintf("1 %d %d", n-99, n-100) {
			t.Errorf("instead of the gap: %.40q on %s", d.Payload, d.Topic)
		}
		capped.want(payloads[n-100:]...)
		kept := connect(t, b.Addr, v, "kept")
		kept.attach("kept")
		kept.want(payloads...)
		kept.nothing()
	})
}
