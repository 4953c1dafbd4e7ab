package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/sdk"
)

func TestCreateSendsNothing(t *testing.T) { // AT-01, AT-02
	b := testbroker.Run(t, testbroker.Options{})
	p := dial(t, b.Addr, "p").Producer()
	m, err := p.CreateBytesMessageToTopic("T1", []byte("x"))
	if err != nil || m.Topic() != "T1" || m.Queue() != "" || string(m.Body()) != "x" || m.Headers().Has(sdk.HeaderQueue) {
		t.Fatal(m, err)
	}
	m, err = p.CreateBytesMessageToQueue("Q1", []byte("x"))
	if err != nil || m.Queue() != "Q1" || m.Topic() != "" || m.Headers().Has(sdk.HeaderTopic) {
		t.Fatal(m, err)
	}
	if _, err := p.CreateBytesMessageToTopic("", nil); !errors.Is(err, sdk.ErrDestination) {
		t.Fatalf("no topic: %v", err)
	}
	if next := b.Store().Next(); next != 1 {
		t.Fatalf("%d messages are stored", next-1)
	}
}

func TestSendRefusesWhatCannotBe(t *testing.T) { // AT-03, AT-04, AT-09
	b := testbroker.Run(t, testbroker.Options{})
	p := dial(t, b.Addr, "p").Producer()
	for name, c := range map[string]struct {
		m    *sdk.Message
		want error
	}{
		"nil":           {nil, sdk.ErrNoMessage},
		"neither":       {&sdk.Message{}, sdk.ErrDestination},
		"both":          {sdk.NewMessage("T", nil).PutHeader(sdk.HeaderQueue, sdk.String("Q")), sdk.ErrDestination},
		"wildcard":      {sdk.NewMessage("a/+", nil), sdk.ErrDestination},
		"system topic":  {sdk.NewMessage("$SYS/x", nil), sdk.ErrDestination},
		"queue as name": {sdk.NewMessage("$queue/x", nil), sdk.ErrDestination},
		"queue/name":    {sdk.NewQueueMessage("a/b", nil), sdk.ErrDestination},
		"too large":     {sdk.NewMessage("T", make([]byte, sdk.MaxBody+1)), sdk.ErrTooLarge},
		"header":        {sdk.NewMessage("T", nil).PutHeader("types", sdk.String("")), sdk.ErrName},
	} {
		if _, err := p.Send(patience(t), c.m); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	send(t, p, sdk.NewMessage("T", nil))
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Send(patience(t), sdk.NewMessage("T", nil)); !errors.Is(err, sdk.ErrClosed) {
		t.Fatalf("after Close: %v", err)
	}
	if next := b.Store().Next(); next != 2 {
		t.Fatalf("%d messages are stored, want 1", next-1)
	}
}

func TestBodiesAndHeaders(t *testing.T) { // AT-05, AT-07, AT-09, AT-26, AT-55
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := dial(t, b.Addr, "producer-1")
	p := c.Producer()
	rnd := rand.NewChaCha8([32]byte{1})
	var want [][]byte
	before := time.Now().Add(-time.Second)
	for i, size := range []int{0, 1, 127, 128, 32767, 32768, 65535, 65536, 100, 200 << 10, 100, sdk.MaxBody} {
		body := make([]byte, size)
		_, _ = rnd.Read(body)
		want = append(want, body)
		m := sdk.NewMessage("T1", bytes.Clone(body)).PutProperty("n", sdk.Int32(int32(i))).PutProperty("d", sdk.Float64(math.Copysign(0, -1)))
		if i == 1 {
			m.PutHeader(sdk.HeaderMessageID, sdk.String("mine"))
		}
		if _, err := p.SendAsync(patience(t), m); err != nil {
			t.Fatal(err)
		}
		clear(m.Body()) // AT-04: the caller's again
		m.PutProperty("n", sdk.Int32(-1))
	}
	if err := p.Flush(patience(t)); err != nil {
		t.Fatal(err)
	}
	got := poll(t, attach(t, c, "Q1", []string{"T1"}))
	if len(got) != len(want) {
		t.Fatalf("%d messages, want %d", len(got), len(want))
	}
	ids := map[string]bool{}
	for i, d := range got {
		if !bytes.Equal(d.Body(), want[i]) {
			t.Fatalf("message %d has another body, of %d bytes", i, len(d.Body()))
		}
		if d.Property("n") != sdk.Int32(int32(i)) || d.Property("d") != sdk.Float64(math.Copysign(0, -1)) || len(d.Properties()) != 2 {
			t.Fatalf("message %d: %v", i, d.Properties())
		}
		ids[d.MessageID()] = true
		if born := d.BornTime(); born.Before(before) || born.After(time.Now().Add(time.Second)) {
			t.Fatalf("born %v", born)
		}
		if d.Producer() != "producer-1" || d.Header(sdk.HeaderBornHost).String() == "" || d.StoreTime().IsZero() || d.Offset() == 0 {
			t.Fatalf("headers %v", d.Headers())
		}
	}
	if len(ids) != len(want) || !ids["mine"] {
		t.Fatalf("message ids %v", ids)
	}
}

func TestRawClients(t *testing.T) { // AT-10, AT-18, AT-45, AT-46
	b := testbroker.Run(t, testbroker.Options{})
	c := dial(t, b.Addr, "c")
	q := attach(t, c, "Q1", []string{"T1"})
	v3 := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: "device", Clean: true})
	var odd []string
	for i := range 256 {
		odd = append(odd, string([]byte{byte(i), 0x26, 0, 1, 'a', 0, 1, 'b', byte(i)}))
	}
	for _, body := range odd {
		v3.Publish("T1", body)
	}
	for i := range odd {
		d, err := q.PollWait(patience(t))
		if err != nil {
			t.Fatal(err)
		}
		if string(d.Body()) != odd[i] || d.Topic() != "T1" || d.Properties() != nil || d.Producer() != "device" {
			t.Fatalf("%d: %q %v", i, d.Body(), d.Headers())
		}
	}
	v5 := testbroker.ConnectRaw(t, b.Addr, packet.V5, &packet.Connect{ClientID: "v5", Clean: true})
	v5.Subscribe("T2", 1)
	v3.Subscribe("#", 1)
	send(t, c.Producer(), sdk.NewMessage("T2", []byte("bare")).PutProperty("n", sdk.Int64(5)).PutProperty("s", sdk.String("x")).PutHeader("Retry", sdk.Int32(3)))
	send(t, c.Producer(), sdk.NewQueueMessage("Q1", []byte("hidden")))
	send(t, c.Producer(), sdk.NewMessage("T3", []byte("after")))
	d := v5.Delivery()
	var pairs []string
	for p := range packet.Properties(d.Props) {
		if name := string(p.Name); name == "n" || name == "s" || name == "@Retry" || name == wire.Types {
			pairs = append(pairs, name+"="+string(p.Value))
		}
	}
	if want := []string{"@Retry=3", "n=5", "s=x", "@types=@Retry:i,n:l"}; d.Payload != "bare" || !slices.Equal(pairs, want) {
		t.Fatalf("v5 sees %q %q", d.Payload, pairs)
	}
	for _, want := range []string{"bare", "after"} { // and not "hidden"
		d := v3.Delivery()
		v3.Ack(d)
		if d.Payload != want {
			t.Fatalf("v3 sees %q, want %q", d.Payload, want)
		}
	}
	props := packet.AppendUser(packet.AppendUser(packet.AppendUser(nil, "z", "1"), "a", "2"), wire.Types, "z:i")
	v5.Ack(d)
	v5.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 1, PacketID: 77, Topic: "T1", Props: props, Payload: []byte("five")}))
	v5.ExpectAck(packet.TypePuback, 77)
	poll1, err := q.PollWait(patience(t))
	if err == nil && string(poll1.Body()) == "hidden" {
		poll1, err = q.PollWait(patience(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	if want := (sdk.Values{{Name: "z", Value: sdk.Int32(1)}, {Name: "a", Value: sdk.String("2")}}); !slices.Equal(poll1.Properties(), want) {
		t.Fatalf("got %q %v", poll1.Body(), poll1.Properties())
	}
}

// What Send says of a message's place is what consumers see, also of a duplicate, also after the broker was killed.
func TestResultsSayWhereMessagesAre(t *testing.T) {
	t.Parallel()
	b := testbroker.Start(t, testbroker.Options{})
	c := dial(t, b.Addr, "p", sdk.WithBackoff(time.Millisecond, 20*time.Millisecond))
	p := c.Producer()
	ctx := patience(t)
	one := sdk.NewQueueMessage("Q", []byte("first")).PutHeader(sdk.HeaderMessageID, sdk.String("one"))
	first, err := p.Send(ctx, one)
	if err != nil || first.Offset == 0 || first.StoreTime.IsZero() {
		t.Fatal(first, err)
	}
	results := []sdk.Result{first}
	var promises []*sdk.Promise
	for i := range 1000 {
		pr, err := p.SendAsync(ctx, sdk.NewQueueMessage("Q", fmt.Append(nil, i)))
		if err != nil {
			t.Fatal(err)
		}
		if promises = append(promises, pr); i == 500 {
			b.Kill()
			b.Restart()
		}
	}
	for _, pr := range promises {
		r, err := pr.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
	}
	again, err := p.Send(ctx, one)
	if err != nil || again.Offset != first.Offset || !again.StoreTime.Equal(first.StoreTime) {
		t.Fatalf("sent again: %+v, %v; first %+v", again, err, first)
	}
	late := sdk.NewQueueMessage("Q", nil)
	late.Delay = time.Hour
	if r, err := p.Send(ctx, late); err != nil || r.Offset != 0 || !r.StoreTime.IsZero() {
		t.Fatalf("delayed: %+v, %v", r, err)
	}
	got := poll(t, attach(t, c, "Q", nil))
	if len(got) != len(results) {
		t.Fatalf("%d messages, want %d", len(got), len(results))
	}
	for i, d := range got {
		if r := results[i]; d.Offset() != r.Offset || d.StoreTime().UnixMilli() != r.StoreTime.UnixMilli() || d.MessageID() != r.MessageID {
			t.Fatalf("message %d is at %d since %v, Send said %d since %v", i, d.Offset(), d.StoreTime(), r.Offset, r.StoreTime)
		}
	}
}

// What is sent to a queue is for its consumers alone.
func TestQueuesArePrivate(t *testing.T) { // AT-18
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := dial(t, b.Addr, "c")
	attach(t, c, "Q1", nil)
	other := attach(t, c, "Q2", []string{"#", "+/Q1"})
	eyes := map[string]*testbroker.Raw{}
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		for _, filter := range []string{"#", "+/Q1", "$share/g/#", "$share/g/+/Q1", "$s/earliest/#", "$s/earliest/+/Q1", "$exclusive/+/Q1", "$v5/#"} {
			name := fmt.Sprint(v, " ", filter)
			r := testbroker.ConnectRaw(t, b.Addr, v, &packet.Connect{ClientID: name, Clean: true})
			if code := r.Subscribe(filter, 1); code >= 0x80 {
				if strings.HasPrefix(filter, "$exclusive/") && v == packet.V5 {
					continue // the other one has it
				}
				t.Fatalf("%s: SUBACK %#x", name, code)
			}
			eyes[name] = r
		}
	}
	send(t, c.Producer(), sdk.NewQueueMessage("Q1", []byte("secret")))
	delayed := sdk.NewQueueMessage("Q1", []byte("secret"))
	delayed.Delay = time.Second
	delayed.Retain = true
	send(t, c.Producer(), delayed)
	eventually(t, "the delayed one is due", func() bool { return b.Store().Next() >= 3 })
	sendTo(t, c.Producer(), "x/Q1", "for all") // what must come after it, if it came
	sendTo(t, dial(t, b.Addr, "p2").Producer(), "x/Q1", "for all")
	shared := map[string]int{}
	for name, r := range eyes {
		if strings.Contains(name, "$share/") {
			continue
		}
		for range 2 {
			d := r.Delivery()
			r.Ack(d)
			if !strings.HasSuffix(d.Payload, "for all") || d.Topic != "x/Q1" {
				t.Fatalf("%s sees %s %q", name, d.Topic, d.Payload)
			}
		}
	}
	for name, r := range eyes { // a message of a share goes to one of its two members
		if !strings.Contains(name, "$share/") {
			continue
		}
		for {
			d, ok := r.DeliveryWithin(20 * time.Millisecond)
			if !ok {
				break
			}
			r.Ack(d)
			if shared[name[strings.IndexByte(name, '$'):]]++; d.Topic != "x/Q1" {
				t.Fatalf("%s sees %s", name, d.Topic)
			}
		}
	}
	if shared["$share/g/#"] != 2 || shared["$share/g/+/Q1"] != 2 {
		t.Fatalf("shares saw %v", shared)
	}
	if got := bodies(poll(t, other)); !slices.Equal(got, []string{"for all", "for all"}) {
		t.Fatalf("Q2 has %q", got)
	}
}

func TestFlushedIsOnDisk(t *testing.T) { // AT-23
	t.Parallel()
	b := testbroker.Start(t, testbroker.Options{})
	c := dial(t, b.Addr, "p")
	sendTo(t, c.Producer(), "T1", numbers("", 5000)...)
	b.Kill()
	b.Restart()
	got := bodies(poll(t, attach(t, dial(t, b.Addr, "c"), "Q1", []string{"T1"})))
	if !slices.Equal(got, numbers("", 5000)) {
		t.Fatalf("%d messages came", len(got))
	}
}

// A token of paho's completes when the connection is replaced; Send must not.
func TestSendWaitsForThePuback(t *testing.T) { // AT-42
	b := testbroker.Run(t, testbroker.Options{})
	p := newProxy(t, b.Addr)
	c := dial(t, p.Addr, "p")
	producer := c.Producer()
	send(t, producer, sdk.NewMessage("T", []byte("0")))
	p.Hold()
	result := make(chan error, 1)
	go func() {
		_, err := producer.Send(patience(t), sdk.NewMessage("T", []byte("1")))
		result <- err
	}()
	for cut := range 3 {
		eventually(t, "the publish is stored, once", func() bool { return b.Store().Next() == 3 })
		before := p.Passed()
		p.Cut()
		eventually(t, "it is sent again", func() bool { return p.Connections() > cut+1 && p.Passed() > before })
		select {
		case err := <-result:
			t.Fatalf("Send returned %v without a PUBACK", err)
		case <-time.After(20 * time.Millisecond):
		}
		p.Release() // lets the CONNACK pass; nothing was acknowledged so far
		if cut < 2 {
			p.Hold()
		}
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if next := b.Store().Next(); next != 3 { // AT-77
		t.Fatalf("%d messages are stored, want 2", next-1)
	}
}

func TestGivingUpSaysWhatIsKnown(t *testing.T) {
	b := testbroker.Start(t, testbroker.Options{})
	p := newProxy(t, b.Addr)
	producer := dial(t, p.Addr, "p").Producer()
	send(t, producer, sdk.NewMessage("T", []byte("0")))
	p.Hold()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := producer.Send(ctx, sdk.NewMessage("T", []byte("1")))
	var se *sdk.SendError
	if !errors.As(err, &se) || se.Known != sdk.Unknown || !errors.Is(err, context.DeadlineExceeded) || se.MessageID == "" || se.To != "T" {
		t.Fatalf("sent and not acknowledged: %v", err)
	}
	b.Kill()
	p.Release()
	p.Cut()
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	time.Sleep(10 * time.Millisecond)
	if _, err = producer.Send(ctx, sdk.NewMessage("T", []byte("2"))); !errors.As(err, &se) || se.Known != sdk.NotSent {
		t.Fatalf("without a connection: %v", err)
	}
	if err := producer.SendOneway(t.Context(), sdk.NewMessage("T", nil)); !errors.Is(err, sdk.ErrNotConnected) {
		t.Fatalf("QoS 0 without a connection: %v", err)
	}
}

func TestOrderSurvivesCuts(t *testing.T) { // AT-28
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	p := newProxy(t, b.Addr)
	c := dial(t, p.Addr, "p")
	producer := c.Producer()
	const n = 6000
	for i := range n {
		if i%500 == 250 {
			p.Cut()
		}
		if _, err := producer.SendAsync(patience(t), sdk.NewMessage(fmt.Sprint("T", i%3), fmt.Append(nil, i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := producer.Flush(patience(t)); err != nil {
		t.Fatal(err)
	}
	if p.Connections() < 3 {
		t.Fatalf("only %d connections: the test cut none", p.Connections())
	}
	for topic := range 3 {
		var want []string
		for i := topic; i < n; i += 3 {
			want = append(want, fmt.Sprint(i))
		}
		q := fmt.Sprint("Q", topic)
		if got := bodies(poll(t, attach(t, dial(t, b.Addr, q), q, []string{fmt.Sprint("T", topic)}))); !slices.Equal(got, want) {
			t.Fatalf("topic %d: %d messages, want %d in order", topic, len(got), len(want))
		}
	}
}

// A network that loses every connection before anything is acknowledged is no reason to give a message up: the broker has refused nothing.
func TestBadNetworksRefuseNothing(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	p := newProxy(t, b.Addr)
	producer := dial(t, p.Addr, "p", sdk.WithBackoff(time.Millisecond, 5*time.Millisecond)).Producer()
	p.Most(4 + 5) // CONNACK and SUBACK
	p.Cut()
	pr, err := producer.SendAsync(patience(t), sdk.NewMessage("T", nil))
	if err != nil {
		t.Fatal(err)
	}
	for n := 2; n < 15; n++ {
		before := p.Passed()
		eventually(t, "it is sent", func() bool { return p.Connections() >= n && p.Passed() > before+100 })
		p.Cut()
	}
	p.Most(0)
	p.Cut()
	if _, err := pr.Wait(patience(t)); err != nil {
		t.Fatal(err)
	}
}

// A message that the broker closes the connection for must not stop the rest for ever.
func TestRefusedMessageIsGivenUp(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{Set: []string{"limits.max_packet=8KiB"}})
	p := newProxy(t, b.Addr)
	producer := dial(t, p.Addr, "p", sdk.WithBackoff(time.Millisecond, 5*time.Millisecond)).Producer()
	bad, err := producer.SendAsync(patience(t), sdk.NewMessage("T", make([]byte, 20000)))
	if err != nil {
		t.Fatal(err)
	}
	send(t, producer, sdk.NewMessage("T", []byte("good")))
	var se *sdk.SendError
	if _, err := bad.Wait(patience(t)); !errors.Is(err, sdk.ErrRefused) || !errors.As(err, &se) || se.Known != sdk.Refused || se.Code != packet.CodeTooLarge {
		t.Fatalf("got %v", err)
	}
	if n := p.Connections(); n != 3 { // the first, one with the message alone, and the one that goes on
		t.Fatalf("%d connections", n)
	}
	if err := producer.Flush(patience(t)); !errors.Is(err, sdk.ErrRefused) {
		t.Fatalf("Flush: %v", err)
	}
	if err := producer.Flush(patience(t)); err != nil {
		t.Fatalf("the next Flush: %v", err)
	}
}

func TestSentAgainStoredOnce(t *testing.T) { // AT-77
	t.Parallel()
	b := testbroker.Start(t, testbroker.Options{})
	p := newProxy(t, b.Addr)
	ctx := patience(t)
	c := dial(t, p.Addr, "p", sdk.WithBackoff(time.Millisecond, 20*time.Millisecond))
	producer := c.Producer(sdk.WithEpoch(7))
	send(t, producer, sdk.NewQueueMessage("Q", []byte("before")))
	p.Most(4 + 5) // CONNACK and SUBACK: all PUBACKs are lost
	p.Cut()
	pr, err := producer.SendAsync(ctx, sdk.NewQueueMessage("Q", []byte("once")))
	if err != nil {
		t.Fatal(err)
	}
	for n := 2; n < 6; n++ {
		before := p.Passed()
		eventually(t, "it is sent again", func() bool { return p.Connections() >= n && p.Passed() > before+100 })
		if n == 4 {
			b.Kill()
			b.Restart()
		}
		p.Cut()
	}
	p.Most(0)
	p.Cut()
	first, err := pr.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	b.Kill()
	b.Restart()
	var se *sdk.SendError
	if _, err := c.Producer(sdk.WithEpoch(6)).Send(ctx, sdk.NewQueueMessage("Q", []byte("fenced"))); !errors.As(err, &se) || se.Known != sdk.Refused || se.Code != packet.CodeNotAuthorized {
		t.Fatalf("a lower epoch: %v", err)
	}
	again := sdk.NewQueueMessage("Q", []byte("once")).PutHeader(sdk.HeaderMessageID, sdk.String(first.MessageID))
	if r, err := producer.Send(ctx, again); err != nil || r.Offset != first.Offset {
		t.Fatalf("sent again: %+v, %v; first %+v", r, err, first)
	}
	got := poll(t, attach(t, dial(t, b.Addr, "c"), "Q", nil))
	if !slices.Equal(bodies(got), []string{"before", "once"}) || got[1].Header(sdk.HeaderEpoch) != sdk.Int64(7) {
		t.Fatalf("stored: %q", bodies(got))
	}
}

// A whole window that was stored and not acknowledged is sent again, and stored once.
func TestFullWindowIsStoredOnce(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	p := newProxy(t, b.Addr)
	const n = 32000 // the most that WithWindow allows
	producer := dial(t, p.Addr, "p", sdk.WithWindow(n, 64<<20)).Producer()
	send(t, producer, sdk.NewMessage("T", nil))
	p.Hold()
	for i := range n {
		if _, err := producer.SendAsync(patience(t), sdk.NewMessage("T", fmt.Append(nil, i))); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all are stored", func() bool { return b.Store().Next() == n+2 })
	p.Cut()
	p.Release()
	if err := producer.Flush(patience(t)); err != nil {
		t.Fatal(err)
	}
	if next := b.Store().Next(); next != n+2 {
		t.Fatalf("%d messages were stored twice", next-n-2)
	}
}

func TestManyProducersManyNames(t *testing.T) { // AT-24, AT-25
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	const producers, names, each = 8, 20, 500
	var wg sync.WaitGroup
	for k := range producers {
		c := dial(t, b.Addr, fmt.Sprint("p", k))
		wg.Go(func() {
			p := c.Producer()
			for n := range each * names {
				if _, err := p.SendAsync(t.Context(), sdk.NewMessage(fmt.Sprint("T/", n%names), fmt.Appendf(nil, "PRODUCER_%d_%d", k, n/names))); err != nil {
					t.Error(err)
					return
				}
			}
			if err := p.Flush(patience(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	next := map[string]int{}
	for _, d := range poll(t, attach(t, dial(t, b.Addr, "c"), "Q", []string{"T/+"})) {
		var k, n int
		if _, err := fmt.Sscanf(string(d.Body()), "PRODUCER_%d_%d", &k, &n); err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprint(d.Topic(), k)
		if n != next[key] {
			t.Fatalf("%s, producer %d: %d where %d is next", d.Topic(), k, n, next[key])
		}
		next[key]++
	}
	for key, n := range next {
		if n != each {
			t.Fatalf("%s: %d messages", key, n)
		}
	}
	if len(next) != producers*names {
		t.Fatalf("%d sequences", len(next))
	}
}
