package sdk_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/sdk"
)

func TestConsumerSurvivesCuts(t *testing.T) { // AT-27
	t.Parallel()
	for name, opts := range map[string][]sdk.ConsumerOption{"auto": nil, "manual": {sdk.WithManualAck()}} {
		t.Run(name, func(t *testing.T) {
			b := testbroker.Run(t, testbroker.Options{Set: []string{"session.window=64"}})
			const n = 5000
			sendTo(t, dial(t, b.Addr, "p").Producer(), "T", numbers("", n)...)
			p := newProxy(t, b.Addr)
			q := attach(t, dial(t, p.Addr, "c"), "Q", []string{"T"}, opts...)
			var unsettled []*sdk.Delivery
			for i := range n {
				d, err := q.Poll(patience(t))
				if err != nil || d == nil {
					t.Fatalf("after %d messages: %v, %v", i, d, err)
				}
				if string(d.Body()) != fmt.Sprint(i) {
					t.Fatalf("got %s, want %d", d.Body(), i)
				}
				if i%1000 == 500 {
					p.Cut()
				}
				if len(opts) == 0 {
					continue
				}
				if unsettled = append(unsettled, d); len(unsettled) == 20 { // settled late and backwards
					for _, d := range slices.Backward(unsettled) {
						if err := d.Ack(); err != nil {
							t.Fatal(err)
						}
					}
					unsettled = nil
				}
			}
			if d, err := q.Poll(patience(t)); d != nil || err != nil {
				t.Fatalf("at the end: %v, %v", d, err)
			}
			if p.Connections() < 5 {
				t.Fatalf("only %d connections", p.Connections())
			}
			_ = q.Close()
			again := attach(t, dial(t, b.Addr, "c2"), "Q", nil)
			if got := bodies(poll(t, again)); got != nil {
				t.Fatalf("%d messages came again after they were acknowledged: %q…", len(got), got[0])
			}
		})
	}
}

func TestPollWaitsForSlowNetworks(t *testing.T) { // AT-19
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	sendTo(t, dial(t, b.Addr, "p").Producer(), "T", numbers("", 300)...)
	p := newProxy(t, b.Addr)
	c := dial(t, p.Addr, "c")
	p.Delay(300 * time.Millisecond)
	if got := bodies(poll(t, attach(t, c, "Q", []string{"T"}))); !slices.Equal(got, numbers("", 300)) {
		t.Fatalf("%d messages before nil", len(got))
	}
}

func TestUnsettledComesAgainToTheNext(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	c := dial(t, b.Addr, "c")
	sendTo(t, c.Producer(), "queue:Q", numbers("", 10)...)
	q := attach(t, c, "Q", nil, sdk.WithManualAck())
	ds := poll(t, q)
	for i, d := range ds {
		if i%2 == 0 {
			if err := d.Ack(); err != nil {
				t.Fatal(err)
			}
			if err := d.Ack(); err == nil {
				t.Fatal("settled twice")
			}
		}
	}
	_ = q.Close()
	next := c.PullConsumer()
	eventually(t, "the queue is free", func() bool { return next.AttachQueue(patience(t), "Q") == nil })
	if got := bodies(poll(t, next)); !slices.Equal(got, []string{"1", "3", "5", "7", "9"}) {
		t.Fatalf("the next consumer got %q", got)
	}
}

