package torture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker"
	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// TestPowerCuts runs a whole broker with all kinds of clients on a disk that loses power: at any operation of its work, of a
// recovery, of the recovery from that. What the disk then holds is one of many images; from each the broker must recover with every
// acknowledged message, cursor and QoS 2 state right.
func TestPowerCuts(t *testing.T) {
	t.Parallel()
	powerCuts(t, false, func(seed uint64) *Plant { return NewPlant(seed, true) })
}

// TestPowerCutsOfQoS2 is TestPowerCuts with clients that do little but QoS 2.
func TestPowerCutsOfQoS2(t *testing.T) {
	t.Parallel()
	powerCuts(t, true, NewTwos)
}

func powerCuts(t *testing.T, slow bool, plant func(seed uint64) *Plant) {
	rng := rand.New(rand.NewPCG(*seed, 0))
	seeds := make(chan uint64)
	var done, cuts, inRecovery atomic.Int64
	began := time.Now()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for s := range seeds {
				x := &trial{t: t, plant: plant, slow: slow, rng: rand.New(rand.NewPCG(s, 1)), seed: s}
				done.Add(int64(x.run()))
				cuts.Add(int64(x.cuts))
				inRecovery.Add(int64(x.inRecovery))
			}
		})
	}
	for done.Load() < int64(*images)/2 && !t.Failed() && !enough(began) {
		seeds <- rng.Uint64()
	}
	close(seeds)
	wg.Wait()
	t.Logf("%d images recovered, after %d power cuts and kills, %d of them during a recovery, in %v (-seed %d)", done.Load(), cuts.Load(), inRecovery.Load(), time.Since(began).Round(time.Second), *seed)
}

// trial is one history on one disk, up to its last images.
type trial struct {
	t                *testing.T
	plant            func(seed uint64) *Plant
	slow             bool // the disk takes its time
	rng              *rand.Rand
	seed             uint64
	disk             *vfstest.Disk
	cuts, inRecovery int
}

// smallOptions make everything happen with little data: files are recycled, segments sealed and deleted, checkpoints made.
func smallOptions(d *vfstest.Disk, logger *slog.Logger) broker.Options {
	return broker.Options{
		Listeners: []broker.Listener{{Name: "test", Type: "tcp", Address: "127.0.0.1:0"}},
		Store: store.Options{
			Dir: "data", FS: d, JournalFileBytes: 128 << 10, CheckpointBytes: 96 << 10, CheckpointInterval: 40 * time.Millisecond,
			SegmentBytes: 24 << 10, SharedBelow: 4 << 10, TailBytes: 16 << 10, CacheBytes: 256 << 10, MinFree: 1, RetainBytes: 200 << 10,
		},
		Queues:          []broker.Queue{{Name: QueueName, Policy: feed.Policy{MaxDeliveries: -1, RetryDelay: []time.Duration{time.Millisecond}}}},
		ShutdownTimeout: 5 * time.Second,
		SysInterval:     -1,
		Logger:          logger,
	}
}

// life is a broker that runs.
type life struct {
	b    *broker.Broker
	stop context.CancelFunc
	done chan error
}

func start(d *vfstest.Disk, logger *slog.Logger) (*life, error) {
	return startWith(smallOptions(d, logger))
}

func startWith(o broker.Options) (*life, error) {
	b, err := broker.Open(o)
	if err != nil {
		return nil, err
	}
	l := &life{b: b, done: make(chan error, 1)}
	var ctx context.Context
	ctx, l.stop = context.WithCancel(context.Background())
	go func() { l.done <- b.Run(ctx) }()
	return l, nil
}

func (l *life) end() error {
	l.stop()
	return errors.Join(<-l.done, l.b.Close())
}

