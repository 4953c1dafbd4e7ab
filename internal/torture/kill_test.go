package torture

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/testbroker"
)

// restless are settings with which little traffic makes checkpoints, seals and deletes segments and recycles the journal all the time.
var restless = []string{
	"store.journal_file=4MiB", "store.checkpoint_bytes=4MiB", "store.checkpoint_interval=1s", "store.segment_bytes=1MiB",
	"store.shared_below=4KiB", "store.tail_bytes=1MiB", "store.cache_bytes=1MiB", "store.min_free=1MiB", "retention.bytes=6MiB",
	"queues=[{name: q, max_deliveries: 0, retry_delay: [1ms]}]", "sys.interval=1s", "log.level=debug",
}

// TestKills kills the real broker with SIGKILL, again and again, while clients of all kinds are at work: at any moment of publishing, of
// checkpoints, of sealing and deleting segments, of saving state, of a recovery, of a clean stop. Every few rounds everything is read back.
func TestKills(t *testing.T) {
	t.Parallel()
	const together = 10 // rounds on one data directory
	rng := rand.New(rand.NewPCG(*seed, 2))
	began := time.Now()
	var n killed
	for n.rounds < *rounds && !enough(began) && !t.Failed() {
		killRounds(t, rng, min(together, *rounds-n.rounds), &n)
	}
	t.Logf("%d rounds: %d kills while at work, %d while recovering, %d while stopping, %d clean stops; meanwhile %d checkpoints, %d segments deleted; %d events judged, in %v (-seed %d)",
		n.rounds, n.working, n.recovering, n.stopping, n.clean, n.checkpoints, n.deleted, n.events, time.Since(began).Round(time.Second), *seed)
}

// killed counts what happened.
type killed struct {
	rounds, working, recovering, stopping, clean int
	checkpoints, deleted, events                 int
}

// killRounds is a broker's life from an empty directory to a comparison of all that it has with all that it should have.
func killRounds(t *testing.T, rng *rand.Rand, rounds int, n *killed) {
	dir, err := os.MkdirTemp("", "edgemq-torture")
	if err != nil {
		t.Fatal(err)
	}
	b := testbroker.Start(t, testbroker.Options{Dir: dir, Set: restless})
	p := NewPlant(rng.Uint64(), true)
	p.Sizes, p.Pace = []int{10, 100, 1000, 10_000, 30_000}, 10*time.Millisecond
	for range rounds {
		n.rounds++
		ctx, cancel := context.WithCancel(context.Background())
		worked := make(chan struct{})
		go func() { p.Work(ctx, b.Addr); close(worked) }()
		<-time.After(time.Duration(100+rng.IntN(1400)) * time.Millisecond)
		kind := Crashed
		switch k := rng.IntN(10); {
		case k == 0:
			b.Stop()
			kind = Stopped
			n.clean++
		case k == 1:
			b.Signal(syscall.SIGTERM)
			<-time.After(time.Duration(rng.IntN(20)) * time.Millisecond)
			b.Kill()
			n.stopping++
		default:
			b.Kill()
			n.working++
		}
		cancel()
		<-worked
		p.ended(kind)
		b.Launch()
		if rng.IntN(3) == 0 {
			<-time.After(time.Duration(rng.IntN(60)) * time.Millisecond)
			b.Kill()
			n.recovering++
			p.Crashed()
			b.Launch()
		}
		b.WaitListening()
	}
	faults, err := p.Drain(b.Addr, time.Minute)
	if err != nil {
		t.Error(err)
	}
	report(t, p, faults)
	b.Stop()
	p.Stopped()
	log := b.Log()
	n.events += p.H.Len()
	n.checkpoints += strings.Count(log, "msg=checkpoint ")
	n.deleted += strings.Count(log, `msg="segment deleted"`)
	for _, bad := range []string{"level=ERROR", "damaged=1", "panic"} {
		if strings.Contains(log, bad) {
			t.Errorf("the broker's log has %s", bad)
		}
	}
	if damaged, _ := filepath.Glob(filepath.Join(dir, "damaged", "*")); len(damaged) > 0 {
		t.Errorf("set aside as damaged: %v", damaged)
	}
	if t.Failed() {
		t.Logf("the data is in %s", dir)
		return
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}
