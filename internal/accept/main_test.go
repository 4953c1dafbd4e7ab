// Package accept has the acceptance tests of queues and replays, one for each row that the project was asked for: AT-11 to
// AT-29, AT-39, AT-47 to AT-54, AT-77 to AT-93, by their names, with raw clients of both versions of MQTT. Those of the rows that speak of the SDK
// alone are in sdk/. Sizes are small; EDGEMQTEST_LONG=1 has those of the rows.
package accept

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
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

func TestMain(m *testing.M) { os.Exit(testbroker.Main(m)) }

// size is small in the usual run, and long under EDGEMQTEST_LONG=1.
func size(small, long int) int {
	if os.Getenv("EDGEMQTEST_LONG") == "1" {
		return long
	}
	return small
}

// versions runs a test for 3.1.1 and 5, beside each other.
func versions(t *testing.T, row string, test func(t *testing.T, v packet.Version)) {
	t.Parallel()
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		t.Run(fmt.Sprintf("%s v%d", row, v), func(t *testing.T) {
			t.Parallel()
			test(t, v)
		})
	}
}

// client is a raw client with what these tests often do.
type client struct {
	*testbroker.Raw
	t testing.TB
}

// connect returns a client with a clean session.
func connect(t testing.TB, addr string, v packet.Version, id string) *client {
	t.Helper()
	return connectAs(t, addr, v, &packet.Connect{ClientID: id, Clean: true})
}

func connectAs(t testing.TB, addr string, v packet.Version, c *packet.Connect) *client {
	t.Helper()
	return &client{testbroker.ConnectRaw(t, addr, v, c), t}
}

// subscribe subscribes to filters with one SUBSCRIBE; deliveries may come before its answer, and none is lost.
func (c *client) subscribe(filters ...string) {
	c.t.Helper()
	s := &packet.Subscribe{PacketID: c.NextID()}
	for _, f := range filters {
		s.Filters = append(s.Filters, packet.Subscription{Filter: f, QoS: 1})
	}
	c.Send(packet.AppendSubscribe(nil, c.Version(), s))
	ack, err := packet.ParseSuback(c.Version(), c.Expect(packet.TypeSuback))
	if err != nil || slices.ContainsFunc(ack.Codes, func(code byte) bool { return code >= 0x80 }) {
		c.t.Fatalf("subscribe to %q: % x, %v", filters, ack.Codes, err)
	}
}

// attach attaches to a queue, bound to topics.
func (c *client) attach(queue string, topics ...string) {
	c.t.Helper()
	filters := []string{"$queue/" + queue}
	for _, t := range topics {
		filters = append(filters, "$queue/"+queue+"/"+t)
	}
	c.subscribe(filters...)
}

// publish publishes payloads to a topic at QoS 1, many at once, and waits for all answers.
func (c *client) publish(topic string, payloads ...string) {
	c.t.Helper()
	for chunk := range slices.Chunk(payloads, 500) {
		var b []byte
		for _, p := range chunk {
			b = packet.AppendPublish(b, c.Version(), &packet.Outgoing{QoS: 1, PacketID: c.id(), Topic: topic, Payload: []byte(p)})
		}
		c.Send(b)
		c.acks(len(chunk))
	}
}

// acks takes PUBACKs that say yes.
func (c *client) acks(n int) {
	c.t.Helper()
	for range n {
		var a packet.Ack
		if err := packet.ParseAck(c.Version(), c.Expect(packet.TypePuback), &a); err != nil || a.Code >= 0x80 {
			c.t.Fatalf("PUBACK %#x, %v", a.Code, err)
		}
	}
}

// id is a packet id, never 0.
func (c *client) id() uint16 {
	if id := c.NextID(); id != 0 {
		return id
	}
	return c.NextID()
}

// take takes n deliveries and acknowledges them, and returns their payloads.
func (c *client) take(n int) []string {
	c.t.Helper()
	var out []string
	for range n {
		d := c.Delivery()
		c.Ack(d)
		out = append(out, d.Payload)
	}
	return out
}

// hold takes n deliveries and acknowledges none.
func (c *client) hold(n int) []testbroker.Delivery {
	c.t.Helper()
	var out []testbroker.Delivery
	for range n {
		out = append(out, c.Delivery())
	}
	return out
}

// want takes exactly these, in this order.
func (c *client) want(payloads ...string) {
	c.t.Helper()
	if got := c.take(len(payloads)); !slices.Equal(got, payloads) {
		c.t.Fatalf("got %q, want %q", brief(got), brief(payloads))
	}
}

// wantAny takes exactly these, in any order.
func (c *client) wantAny(payloads ...string) {
	c.t.Helper()
	got := c.take(len(payloads))
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(payloads)); !slices.Equal(got, want) {
		c.t.Fatalf("got %q, want %q", brief(got), brief(want))
	}
}

// quiet is how long nothing must come. What it is to show is shown by what comes before or after as well.
const quiet = 100 * time.Millisecond

// nothing fails if something comes.
func (c *client) nothing() {
	c.t.Helper()
	if frame, ok := c.NextWithin(quiet); ok {
		c.t.Fatalf("an unexpected packet % x", frame[:min(len(frame), 60)])
	}
}

func brief(s []string) []string { return s[:min(len(s), 40)] }

// numbers are texts from 0 on.
func numbers(prefix string, n int) []string {
	var s []string
	for i := range n {
		s = append(s, prefix+strconv.Itoa(i))
	}
	return s
}

func user(d testbroker.Delivery, name string) string {
	v, _ := packet.FindUser(d.Props, name)
	return string(v)
}

// api is the admin API of a broker, by the socket in its data directory.
type api struct {
	t    testing.TB
	http http.Client
}

func adminOf(t testing.TB, dir string) *api {
	socket := filepath.Join(dir, "admin.sock")
	a := &api{t: t}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	a.http.Transport = tr
	t.Cleanup(tr.CloseIdleConnections)
	return a
}

// call makes a request and decodes the answer into out.
func (a *api) call(method, path, body string, out any) {
	a.t.Helper()
	r, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	resp, err := a.http.Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var e struct{ Error string }
		_ = json.NewDecoder(resp.Body).Decode(&e)
		a.t.Fatalf("%s %s: %s %s", method, path, resp.Status, e.Error)
	}
	if out != nil {
		if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
			a.t.Fatal(err)
		}
	}
}

// await waits for a condition.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testbroker.Patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain for ", what)
		}
	}
}