func (x *trial) run() (images int) {
	x.disk = vfstest.NewDisk(vfstest.Never)
	first := x.disk
	tear := func(name string) bool { return strings.HasSuffix(name, ".jrn") }
	defer func() {
		if err := first.Close(); err != nil {
			x.t.Error(err)
		}
	}()
	p := x.plant(x.rng.Uint64())
	for range 1 + x.rng.IntN(3) {
		x.disk.TearSectors(tear)
		if !x.live(p) {
			return 0
		}
	}
	for i := range uint64(4) {
		s := []uint64{vfstest.LoseAll, vfstest.KeepAll, x.rng.Uint64(), x.rng.Uint64()}[i]
		if !x.check(p.Clone(s+i), x.disk.AfterCut(s), s) {
			return int(i)
		}
	}
	return 4
}

// live runs the broker until the power goes or it is stopped, and goes on to the disk that is left.
func (x *trial) live(p *Plant) bool {
	cut := int(float64(5) * float64(uint64(1)<<x.rng.IntN(9)) * (0.5 + x.rng.Float64()))
	x.disk.CutAfter(cut)
	if x.slow && x.rng.IntN(2) == 0 {
		defer x.disk.Inject(slowSync(time.Duration(1+x.rng.IntN(6)) * time.Millisecond))()
	}
	var log logBuffer
	l, err := start(x.disk, log.logger())
	switch {
	case err != nil && x.disk.Cut():
		x.inRecovery++
	case err != nil:
		x.t.Errorf("seed %d: open: %v", x.seed, err)
		return false
	default:
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(20+x.rng.IntN(250))*time.Millisecond)
		go func() { // the end of the broker is the end of the work
			err := <-l.done
			l.done <- err
			cancel()
		}()
		p.Work(ctx, l.b.Addrs()[0])
		cancel()
		if !x.disk.Cut() && x.rng.IntN(3) == 0 {
			x.disk.CutAfter(vfstest.Never)
			switch err := l.end(); {
			case err == nil:
				p.Stopped()
				return true
			case !x.disk.Cut(): // else it was cut just before
				x.t.Errorf("seed %d: a clean stop: %v\n%s", x.seed, err, log.String())
				return false
			}
		} else {
			x.disk.CutAfter(0)
			_ = l.end()
		}
	}
	x.cuts++
	p.Crashed()
	if x.rng.IntN(4) == 0 {
		x.disk = x.disk.AfterKill()
	} else {
		x.disk = x.disk.AfterCut(x.rng.Uint64())
	}
	return true
}

// slowSync is a rule that makes a sync of the journal take its time, as a disk does: what is not on it yet is what crashes are about.
func slowSync(d time.Duration) func(vfstest.Op) error {
	return func(op vfstest.Op) error {
		if op.Kind == vfstest.Datasync {
			time.Sleep(d)
		}
		return nil
	}
}

// check recovers from an image and compares.
func (x *trial) check(p *Plant, d *vfstest.Disk, s uint64) bool {
	var log logBuffer
	l, err := start(d, log.logger())
	if err != nil {
		x.t.Errorf("seed %d, image %d: open: %v", x.seed, s, err)
		return false
	}
	if s != vfstest.KeepAll { // the disk that is looked at is what an earlier cut or kill left
		p.Crashed()
	}
	faults, err := p.Drain(l.b.Addrs()[0], 15*time.Second)
	if err != nil {
		x.t.Errorf("seed %d, image %d: %v\n%s", x.seed, s, err, log.String())
	}
	if n := l.b.Store().Stats().Damaged; n > 0 {
		x.t.Errorf("seed %d, image %d: %d records or groups are said to be damaged", x.seed, s, n)
	}
	if err := l.end(); err != nil {
		x.t.Errorf("seed %d, image %d: stop: %v", x.seed, s, err)
	}
	p.Stopped()
	if len(faults) > 0 {
		x.t.Errorf("seed %d, image %d", x.seed, s)
		report(x.t, p, faults)
		x.t.Log(fmt.Sprint("broker: ", log.String()))
		x.t.Log(fmt.Sprint("the disk it began with: ", dump(x.disk.AfterCut(s)))) // the same again
	}
	return err == nil && len(faults) == 0
}

// logBuffer keeps what a broker logs.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
