package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/sdk"
)

// running runs a consumer until stop is called or the test ends.
func running(t testing.TB, c *sdk.PushConsumer, from sdk.Source) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, from) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// tally collects what handlers are given.
type tally struct {
	mu  sync.Mutex
	got []string
}

func (l *tally) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got = append(l.got, s)
}

func (l *tally) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.got)
}

func (l *tally) handle(_ context.Context, d *sdk.Delivery) error {
	l.add(string(d.Body()))
	return nil
}

func TestPushKeepsTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := dial(t, b.Addr, "c")
	p := c.Producer()
	const n, keys = 2000, 10
	for i := range n {
		m := sdk.NewMessage("T", fmt.Append(nil, i)).PutHeader(sdk.HeaderShardingKey, sdk.String(fmt.Sprint("k", i%keys)))
		if _, err := p.SendAsync(patience(t), m); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	byKey := map[string][]string{}
	active, most, count := 0, 0, 0
	push := c.PushConsumer(func(_ context.Context, d *sdk.Delivery) error {
		mu.Lock()
		active++
		most = max(most, active)
		mu.Unlock()
		time.Sleep(10 * time.Microsecond)
		mu.Lock()
		defer mu.Unlock()
		active--
		count++
		key := d.Header(sdk.HeaderShardingKey).String()
		byKey[key] = append(byKey[key], string(d.Body()))
		return nil
	}, sdk.WithConcurrency(8))
	stop := running(t, push, sdk.FromQueue("Q", "T"))
	eventually(t, "all are handled", func() bool { mu.Lock(); defer mu.Unlock(); return count == n })
	stop()
	if most < 2 {
		t.Fatalf("at most %d handlers ran at once", most)
	}
	for k := range keys {
		var want []string
		for i := k; i < n; i += keys {
			want = append(want, fmt.Sprint(i))
		}
		if got := byKey[fmt.Sprint("k", k)]; !slices.Equal(got, want) {
			t.Fatalf("key %d: %d messages, want %d in order", k, len(got), len(want))
		}
	}
	if got := poll(t, attach(t, c, "Q", nil)); got != nil {
		t.Fatalf("%d messages came again", len(got))
	}
}

func TestClusteringAndBroadcasting(t *testing.T) { // AT-64
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	const n = 300
	var cluster, share tally
	var each [3]tally
	for i := range each {
		c := dial(t, b.Addr, fmt.Sprint("c", i))
		running(t, c.PushConsumer(each[i].handle), sdk.FromTopic("T"))
		running(t, c.PushConsumer(cluster.handle), sdk.FromQueue("Q", "T"))
		running(t, dial(t, b.Addr, fmt.Sprint("s", i)).PushConsumer(share.handle), sdk.FromShare("g", "T"))
	}
	late := dial(t, b.Addr, "marker").Producer()
	eventually(t, "all are subscribed", func() bool {
		sendTo(t, late, "T", "probe")
		time.Sleep(5 * time.Millisecond)
		for i := range each {
			if len(each[i].all()) == 0 {
				return false
			}
		}
		return len(share.all()) > 0
	})
	for k := range 3 {
		sendTo(t, dial(t, b.Addr, fmt.Sprint("p", k)).Producer(), "T", numbers(fmt.Sprint(k, "-"), n/3)...)
	}
	real := func(l *tally) []string {
		return slices.DeleteFunc(l.all(), func(s string) bool { return s == "probe" })
	}
	eventually(t, "everybody has got everything", func() bool {
		for i := range each {
			if len(real(&each[i])) < n {
				return false
			}
		}
		return len(real(&cluster)) >= n && len(real(&share)) >= n
	})
	for name, l := range map[string]*tally{"broadcast": &each[0], "cluster": &cluster, "share": &share} {
		got := real(l)
		slices.Sort(got)
		if len(got) != n || len(slices.Compact(got)) != n {
			t.Fatalf("%s: %d messages, want each of %d once", name, len(got), n)
		}
	}
}

