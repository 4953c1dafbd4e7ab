package e2e

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

func timeAfter(ms int) <-chan time.Time { return time.After(time.Duration(ms) * time.Millisecond) }

func TestWildcards(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		topics := []string{"a", "a/b", "a/b/c", "b", "/a", "a/", "$SYS/x"}
		pub := dial(t, p, clean(v))
		for _, tt := range []struct {
			filter string
			want   string
		}{
			{"#", "a a/b a/b/c b /a a/"},
			{"+", "a b"},
			{"a/#", "a a/b a/b/c a/"},
			{"a/+", "a/b a/"},
			{"+/+", "a/b /a a/"},
			{"/+", "/a"},
			{"a/b", "a/b"},
			{"+/#", "a a/b a/b/c b /a a/"},
		} {
			c := dial(t, p, clean(v))
			subscribe(t, c, tt.filter, "end/of/it/all")
			for _, topic := range topics {
				if strings.HasPrefix(topic, "$") {
					continue
				}
				publish(t, pub, topic, topic)
			}
			publish(t, pub, "end/of/it/all", "end")
			var got []string
			for {
				d := receive(t, c, 1)[0]
				if string(d.Payload) == "end" {
					break
				}
				got = append(got, d.Topic)
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("%s: got %q, want %q", tt.filter, got, tt.want)
			}
		}
	})
}

// Overlapping subscriptions: a 3.1.1 or 5 broker may send one copy or one for each; edgemq sends one, at the
// highest QoS granted.
func TestOverlapping(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		c := dial(t, p, clean(v))
		for filter, qos := range map[string]byte{"o/#": 0, "o/+": 1, "o/a": 0} {
			if err := c.Subscribe(patience(t), client.Subscription{Filter: filter, QoS: qos}); err != nil {
				t.Fatal(err)
			}
		}
		publish(t, dial(t, p, clean(v)), "o/a", "1", "2")
		ds := receive(t, c, 2)
		compare(t, payloads(ds), numbers("", 1, 2))
		if ds[0].QoS != 1 {
			t.Errorf("delivered at QoS %d", ds[0].QoS)
		}
		nothing(t, c)
	})
}

func TestQoS0(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		c := dial(t, p, clean(v))
		subscribe(t, c, "zero")
		pub := dial(t, p, clean(v))
		for _, payload := range numbers("", 1, 100) {
			if _, err := pub.Publish(patience(t), client.Message{Topic: "zero", Payload: []byte(payload)}); err != nil {
				t.Fatal(err)
			}
		}
		ds := receive(t, c, 100)
		compare(t, payloads(ds), numbers("", 1, 100))
		for _, d := range ds {
			if d.QoS != 0 {
				t.Fatalf("delivered at QoS %d", d.QoS)
			}
		}
	})
}

func TestPropertiesAreCarried(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	v5, v3 := dial(t, p, clean(client.V5)), dial(t, p, clean(client.V311))
	subscribe(t, v5, "props")
	subscribe(t, v3, "props")
	expiry := uint32(3600)
	want := client.Message{
		Topic: "props", Payload: []byte("héllo"), QoS: 1, UTF8: true, Expiry: &expiry,
		ContentType: "text/plain", ResponseTopic: "answers/1", CorrelationData: []byte{0, 1, 2, 255},
		User: []client.Property{{Name: "b", Value: "1"}, {Name: "a", Value: ""}, {Name: "b", Value: "2"}},
	}
	token, err := dial(t, p, clean(client.V5)).Publish(patience(t), want)
	if err != nil {
		t.Fatal(err)
	}
	if err := token.Wait(patience(t)); err != nil {
		t.Fatal(err)
	}
	got := receive(t, v5, 1)[0].Message
	if got.Expiry == nil || *got.Expiry > 3600 || *got.Expiry < 3590 {
		t.Errorf("expiry is %v", got.Expiry)
	}
	got.Expiry, got.PacketID = want.Expiry, 0
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := receive(t, v3, 1)[0]; !bytes.Equal(got.Payload, want.Payload) || got.Topic != "props" {
		t.Errorf("3.1.1 got %q on %s", got.Payload, got.Topic)
	}
}

func TestMessageExpiry(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	c := dial(t, p, durable(client.V5, "late"))
	subscribe(t, c, "expiring")
	_ = c.Close()
	pub := dial(t, p, clean(client.V5))
	second, hour := uint32(1), uint32(3600)
	for _, m := range []client.Message{
		{Topic: "expiring", QoS: 1, Payload: []byte("gone"), Expiry: &second},
		{Topic: "expiring", QoS: 1, Payload: []byte("kept"), Expiry: &hour},
		{Topic: "expiring", QoS: 1, Payload: []byte("for ever")},
	} {
		token, err := pub.Publish(patience(t), m)
		if err != nil {
			t.Fatal(err)
		}
		if err := token.Wait(patience(t)); err != nil {
			t.Fatal(err)
		}
	}
	<-timeAfter(1100)
	c = dial(t, p, durable(client.V5, "late"))
	ds := receive(t, c, 2)
	compare(t, payloads(ds), []string{"kept", "for ever"})
	if e := ds[0].Expiry; e == nil || *e >= 3600 || *e < 3500 {
		t.Errorf("an hour less a second is %v", e)
	}
}

// The broker holds back what the client cannot hold, and loses nothing over it.
func TestReceiveMaximum(t *testing.T) {
	p := testbroker.Start(t, testbroker.Options{})
	o := clean(client.V5)
	o.ReceiveMaximum = 2
	c := dial(t, p, o)
	subscribe(t, c, "rm")
	publish(t, dial(t, p, clean(client.V5)), "rm", numbers("", 1, 10)...)
	first := take(t, c, 2)
	nothing(t, c)
	for _, d := range first {
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, c, numbers("", 3, 10))
}

func TestManyPublishersKeepTheirOrder(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		c := dial(t, p, clean(v))
		subscribe(t, c, "many/#")
		const publishers, each = 10, 200
		for i := range publishers {
			background(t, dial(t, p, clean(v)), fmt.Sprintf("many/%d", i), numbers("", 1, each)...)
		}
		next := map[string]int{}
		for range publishers * each {
			d := receive(t, c, 1)[0]
			next[d.Topic]++
			if want := fmt.Sprint(next[d.Topic]); string(d.Payload) != want {
				t.Fatalf("%s: got %q, want %s", d.Topic, d.Payload, want)
			}
		}
	})
}

func TestLargeMessages(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		c := dial(t, p, durable(v, "large"))
		subscribe(t, c, "large")
		pub := dial(t, p, clean(v))
		var want []string
		for i := range 20 {
			want = append(want, strings.Repeat(string(rune('a'+i)), 500_000+i))
		}
		publish(t, pub, "large", want...)
		expect(t, c, want[:10])
		_ = c.Close()
		p.Kill()
		p.Restart()
		c = dial(t, p, durable(v, "large"))
		got := payloads(receive(t, c, 10))
		for got[0] != want[10] && got[0][0] < want[10][0] {
			got = append(got[1:], payloads(receive(t, c, 1))...)
		}
		compare(t, got, want[10:])
	})
}
