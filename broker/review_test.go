package broker_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/internal/wire"
)

// subscribeFrom subscribes with the user property stream-offset, or without if start is "".
func subscribeFrom(c *testbroker.Raw, filter, start string) {
	s := packet.Subscribe{PacketID: c.NextID(), Filters: []packet.Subscription{{Filter: filter, QoS: 1}}}
	if start != "" {
		s.User = []packet.UserProperty{{Name: "stream-offset", Value: start}}
	}
	c.Send(packet.AppendSubscribe(nil, packet.V5, &s))
	c.Expect(packet.TypeSuback)
}

// A replay that is subscribed to again without its property stays one: it goes on where it was, over a reconnect too, and
// ends with its UNSUBSCRIBE.
func TestReplaySubscribedToAgain(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "pub", Clean: true})
	for i := range 3 {
		pub.Publish("r/a", strconv.Itoa(i))
	}
	hello := &packet.Connect{ClientID: "sub", HasSessionExpiry: true, SessionExpiry: 600}
	sub := testbroker.ConnectRaw(t, b.Addr, packet.V5, hello)
	subscribeFrom(sub, "r/#", "earliest")
	for i := range 3 {
		d := sub.Delivery()
		sub.Ack(d)
		if d.Payload != strconv.Itoa(i) {
			t.Fatalf("got %q, want %d", d.Payload, i)
		}
	}
	subscribeFrom(sub, "r/#", "")
	sub.Close()
	pub.Publish("r/a", "while away")

	sub = testbroker.ConnectRaw(t, b.Addr, packet.V5, hello)
	d := sub.Delivery()
	sub.Ack(d)
	if d.Payload != "while away" || user(d, wire.Offset) != "4" {
		t.Fatalf("got %q with %s %q", d.Payload, wire.Offset, user(d, wire.Offset))
	}
	sub.Send(packet.AppendUnsubscribe(nil, packet.V5, &packet.Unsubscribe{PacketID: sub.NextID(), Filters: []string{"r/#"}}))
	sub.Expect(packet.TypeUnsuback)
	pub.Publish("r/a", "not wanted")
	sub.Ping() // nothing came before the answer
}

// Delayed messages that are due together, since the broker was down, may be more than fits one commit group.
func TestManyLargeDelayedMessages(t *testing.T) {
	t.Parallel()
	o := testbroker.Options{Dir: t.TempDir()} // journal files of 8 MiB
	b := testbroker.Run(t, o)
	hello := &packet.Connect{ClientID: "c", Clean: false}
	c := testbroker.ConnectRaw(t, b.Addr, packet.V311, hello)
	c.Subscribe("later/#", 1)
	c.Close() // on a slow disk the first is due before the last is acknowledged
	c = testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: "p", Clean: true})
	const n = 12
	body := strings.Repeat("x", 1<<20-100)
	for i := range n {
		c.Publish("$delayed/2/later/x", strconv.Itoa(i)+" "+body)
	}
	due := time.Now().Add(2 * time.Second)
	b.Stop()
	time.Sleep(time.Until(due)) // there is no clock to turn in a whole broker
	b = testbroker.Run(t, o)
	c = testbroker.ConnectRaw(t, b.Addr, packet.V311, hello)
	for i := range n {
		d := c.Delivery()
		c.Ack(d)
		if got, _, _ := strings.Cut(d.Payload, " "); got != strconv.Itoa(i) {
			t.Fatalf("got %q, want %d", got, i)
		}
	}
}

// Deleting a queue disconnects its consumers. Who goes on publishing to it, on the same connection, has it created anew.
func TestQueueDeletedUnderItsClients(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "pub", Clean: true})
	sub := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "sub", Clean: true})
	sub.Subscribe("$queue/q", 1)
	pub.Publish("$queue/q", "1")
	sub.Ack(sub.Delivery())
	must(t, b.Queues().Delete("q"))
	if d, err := packet.ParseDisconnect(packet.V5, sub.Expect(packet.TypeDisconnect)); err != nil || d.Code != 0x98 {
		t.Errorf("DISCONNECT %#x, %v", d.Code, err)
	}
	if code := pub.Publish("$queue/q", "2"); code != 0 {
		t.Fatalf("PUBACK %#x", code)
	}
	if _, err := b.Queues().Info("q"); err != nil {
		t.Error(err)
	}
}

// A queue that comes into being after somebody tried to publish to it is found at the next try.
func TestQueueCreatedAfterARefusal(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{"queue.auto_create=false"}})
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "pub", Clean: true})
	if code := pub.Publish("$queue/q", "1"); code == 0 {
		t.Fatal("accepted")
	}
	if _, err := b.Queues().Create("q"); err != nil {
		t.Fatal(err)
	}
	if code := pub.Publish("$queue/q", "2"); code != 0 {
		t.Fatalf("PUBACK %#x", code)
	}
	must(t, b.Queues().Delete("q"))
	if code := pub.Publish("$queue/q", "3"); code == 0 {
		t.Fatal("accepted for a queue that was deleted")
	}
}