func TestNackComesAgain(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	c := dial(t, b.Addr, "c")
	sendTo(t, c.Producer(), "queue:Q", "a", "b")
	q := attach(t, c, "Q", nil, sdk.WithManualAck())
	d, err := q.PollWait(patience(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Nack(50*time.Millisecond, "not today"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"b", "a"} {
		d, err := q.PollWait(patience(t))
		if err != nil || string(d.Body()) != want {
			t.Fatalf("got %v %v, want %s", d, err, want)
		}
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
	}
}

// How often a message was refused is the queue's knowledge: it outlives consumers and the broker.
func TestAttemptsAreCounted(t *testing.T) {
	t.Parallel()
	b := testbroker.Start(t, testbroker.Options{})
	sendTo(t, dial(t, b.Addr, "p").Producer(), "queue:Q", "a")
	for attempt := 1; attempt <= 3; attempt++ {
		c := dial(t, b.Addr, fmt.Sprint("c", attempt))
		q := attach(t, c, "Q", nil, sdk.WithManualAck())
		d, err := q.PollWait(patience(t))
		if err != nil || d.Attempt() != attempt || d.Redelivered != (attempt > 1) {
			t.Fatalf("attempt %d: %d, redelivered %v, %v", attempt, d.Attempt(), d.Redelivered, err)
		}
		if err := d.Nack(time.Millisecond, "no"); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if attempt == 1 {
			b.Stop()
			b.Restart()
		}
	}
}

func TestPauseAndResume(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{Set: []string{"session.window=64"}})
	c := dial(t, b.Addr, "c")
	sendTo(t, c.Producer(), "queue:Q", numbers("", 1000)...)
	q := attach(t, c, "Q", nil)
	q.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if d, err := q.Poll(ctx); d != nil || err == nil {
		t.Fatalf("while paused: %v, %v", d, err)
	}
	if n := q.Buffered(); n > 64 {
		t.Fatalf("%d messages are buffered, the window is 64", n)
	}
	q.Resume()
	if got := bodies(poll(t, q)); !slices.Equal(got, numbers("", 1000)) {
		t.Fatalf("got %d messages", len(got))
	}
}

// The broker is killed again and again under clients that go on: AT-31, AT-39.
func TestKillsWhileSendingAndReading(t *testing.T) {
	t.Parallel()
	b := testbroker.Start(t, testbroker.Options{})
	const producers = 4
	kills := 6
	if n, err := strconv.Atoi(os.Getenv("SDK_TEST_KILLS")); err == nil {
		kills = n
	} else if long() {
		kills = 100
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	quick := sdk.WithBackoff(5*time.Millisecond, 50*time.Millisecond)
	var wg sync.WaitGroup
	counts := make([]int, producers)
	for k := range producers {
		p := dial(t, b.Addr, fmt.Sprint("p", k), quick).Producer()
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if _, err := p.SendAsync(patience(t), sdk.NewMessage(fmt.Sprint("T/", n%3), fmt.Appendf(nil, "%d %d", k, n))); err != nil {
					t.Errorf("producer %d: %v", k, err)
					return
				}
				counts[k] = n + 1
				if n%200 == 199 {
					if err := p.Flush(patience(t)); err != nil {
						t.Errorf("producer %d: %v", k, err)
						return
					}
				}
			}
			if err := p.Flush(patience(t)); err != nil {
				t.Errorf("producer %d: %v", k, err)
			}
		})
	}
	q := attach(t, dial(t, b.Addr, "c", quick), "Q", []string{"T/+"})
	next := map[string]int{} // by producer and topic
	total := 0
	read := func(d *sdk.Delivery) {
		var k, n int
		if _, err := fmt.Sscanf(string(d.Body()), "%d %d", &k, &n); err != nil {
			t.Error(err)
			return
		}
		key := fmt.Sprint(k, d.Topic())
		want, ok := next[key]
		if !ok {
			want = n % 3
		}
		if n != want {
			t.Errorf("producer %d, %s: %d where %d is next", k, d.Topic(), n, want)
		}
		next[key] = n + 3
		total++
	}
	for n := range kills {
		if t.Failed() {
			t.Fatalf("after %d kills", n)
		}
		for end := time.Now().Add(time.Duration(rand.IntN(400)) * time.Millisecond); time.Now().Before(end) && !t.Failed(); {
			wait, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			if d, err := q.PollWait(wait); err == nil {
				read(d)
			}
			cancel()
		}
		b.Kill()
		b.Restart()
	}
	stop()
	wg.Wait()
	sent := 0
	for _, n := range counts {
		sent += n
	}
	for total < sent && !t.Failed() {
		d, err := q.PollWait(patience(t))
		if err != nil {
			t.Fatalf("%d messages came, %d were sent: %v", total, sent, err)
		}
		read(d)
	}
	for _, d := range poll(t, q) {
		read(d)
	}
	if total != sent {
		t.Fatalf("%d messages came, %d were sent", total, sent)
	}
	t.Logf("%d messages, %d kills", total, kills)
}

func TestBlackHoleIsNoticed(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	p := newProxy(t, b.Addr)
	states := make(chan sdk.State, 64)
	c := dial(t, p.Addr, "p", sdk.WithKeepAlive(time.Second), sdk.WithStateFunc(func(s sdk.State) { states <- s }))
	if s := <-states; !s.Connected {
		t.Fatalf("first state %+v", s)
	}
	p.Hole(true)
	result := make(chan error, 1)
	go func() {
		_, err := c.Producer().Send(patience(t), sdk.NewMessage("T", []byte("x")))
		result <- err
	}()
	if s := <-states; s.Connected || s.Err == nil || s.Pending != 1 {
		t.Fatalf("state %+v", s)
	}
	p.Hole(false)
	p.Cut()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
}

func TestSeekAndLag(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{"admin.listen=127.0.0.1:0"}})
	c := dial(t, b.Addr, "c", sdk.WithAdmin("http://"+b.AdminAddr(), ""))
	want := numbers("", 100)
	sendTo(t, c.Producer(), "queue:Q", want...)
	q := attach(t, c, "Q", nil)
	ctx := patience(t)
	first := poll(t, q)
	eventually(t, "the lag is 0", func() bool { n, err := q.Lag(ctx); return err == nil && n == 0 })
	for _, c := range []struct {
		to   sdk.Start
		want []string
	}{
		{sdk.FromEarliest(), want},
		{sdk.FromOffset(first[90].Offset()), want[90:]},
		{sdk.FromAgo(time.Hour), want},
		{sdk.FromTime(time.Now().Add(time.Minute)), nil},
		{sdk.FromEarliest(), want},
		{sdk.FromLatest(), nil},
	} {
		if err := q.Seek(ctx, c.to); err != nil {
			t.Fatal(err)
		}
		if got := bodies(poll(t, q)); !slices.Equal(got, c.want) {
			t.Fatalf("from %v: %d messages, want %d", c.to, len(got), len(c.want))
		}
	}
	sendTo(t, c.Producer(), "queue:Q", "last")
	d, err := q.PollWait(ctx)
	if err != nil || string(d.Body()) != "last" {
		t.Fatal(d, err)
	}
	if n, err := q.Lag(ctx); err != nil || n != 1 {
		t.Fatalf("lag %d, %v", n, err)
	}
}
