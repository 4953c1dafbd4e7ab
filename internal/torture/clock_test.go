package torture

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// TestClockSteps has the broker's clock step back and forth by hours, while it runs and while it does not. Times of messages do not go
// backwards, and nothing is lost, or found twice, or out of order: not what is delayed or refused, whose time is then another, nor Wills.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(*seed, 9))
	d := vfstest.NewDisk(vfstest.Never)
	defer d.Close()
	p := NewPlant(rng.Uint64(), true)
	p.Delay = 0 // by that clock
	var off atomic.Int64
	for life := range 4 {
		var log logBuffer
		o := smallOptions(d, log.logger())
		o.Store.Now = func() time.Time { return time.Now().Round(0).Add(time.Duration(off.Load())) }
		l, err := startWith(o)
		if err != nil {
			t.Fatal(err)
		}
		if life == 3 {
			off.Store(int64(48 * time.Hour)) // later than ever, so that all is due
			faults, err := p.Drain(l.b.Addrs()[0], 15*time.Second)
			if err != nil {
				t.Error(err)
			}
			report(t, p, faults)
		} else {
			ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
			go func() {
				for ctx.Err() == nil {
					off.Store(rng.Int64N(int64(48*time.Hour)) - int64(24*time.Hour))
					pause(ctx, 10*time.Millisecond)
				}
			}()
			p.Work(ctx, l.b.Addrs()[0])
			cancel()
		}
		if err := l.end(); err != nil {
			t.Error(err)
		}
		p.Stopped()
	}
}