func TestRefusedMessagesComeAgainAndDie(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := dial(t, b.Addr, "c")
	var l tally
	push := c.PushConsumer(func(_ context.Context, d *sdk.Delivery) error {
		l.add(string(d.Body()))
		switch {
		case strings.HasPrefix(string(d.Body()), "bad"):
			return errors.New("no")
		case strings.HasPrefix(string(d.Body()), "panic"):
			panic("oops")
		}
		return nil
	}, sdk.WithRetry(func(attempt int, _ error) (time.Duration, bool) { return 10 * time.Millisecond, attempt < 3 }))
	running(t, push, sdk.FromQueue("Q"))
	sendTo(t, c.Producer(), "queue:Q", "good", "bad", "panic", "good2")
	dead := attach(t, c, "Q-dead", nil)
	var died []string
	for range 2 {
		d, err := dead.PollWait(patience(t))
		if err != nil {
			t.Fatal(err)
		}
		died = append(died, string(d.Body())+" "+d.Header(sdk.HeaderReason).String())
		if d.Header(sdk.HeaderOriginQueue) != sdk.String("Q") || d.Header(sdk.HeaderRedelivered) != sdk.Int64(3) || d.Header(sdk.HeaderOriginOffset).Kind() != sdk.KindInt64 {
			t.Fatalf("headers of a dead letter: %v", d.Headers())
		}
	}
	slices.Sort(died)
	if want := []string{"bad no", "panic edgemq: handler panicked: oops"}; !slices.Equal(died, want) {
		t.Fatalf("dead: %q", died)
	}
	got := l.all()
	slices.Sort(got)
	if want := []string{"bad", "bad", "bad", "good", "good2", "panic", "panic", "panic"}; !slices.Equal(got, want) {
		t.Fatalf("handled: %q", got)
	}
}

