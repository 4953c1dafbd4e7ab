package broker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// replayed returns what a replay from the beginning has of a filter.
func replayed(t *testing.T, addr, filter string, n int) []string {
	t.Helper()
	c := testbroker.ConnectRaw(t, addr, packet.V5, &packet.Connect{ClientID: "replay " + filter, Clean: true})
	defer c.Close()
	c.Subscribe("$s/earliest/"+filter, 0)
	var got []string
	for range n {
		got = append(got, c.Delivery().Payload)
	}
	if d, ok := c.DeliveryWithin(50 * time.Millisecond); ok {
		t.Errorf("more than %d of %s: %q", n, filter, d.Payload)
	}
	return got
}

func TestTopicPolicies(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{`topics=[
		{filter: "drop/#", max_messages: 3},
		{filter: "full/open", max_messages: 100},
		{filter: "full/#", max_messages: 2, overflow: reject},
		{filter: "live/#", store: false},
		{filter: "last/#", keep: last}]`}})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "c", Clean: true})
	for i := range 5 {
		for _, topic := range []string{"drop/a", "drop/b", "full/open", "live/a", "last/a"} {
			c.Publish(topic, fmt.Sprint(i))
		}
	}
	for filter, want := range map[string]string{
		"drop/a": "[2 3 4]", "drop/+": "[2 2 3 3 4 4]", "full/open": "[0 1 2 3 4]", "last/a": "[4]",
	} {
		n := len([]rune(want)) / 2
		if got := fmt.Sprint(replayed(t, b.Addr, filter, n)); got != want {
			t.Errorf("%s has %s, not %s", filter, got, want)
		}
	}

	totals, err := b.Store().TopicTotals()
	live, _ := b.Store().LookupTopic([]byte("live/a"))
	if err != nil || totals[live].Records != 0 {
		t.Errorf("%d messages of a topic that is not stored, %v", totals[live].Records, err)
	}
	for filter, told := range map[string]bool{"$s/offset:1/drop/#": true, "$s/1h/drop/+": true, "$s/1h/full/open": false, "$s/earliest/drop/a": false, "$s/offset:1/last/#": false} {
		r := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "r", Clean: true})
		r.Send(packet.AppendSubscribe(nil, packet.V5, &packet.Subscribe{PacketID: 7, Filters: []packet.Subscription{{Filter: filter}}}))
		ack, err := packet.ParseSuback(packet.V5, r.Expect(packet.TypeSuback))
		if err != nil || ack.Codes[0] != 0 || (ack.ReasonString != "") != told {
			t.Errorf("%s: SUBACK %+v, %v", filter, ack, err)
		}
		r.Close()
	}
	for i := range uint16(4) {
		c.SendPublish(1, 100+i, "full/a", fmt.Sprint(i))
		code := c.ExpectAck(packet.TypePuback, 100+i)
		if (code == packet.CodeQuotaExceeded) != (i >= 2) {
			t.Errorf("publish %d: PUBACK %#x", i, code)
		}
	}
	c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "full/a", Payload: []byte("QoS 0")}))
	c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 2, PacketID: 9, Topic: "full/a", Payload: []byte("QoS 2")}))
	if code := c.ExpectAck(packet.TypePubrec, 9); code != packet.CodeQuotaExceeded {
		t.Errorf("PUBREC %#x", code)
	}
	if got := fmt.Sprint(replayed(t, b.Addr, "full/a", 2)); got != "[0 1]" {
		t.Errorf("the full topic has %s", got)
	}
	if st := b.Store().Stats(); st.TopicRefused != 4 || st.TopicDropped != 4 {
		t.Errorf("%d refused, %d dropped", st.TopicRefused, st.TopicDropped)
	}
	if st := b.Sessions().Stats(); st.Refused != 4 {
		t.Errorf("%d publishes refused", st.Refused)
	}
	old := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: "old", Clean: true})
	old.SendPublish(1, 1, "full/a", "no")
	old.ExpectClosed()
}

// What a queue has yet to deliver is not dropped: the topic refuses then, and takes more as the queue is worked off. A topic
// that is not protected loses it.
func TestTopicPoliciesProtectQueues(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{`topics=[{filter: "safe/#", max_messages: 2}, {filter: "free/#", max_messages: 2, protect: false}]`, `queues=[{name: q, topics: ["safe/#", "free/#"]}]`}})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "c", Clean: true})
	send := func(topic string, from, n, refused int) {
		t.Helper()
		for i := range n {
			c.SendPublish(1, 1, topic, fmt.Sprint(from+i))
			if code := c.ExpectAck(packet.TypePuback, 1); (code != 0) != (i >= n-refused) {
				t.Errorf("%s: publish %d: PUBACK %#x", topic, i, code)
			}
		}
	}
	send("safe/a", 0, 3, 1)
	send("free/a", 10, 5, 0)
	k := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "k", Clean: true})
	k.Subscribe("$queue/q", 1)
	for _, want := range []string{"0", "1", "13", "14"} {
		d := k.Delivery()
		for d.QoS == 0 { // what was dropped
			d = k.Delivery()
		}
		if d.Payload != want {
			t.Errorf("the queue has %q, not %q", d.Payload, want)
		}
		k.Ack(d)
	}
	for deadline := time.Now().Add(testbroker.Patience); b.Queues().Hub().ProtectTopic("safe/a") < b.Store().Committed(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the queue is not done")
		}
	}
	send("safe/a", 20, 2, 0)
}
