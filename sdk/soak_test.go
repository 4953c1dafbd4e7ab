package sdk_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/sdk"
)

// sequences checks that each producer's messages to each topic come as they were sent: none is missing, none comes twice, none out of
// turn.
type sequences struct {
	t    *testing.T
	name string

	mu    sync.Mutex
	next  map[string]int // by producer and topic
	total int
}

func newSequences(t *testing.T, name string) *sequences {
	return &sequences{t: t, name: name, next: map[string]int{}}
}

// soakTopics is how many topics each producer sends to by turns.
const soakTopics = 3

func (s *sequences) see(d *sdk.Delivery) {
	var k, n int
	if _, err := fmt.Sscanf(string(d.Body()), "%d %d", &k, &n); err != nil {
		s.t.Errorf("%s: body %q", s.name, d.Body())
		return
	}
	key := fmt.Sprint(k, " ", d.Topic())
	s.mu.Lock()
	defer s.mu.Unlock()
	want, ok := s.next[key]
	if !ok {
		want = n % soakTopics
	}
	if n != want {
		s.t.Errorf("%s: producer %d, %s: %d where %d is next (offset %d)", s.name, k, d.Topic(), n, want, d.Offset())
	}
	s.next[key] = n + soakTopics
	s.total++
}

func (s *sequences) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// mischief does to a network what networks do, by turns, until ctx ends. All is well afterwards.
func mischief(ctx context.Context, rnd *rand.Rand, p *proxy, counts map[string]int) {
	between := func(from, to time.Duration) bool { // false when ctx has ended
		select {
		case <-time.After(from + time.Duration(rnd.Int64N(int64(to-from)))):
			return true
		case <-ctx.Done():
			return false
		}
	}
	for between(20*time.Millisecond, 200*time.Millisecond) {
		switch what := rnd.IntN(10); {
		case what < 4:
			counts["cuts"]++
			p.Cut()
		case what < 6:
			counts["delays"]++
			p.Delay(time.Duration(rnd.IntN(40)) * time.Millisecond)
			between(50*time.Millisecond, 300*time.Millisecond)
			p.Delay(0)
		case what < 8: // what the broker says in the meantime is lost: PUBACKs above all
			counts["held and lost"]++
			p.Hold()
			between(20*time.Millisecond, 200*time.Millisecond)
			p.Cut()
			p.Release()
		default: // the longer ones are noticed by the keep-alive
			counts["black holes"]++
			p.Hole(true)
			between(50*time.Millisecond, 2*time.Second)
			p.Cut()
			p.Hole(false)
		}
	}
	p.Delay(0)
	p.Hole(false)
	p.Cut()
}

// TestSoak has producers and consumers of all kinds work through networks that cut, delay and swallow, while the broker is killed. Nothing
// that Flush has said to be stored may be missing, and no application may see a message twice or out of order.
func TestSoak(t *testing.T) { // AT-27, AT-28, AT-31, AT-39
	t.Parallel()
	lasts, killEvery := 1500*time.Millisecond, 600*time.Millisecond
	if long() {
		lasts, killEvery = 5*time.Minute, 5*time.Second
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	b := testbroker.Start(t, testbroker.Options{Set: []string{"session.window=128"}})
	up, down := newProxy(t, b.Addr), newProxy(t, b.Addr)
	rough := []sdk.Option{
		sdk.WithBackoff(2*time.Millisecond, 50*time.Millisecond), sdk.WithKeepAlive(time.Second),
		sdk.WithConnectTimeout(300 * time.Millisecond), sdk.WithWriteTimeout(time.Second), sdk.WithPatience(),
	}
	// The consumers first, while all is well.
	auto, late, push := newSequences(t, "pull"), newSequences(t, "late acks"), newSequences(t, "push")
	reading, stopReading := context.WithCancel(t.Context())
	defer stopReading()
	var readers, writers, trouble sync.WaitGroup
	pulled := attach(t, dial(t, down.Addr, "c1", rough...), "Q1", []string{"T/+"})
	readers.Go(func() {
		for d, err := range pulled.Messages(reading) {
			if err != nil {
				return
			}
			auto.see(d)
		}
	})
	manual := attach(t, dial(t, down.Addr, "c2", rough...), "Q2", []string{"T/+"}, sdk.WithManualAck())
	readers.Go(func() {
		var held []*sdk.Delivery
		for {
			wait, cancel := context.WithTimeout(reading, 10*time.Millisecond)
			d, err := manual.PollWait(wait)
			cancel()
			if err == nil {
				late.see(d)
				held = append(held, d)
			}
			if len(held) >= 50 || err != nil {
				rand.Shuffle(len(held), func(i, k int) { held[i], held[k] = held[k], held[i] })
				for _, d := range held {
					if err := d.Ack(); err != nil {
						t.Errorf("late ack: %v", err)
					}
				}
				held = held[:0]
			}
			if reading.Err() != nil {
				return
			}
		}
	})
	pusher := dial(t, down.Addr, "c3", rough...).PushConsumer(func(ctx context.Context, d *sdk.Delivery) error {
		if err := ctx.Err(); err != nil {
			return err // not ours any more
		}
		push.see(d)
		return nil
	}, sdk.WithConcurrency(4))
	readers.Go(func() {
		if err := pusher.Run(reading, sdk.FromQueueExclusively("Q3", "T/+")); err != nil {
			t.Errorf("push: %v", err)
		}
	})

	sending, stopSending := context.WithTimeout(t.Context(), lasts)
	defer stopSending()
	var sent [3]int
	for k := range sent {
		p := dial(t, up.Addr, fmt.Sprint("p", k), append(rough, sdk.WithWindow(256, 1<<20))...).Producer()
		writers.Go(func() {
			for n := 0; sending.Err() == nil; n++ {
				if _, err := p.SendAsync(t.Context(), sdk.NewMessage(fmt.Sprint("T/", n%soakTopics), fmt.Appendf(nil, "%d %d", k, n))); err != nil {
					t.Errorf("producer %d: %v", k, err)
					return
				}
				if sent[k] = n + 1; n%2 == 0 {
					time.Sleep(5 * time.Millisecond) // consumers whose connections last for a moment are slow
				}
			}
			if err := p.Flush(patience(t)); err != nil {
				t.Errorf("producer %d: %v", k, err)
			}
		})
	}
	counts := []map[string]int{{}, {}}
	for i, p := range []*proxy{up, down} {
		trouble.Go(func() { mischief(sending, rand.New(rand.NewPCG(seed, uint64(i))), p, counts[i]) })
	}
	kills := 0
	for tick := time.NewTicker(killEvery); sending.Err() == nil && !t.Failed(); {
		select {
		case <-tick.C:
			b.Kill()
			b.Restart()
			kills++
		case <-sending.Done():
			tick.Stop()
		}
	}
	stopSending()
	trouble.Wait()
	writers.Wait()
	total := 0
	for _, n := range sent {
		total += n
	}
	for _, s := range []*sequences{auto, late, push} {
		eventually(t, s.name+" has everything", func() bool { return s.count() >= total || t.Failed() })
	}
	stopReading()
	readers.Wait()
	for _, s := range []*sequences{auto, late, push} {
		if s.count() != total {
			t.Errorf("%s: %d messages, %d were sent", s.name, s.count(), total)
		}
	}
	t.Logf("%d messages to each of 3 consumers; %d kills; producers' network %v, %d connections; consumers' network %v, %d connections",
		total, kills, counts[0], up.Connections(), counts[1], down.Connections())
}