// What is given up goes where the queue's settings say, by the broker's own way: it is counted there, and knows its origin.
func TestGivingUpFollowsTheQueue(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{"queues=[{name: Q, dead_letter: graves, max_deliveries: 0}]"}})
	c := dial(t, b.Addr, "c")
	sendTo(t, c.Producer(), "queue:Q", "bad", "worse")
	graves := attach(t, c, "graves", nil)
	next := func() *sdk.Delivery {
		t.Helper()
		d, err := graves.PollWait(patience(t))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}

	q := attach(t, c, "Q", nil, sdk.WithManualAck())
	d, err := q.PollWait(patience(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.GiveUp("hopeless"); err != nil || d.GiveUp("again") == nil {
		t.Fatalf("GiveUp: %v, and a second one", err)
	}
	if d := next(); string(d.Body()) != "bad" || d.Header(sdk.HeaderReason) != sdk.String("hopeless") || d.Header(sdk.HeaderRedelivered) != sdk.Int64(1) {
		t.Fatalf("%s with %v", d.Body(), d.Headers())
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}

	push := c.PushConsumer(func(context.Context, *sdk.Delivery) error { return errors.New("no") },
		sdk.WithRetry(func(attempt int, _ error) (time.Duration, bool) { return time.Millisecond, attempt < 2 }))
	running(t, push, sdk.FromQueue("Q"))
	if d := next(); string(d.Body()) != "worse" || d.Header(sdk.HeaderRedelivered) != sdk.Int64(2) || d.Header(sdk.HeaderOriginQueue) != sdk.String("Q") {
		t.Fatalf("%s with %v", d.Body(), d.Headers())
	}
	f, err := b.Queues().Find("Q")
	if err != nil {
		t.Fatal(err)
	}
	if n := f.Stats().Dead; n != 2 {
		t.Errorf("the broker counts %d dead letters of Q", n)
	}
	if _, err := b.Queues().Find("Q-dead"); err == nil {
		t.Error("there is a queue Q-dead")
	}
}

func TestDeadLettersSayWhereTheyAreFrom(t *testing.T) { // AT-78
	b := testbroker.Run(t, testbroker.Options{Set: []string{"queues=[{name: Q, topics: [orders/#], retry_delay: [1ms], max_deliveries: 3}]"}})
	c := dial(t, b.Addr, "c")
	r, err := c.Producer().Send(patience(t), sdk.NewMessage("orders/7", []byte("bad")).PutHeader(sdk.HeaderMessageID, sdk.String("o-7")))
	if err != nil {
		t.Fatal(err)
	}
	sendTo(t, c.Producer(), "orders/8", "good")
	q := attach(t, c, "Q", nil, sdk.WithManualAck())
	good := 0
	for attempt := 1; attempt <= 3 || good == 0; {
		d, err := q.PollWait(patience(t))
		if err != nil {
			t.Fatal(err)
		}
		if string(d.Body()) == "good" { // which is not held up
			good++
			_ = d.Ack()
			continue
		}
		if d.Attempt() != attempt {
			t.Fatalf("attempt %d is the %dth", d.Attempt(), attempt)
		}
		attempt++
		if err := d.Nack(0, "out of paper"); err != nil {
			t.Fatal(err)
		}
	}
	d, err := attach(t, c, "Q-dead", nil).PollWait(patience(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]sdk.Value{
		sdk.HeaderOriginTopic: sdk.String("orders/7"), sdk.HeaderOriginQueue: sdk.String("Q"), sdk.HeaderOriginOffset: sdk.Int64(int64(r.Offset)),
		sdk.HeaderRedelivered: sdk.Int64(3), sdk.HeaderReason: sdk.String("out of paper"), sdk.HeaderMessageID: sdk.String("o-7"), sdk.HeaderQueue: sdk.String("Q-dead"),
	} {
		if got := d.Header(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestOrderedRetry(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	c := dial(t, b.Addr, "c")
	var l tally
	failed := 0
	push := c.PushConsumer(func(_ context.Context, d *sdk.Delivery) error {
		if string(d.Body()) == "1" && failed < 3 {
			failed++
			return errors.New("not yet")
		}
		l.add(string(d.Body()))
		return nil
	}, sdk.WithOrderedRetry(5*time.Millisecond))
	running(t, push, sdk.FromQueue("Q"))
	sendTo(t, c.Producer(), "queue:Q", numbers("", 4)...)
	eventually(t, "all are handled", func() bool { return len(l.all()) == 4 })
	if got := l.all(); !slices.Equal(got, numbers("", 4)) || failed != 3 {
		t.Fatalf("%q after %d failures", got, failed)
	}
}

func TestPushThroughCuts(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{"session.window=64"}})
	const n = 3000
	sendTo(t, dial(t, b.Addr, "p").Producer(), "queue:Q", numbers("", n)...)
	p := newProxy(t, b.Addr)
	var l tally
	push := dial(t, p.Addr, "c").PushConsumer(func(ctx context.Context, d *sdk.Delivery) error {
		if len(l.all())%600 == 300 {
			p.Cut()
			<-ctx.Done() // the message is not ours any more
			if ctx.Err() != nil && context.Cause(ctx) != nil {
				l.add("-")
				return ctx.Err()
			}
		}
		return l.handle(ctx, d)
	}, sdk.WithConcurrency(2))
	running(t, push, sdk.FromQueue("Q"))
	real := func() []string {
		return slices.DeleteFunc(l.all(), func(s string) bool { return s == "-" })
	}
	eventually(t, "all are handled", func() bool { return len(real()) >= n })
	if got := real(); !slices.Equal(got, numbers("", n)) {
		t.Fatalf("%d messages, not as sent", len(got))
	}
}

func TestRequestReply(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 2 {
		c := dial(t, b.Addr, fmt.Sprint("responder", i))
		wg.Go(func() {
			_ = c.Respond(ctx, sdk.FromQueue("square"), func(_ context.Context, d *sdk.Delivery) ([]byte, error) {
				var x int
				if _, err := fmt.Sscan(string(d.Body()), &x); err != nil {
					return nil, err
				}
				return fmt.Append(nil, x*x), nil
			})
		})
	}
	c := dial(t, b.Addr, "asker")
	var askers sync.WaitGroup
	for x := range 50 {
		askers.Go(func() {
			d, err := c.Request(patience(t), sdk.NewQueueMessage("square", fmt.Append(nil, x)))
			if err != nil {
				t.Error(err)
			} else if string(d.Body()) != fmt.Sprint(x*x) {
				t.Errorf("%d squared is %s", x, d.Body())
			}
		})
	}
	askers.Wait()
	cancel()
	wg.Wait()
	short, stop := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer stop()
	if _, err := c.Request(short, sdk.NewQueueMessage("nobody", nil)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("nobody answers: %v", err)
	}
}

// Clients without an id of their own leave a few topics behind and not one each; who has the topic after another does not get its answers.
func TestRepliesShareTopics(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	responder := dial(t, b.Addr, "responder")
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		_ = responder.Respond(ctx, sdk.FromQueue("echo"), func(_ context.Context, d *sdk.Delivery) ([]byte, error) { return d.Body(), nil })
	})
	ask := func(c *sdk.Client, text string) {
		t.Helper()
		if d, err := c.Request(patience(t), sdk.NewQueueMessage("echo", []byte(text))); err != nil || string(d.Body()) != text {
			t.Fatalf("asked %s: %v", text, err)
		}
	}
	ask(dial(t, b.Addr, "mine"), "a") // with an id: under its own name
	before := b.Store().Topics()
	for i := range 20 {
		c := dial(t, b.Addr, "")
		ask(c, fmt.Sprint(i))
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.Store().Topics() - before; n > 8 {
		t.Errorf("20 clients, one after the other, have left %d topics", n)
	}
	for i := range 6 { // all there at the same time
		c := dial(t, b.Addr, "")
		ask(c, fmt.Sprint(i))
	}
}

func TestReplayDelayAndExpiry(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := dial(t, b.Addr, "c")
	sendTo(t, c.Producer(), "T", numbers("", 10)...)
	sub, err := c.Replay(patience(t), "T", sdk.FromEarliest())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for d, err := range sub.All(patience(t)) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, string(d.Body())); d.Offset() == 0 || d.StoreTime().IsZero() {
			t.Fatalf("headers %v", d.Headers())
		}
		if len(got) == 10 {
			break
		}
	}
	if !slices.Equal(got, numbers("", 10)) {
		t.Fatalf("got %q", got)
	}
	m := sdk.NewMessage("T", []byte("later"))
	m.Delay = 10 * time.Millisecond
	start := time.Now()
	send(t, c.Producer(), m, sdk.NewQueueMessage("Q", []byte("old")).PutHeader(sdk.HeaderTimeout, sdk.Int64(1)))
	d, err := sub.Next(patience(t))
	if err != nil || string(d.Body()) != "later" || time.Since(start) < time.Second {
		t.Fatalf("after %v: %v %v", time.Since(start), d, err)
	}
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the message has expired", func() bool { return time.Since(start) > 1100*time.Millisecond })
	if got := bodies(poll(t, attach(t, c, "Q", nil))); got != nil {
		t.Fatalf("expired: %q", got)
	}
}

