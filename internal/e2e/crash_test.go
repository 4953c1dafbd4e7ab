package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// crashRounds is how often TestKillLoop kills the broker; issue 2 asks for 50 by hand, CI does fewer.
const crashRounds = 8

// Publishers run while the broker is killed again and again. Whatever was acknowledged must reach a queue that
// is bound afterwards and a session that was there all the time: no gap, no reordering, and repeats only
// where a publisher that got no answer sent again.
func TestKillLoop(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		p := testbroker.Start(t, testbroker.Options{})
		session := dial(t, p, durable(v, "witness"))
		subscribe(t, session, "loop/#")
		_ = session.Close()

		ctx, stop := context.WithCancel(t.Context())
		const publishers = 4
		acked := make([]int, publishers)
		var wg sync.WaitGroup
		for i := range publishers {
			wg.Go(func() { acked[i] = publishUntil(ctx, p.Addr, v, i) })
		}
		for range crashRounds {
			<-time.After(time.Duration(50+rand.IntN(250)) * time.Millisecond)
			p.Kill()
			p.Launch()
			if rand.IntN(3) == 0 { // during recovery
				<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond)
				p.Kill()
				p.Launch()
			}
			p.WaitListening()
		}
		stop()
		wg.Wait()
		total := 0
		for _, n := range acked {
			total += n
		}
		t.Logf("acknowledged %v", acked)
		if total == 0 {
			t.Fatal("nothing was acknowledged")
		}
		queue := dial(t, p, clean(v))
		subscribe(t, queue, "$queue/afterwards/loop/#")
		checkLoop(t, "queue", queue, acked)
		session = dial(t, p, durable(v, "witness"))
		checkLoop(t, "session", session, acked)
	})
}

// publishUntil publishes 1, 2, 3, … to a topic of its own, over new connections where one breaks, beginning again
// after the last number that was acknowledged. It returns that when ctx ends.
func publishUntil(ctx context.Context, addr string, v client.Version, publisher int) int {
	acked := 0
	for ctx.Err() == nil {
		c, err := client.Dial(ctx, client.Options{URL: addr, Version: v, ID: fmt.Sprintf("loop-%d", publisher), CleanStart: true, Timeout: 2 * time.Second})
		if err != nil {
			<-time.After(5 * time.Millisecond)
			continue
		}
		acked = publishFrom(ctx, c, publisher, acked)
		_ = c.Close()
	}
	return acked
}

func publishFrom(ctx context.Context, c client.Client, publisher, acked int) int {
	const window = 64
	var tokens []*client.Token
	for n := acked + 1; ctx.Err() == nil; n++ {
		token, err := c.Publish(ctx, client.Message{
			Topic: fmt.Sprintf("loop/%d", publisher), Payload: fmt.Appendf(nil, "%d %d", publisher, n), QoS: 1,
		})
		if err != nil {
			break
		}
		if tokens = append(tokens, token); len(tokens) == window {
			if tokens[0].Wait(context.Background()) != nil {
				return acked
			}
			acked, tokens = acked+1, tokens[1:]
		}
	}
	for _, token := range tokens {
		if token.Wait(context.Background()) != nil {
			break
		}
		acked++
	}
	return acked
}

// checkLoop receives until every publisher's last acknowledged number is there.
func checkLoop(t *testing.T, who string, c client.Client, acked []int) {
	t.Helper()
	newest, back := make([]int, len(acked)), make([]int, len(acked))
	missing := func() bool {
		for i := range acked {
			if newest[i] < acked[i] {
				return true
			}
		}
		return false
	}
	previous := make([]int, len(acked))
	for missing() {
		d := receive(t, c, 1)[0]
		a, b, _ := strings.Cut(string(d.Payload), " ")
		i, _ := strconv.Atoi(a)
		n, err := strconv.Atoi(b)
		if err != nil || n > newest[i]+1 {
			t.Fatalf("%s: publisher %d: %d after %d", who, i, n, newest[i])
		}
		if n <= previous[i] {
			back[i]++
		} else if n != previous[i]+1 {
			t.Fatalf("%s: publisher %d: %d after %d", who, i, n, previous[i])
		}
		previous[i], newest[i] = n, max(newest[i], n)
	}
	for i, n := range back {
		if n > 2*crashRounds {
			t.Errorf("%s: publisher %d: went back %d times in %d kills", who, i, n, crashRounds)
		}
	}
}

// Queues for mosquitto's tools: nothing in them knows of edgemq.
func TestMosquittoQueue(t *testing.T) {
	pub, sub := testbroker.Tool(t, "mosquitto_pub"), testbroker.Tool(t, "mosquitto_sub")
	for _, version := range []string{"311", "5"} {
		t.Run("mqtt-"+version, func(t *testing.T) {
			t.Parallel()
			p := testbroker.Start(t, testbroker.Options{})
			host, port, _ := strings.Cut(p.Addr, ":")
			base := []string{"-h", host, "-p", port, "-q", "1", "-V", version}
			want := numbers("", 1, 300)
			testbroker.Exec(t, []byte(strings.Join(want, "\n")+"\n"), pub, append(base, "-l", "-t", "m/q")...)
			testbroker.Exec(t, nil, pub, append(base, "-t", "$queue/mq", "-m", "direct")...)
			p.Kill()
			p.Restart()
			// mosquitto_sub acknowledges what it does not print, so it takes all it is sent: read everything at once.
			got := testbroker.Exec(t, nil, sub, append(base, "-t", "$queue/mq/m/#", "-C", "301", "-W", "30")...)
			if lines := lines(got); len(lines) != 301 {
				t.Fatalf("%d messages", len(lines))
			}
			compare(t, lines(strings.Replace(got, "direct\n", "", 1)), want)
		})
	}
}
