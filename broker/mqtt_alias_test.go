package broker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// aliasClient resolves aliases like a client does.
type aliasClient struct {
	*testbroker.Raw
	topics map[uint16]string
}

func (c *aliasClient) next(t *testing.T) (d testbroker.Delivery, alone bool) {
	t.Helper()
	if d = c.Delivery(); d.Alias == 0 {
		return d, false
	}
	if alone = len(d.Publish.Topic) == 0; alone {
		d.Topic = c.topics[d.Alias]
	}
	c.topics[d.Alias] = d.Topic
	return d, alone
}

// Deliveries carry aliases where the client takes them, as many as it takes, at every QoS, and never one of an earlier connection.
// [MQTT-3.1.2-26] [MQTT-3.1.2-27] [MQTT-3.3.2-7]
func TestAliasesToTheClient(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	connect := func(most uint16) *aliasClient {
		o := keeper("c")
		o.TopicAliasMaximum = most
		return &aliasClient{testbroker.ConnectRaw(t, b.Addr, packet.V5, o), map[uint16]string{}}
	}
	c := connect(2)
	c.Subscribe("alias/#", 2)
	for round := range 3 {
		for i := range 4 {
			topic := fmt.Sprintf("alias/%d", i)
			switch qos := byte(i % 3); qos {
			case 0:
				pub.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: topic, Payload: []byte(topic)}))
			case 1:
				pub.Publish(topic, topic)
			case 2:
				publish2(pub, packet.V5, pub.NextID(), topic, topic, false)
			}
			d, alone := c.next(t)
			if d.Topic != topic || d.Payload != topic || (d.Alias != 0) != (i < 2) || alone != (i < 2 && round > 0) {
				t.Fatalf("round %d: %q on %q, alias %d, alone %v", round, d.Payload, d.Topic, d.Alias, alone)
			}
		}
	}
	c.Close()
	c = connect(2)
	seen := map[string]bool{}
	for range 6 { // QoS 1 and 2 of three rounds come again
		d, alone := c.next(t)
		if d.Topic != d.Payload || !d.Dup || alone && !seen[d.Topic] {
			t.Fatalf("%q on %q DUP %v, alias %d, alone %v", d.Payload, d.Topic, d.Dup, d.Alias, alone)
		}
		seen[d.Topic] = true
	}
	c.Close()
	c = connect(0)
	for range 6 {
		if d, _ := c.next(t); d.Alias != 0 || d.Topic != d.Payload {
			t.Fatalf("%q on %q, alias %d, for a client that takes none", d.Payload, d.Topic, d.Alias)
		}
	}
}

// An alias may neither make a packet too large nor be set by one that is not sent. [MQTT-3.1.2-24]
func TestAliasAndMaximumPacketSize(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("pub"))
	o := clean("c")
	o.TopicAliasMaximum, o.MaximumPacketSize = 10, 60
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, o)
	c.Subscribe("#", 1)
	const topic = "a/topic" // PUBLISH: 2 + 2 + 7 + 2 + 1 and the payload
	pub.Publish(topic, strings.Repeat("x", 47))
	pub.Publish(topic, strings.Repeat("y", 46)) // fits without an alias only
	pub.Publish(topic, strings.Repeat("z", 43))
	pub.Publish(topic, strings.Repeat("a", 50))
	for i, want := range []struct {
		topic string
		alias uint16
		size  int
	}{{topic, 0, 46}, {topic, 1, 43}, {"", 1, 50}} {
		d := c.Delivery()
		if d.Topic != want.topic || d.Alias != want.alias || len(d.Payload) != want.size {
			t.Errorf("%d: topic %q alias %d, %d bytes", i, d.Topic, d.Alias, len(d.Payload))
		}
		c.Ack(d)
	}
	c.Ping()
}