func TestCursors(t *testing.T) { // AT-63
	t.Parallel()
	b := testbroker.Start(t, testbroker.Options{})
	c := dial(t, b.Addr, "c")
	k := c.Cursors("g")
	ctx := patience(t)
	if at, err := k.Load(ctx, "T", 4); err != nil || !slices.Equal(at, []uint64{0, 0, 0, 0}) {
		t.Fatal(at, err)
	}
	for i := range 4 {
		if err := k.Commit(ctx, "T", i, uint64(10*i+5)); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Commit(ctx, "T", 2, 3); err != nil { // ignored
		t.Fatal(err)
	}
	if err := k.Reset(ctx, "T", 3, 1); err != nil {
		t.Fatal(err)
	}
	if err := k.Commit(ctx, "T", 4, 1); !errors.Is(err, sdk.ErrPartition) {
		t.Fatal(err)
	}
	b.Kill()
	b.Restart()
	at, err := dial(t, b.Addr, "c2").Cursors("g").Load(ctx, "T", 8)
	if err != nil || !slices.Equal(at, []uint64{5, 15, 25, 1, 0, 0, 0, 0}) {
		t.Fatal(at, err)
	}
}

func TestTraceFollows(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	c := dial(t, b.Addr, "c")
	got := make(chan string, 1)
	running(t, c.PushConsumer(func(ctx context.Context, d *sdk.Delivery) error { got <- sdk.TraceID(ctx); return nil }), sdk.FromQueue("Q"))
	ctx := sdk.ContextWithTraceID(patience(t), "00-4bf92f35-01")
	if _, err := c.Producer().Send(ctx, sdk.NewQueueMessage("Q", nil)); err != nil {
		t.Fatal(err)
	}
	if id := <-got; id != "00-4bf92f35-01" {
		t.Fatalf("trace %q", id)
	}
}

func TestMetrics(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	m := sdk.NewMetrics()
	c := dial(t, b.Addr, "c", sdk.WithObserver(m))
	sendTo(t, c.Producer(), "queue:Q", numbers("", 10)...)
	poll(t, attach(t, c, "Q", nil))
	text := metricsText(m)
	for _, want := range []string{
		"edgemq_sdk_sent_messages_total 10\n", "edgemq_sdk_received_messages_total 11\n", "edgemq_sdk_ack_seconds_count 10\n",
		"edgemq_sdk_connections 2\n", "edgemq_sdk_failed_messages_total{known=\"unknown\"} 0\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
