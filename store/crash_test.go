package store_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// work is what clients do in one life of a store: it returns when all is done or the store takes nothing more.
func (x *session) work(t *testing.T, rounds int) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { x.follow(ctx, t) })
	defer wg.Wait()
	defer cancel()
	for round := range rounds {
		var round1 sync.WaitGroup
		for i, client := range []string{"persistent", "meter", fmt.Sprint("oneshot", round%3)} {
			round1.Go(func() {
				for n := range 3 - i {
					if x.append(client, i == 0 || (round+n)%3 != 0) != nil {
						return
					}
				}
			})
		}
		round1.Wait()
		x.waiting.Wait()
		x.w.mu.Lock()
		if end := x.s.Committed(); end > 40 {
			x.w.protect = max(x.w.protect, end-40)
		}
		x.w.mu.Unlock()
		if round%4 == 3 {
			time.Sleep(6 * time.Second) // for a checkpoint and retention
		}
	}
}

// life opens the store, works and stops. The error says why it ended early, if it did.
func (w *world) life(t *testing.T, d *vfstest.Disk, rounds int) error {
	x, err := w.start(w.options(d))
	if err != nil {
		return err
	}
	err = w.check(x.s, 1)
	if err == nil {
		err = w.learn(x.s)
	}
	if err == nil {
		x.work(t, rounds)
	}
	return errors.Join(err, x.end(t))
}

// revive opens what a crash left, compares, goes on working and compares again after a clean stop.
func (w *world) revive(t *testing.T, d *vfstest.Disk, seed uint64, rounds int) error {
	x, err := w.start(w.options(d))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	err = w.check(x.s, seed)
	if n := x.s.Stats().Damaged; n > 0 && err == nil {
		err = fmt.Errorf("%d records or groups reported damaged", n)
	}
	if err == nil && rounds > 0 {
		if err = w.learn(x.s); err == nil {
			x.work(t, rounds)
			err = w.check(x.s, seed)
		}
	}
	if err2 := x.end(t); err2 != nil {
		return errors.Join(err, fmt.Errorf("stop: %w", err2))
	}
	if err == nil && rounds > 0 {
		return w.revive(t, d, seed+1, 0)
	}
	return err
}

// inParallel runs fn for n = 0, 1, 2, … on all processors until it returns false; under -short for some n only.
func inParallel(t *testing.T, stepShort int, fn func(t *testing.T, n int) bool) {
	const workers = 2
	step := 1
	if testing.Short() {
		step = stepShort
	}
	for i := range workers {
		t.Run(fmt.Sprint("worker", i), func(t *testing.T) {
			t.Parallel()
			for n := i * step; !t.Failed(); n += workers * step {
				more := true
				synctest.Test(t, func(t *testing.T) { more = fn(t, n) })
				if !more {
					return
				}
			}
		})
	}
}

// TestPowerCut cuts the power at every write-like operation of two lives of a store.
func TestPowerCut(t *testing.T) {
	inParallel(t, 7, func(t *testing.T, k int) bool {
		w, d := newWorld(), vfstest.NewDisk(k)
		defer d.Close()
		for _, rounds := range []int{9, 4} {
			if err := w.life(t, d, rounds); err != nil && !d.Cut() {
				t.Fatalf("cut %d: %v", k, err)
			}
		}
		for i := range uint64(3) {
			seed, rounds := uint64(k)*3+i, 0
			if i == 0 {
				seed = vfstest.LoseAll
			}
			if i == 2 {
				rounds = 2
			}
			if err := w.clone().revive(t, d.AfterCut(seed), seed, rounds); err != nil {
				t.Fatalf("cut %d, seed %d: %v", k, seed, err)
			}
		}
		return d.Cut()
	})
}

// TestPowerCutWhileRecovering cuts the power again at every operation of the recovery from a first cut. What the recovered
// store showed before the second cut must still be there after it.
func TestPowerCutWhileRecovering(t *testing.T) {
	for _, first := range []int{30, 75, 120} {
		t.Run(fmt.Sprint("after", first), func(t *testing.T) {
			inParallel(t, 5, func(t *testing.T, k int) bool {
				w, d := newWorld(), vfstest.NewDisk(first)
				defer d.Close()
				_ = w.life(t, d, 9)
				seed := uint64(first + k%3)
				crashed := d.AfterCut(seed)
				crashed.CutAfter(k)
				x, err := w.start(w.options(crashed))
				if err == nil {
					if err = w.check(x.s, seed); err == nil {
						err = w.learn(x.s)
					}
					if err != nil && !crashed.Cut() {
						t.Errorf("first recovery: %v", err)
					}
					x.work(t, 1)
					err = x.end(t)
				}
				if err != nil && !crashed.Cut() {
					t.Fatalf("cut %d: %v", k, err)
				}
				for i := range uint64(2) {
					seed := (uint64(k)*2 + 1) * i
					if err := w.clone().revive(t, crashed.AfterCut(seed), seed, int(i)); err != nil {
						t.Fatalf("cut %d, then %d, seed %d: %v", first, k, seed, err)
					}
				}
				return crashed.Cut()
			})
		})
	}
}

// TestFailedOperation fails every write-like operation in turn: the store may stop, but it answers everybody, says nothing
// is durable that is not, and finds everything at the next start, be it after kill -9 or after a power cut.
func TestFailedOperation(t *testing.T) {
	for _, row := range []struct {
		name string
		err  error
	}{
		{"EIO", syscall.EIO},
		{"EIO reported late", &vfstest.After{Err: syscall.EIO}},
		{"short write", &vfstest.Short{N: 700, Err: syscall.EIO}},
	} {
		t.Run(row.name, func(t *testing.T) {
			inParallel(t, 7, func(t *testing.T, k int) bool {
				w, d := newWorld(), vfstest.NewDisk(vfstest.Never)
				defer d.Close()
				stop := d.Inject(vfstest.At(k, row.err))
				for _, rounds := range []int{6, 2} {
					if err := w.life(t, d, rounds); err != nil && !errors.Is(err, syscall.EIO) {
						t.Fatalf("operation %d: %v", k, err)
					}
				}
				stop()
				hit := d.Ops() > k
				seed := uint64(k)
				if err := w.clone().revive(t, d.AfterCut(seed), seed, 0); err != nil {
					t.Fatalf("operation %d, power cut: %v", k, err)
				}
				// The same disk, as the next process finds it: pages that an fsync dropped still read back.
				if err := w.revive(t, d, seed, 1); err != nil {
					t.Fatalf("operation %d, kill: %v", k, err)
				}
				if err := w.revive(t, d.AfterCut(vfstest.LoseAll), seed, 0); err != nil {
					t.Fatalf("operation %d, kill, then power cut: %v", k, err)
				}
				return hit
			})
		})
	}
}

// TestFullDisk lets the disk fill up at many different moments: durable appends are refused, nothing is lost, and room
// brings service back without a restart.
func TestFullDisk(t *testing.T) {
	inParallel(t, 5, func(t *testing.T, n int) bool {
		w, d := newWorld(), vfstest.NewDisk(vfstest.Never)
		defer d.Close()
		w.lossy = true
		d.SetCapacity(int64(n+20) * 4096 * 2)
		x, err := w.start(w.options(d))
		if err != nil {
			if !errors.Is(err, store.ErrFull) && !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("capacity %d: open: %v", n, err)
			}
			d.SetCapacity(0)
			if err := w.revive(t, d, uint64(n), 1); err != nil {
				t.Fatalf("capacity %d: after a start without room: %v", n, err)
			}
			return true
		}
		x.work(t, 14)
		time.Sleep(10 * time.Second)
		st := x.s.Stats()
		if st.Failed != nil {
			t.Errorf("capacity %d: a full disk stopped the store: %v", n, st.Failed)
		}
		if err := w.check(x.s, uint64(n)); err != nil {
			t.Errorf("capacity %d: while full: %v", n, err)
		}
		if err := w.clone().revive(t, d.AfterCut(uint64(n)), uint64(n), 0); err != nil {
			t.Errorf("capacity %d: power cut while full: %v", n, err)
		}
		d.SetCapacity(0)
		time.Sleep(10 * time.Second)
		if err := x.append("persistent", true); err != nil {
			t.Errorf("capacity %d: append after there was room: %v", n, err)
		}
		x.waiting.Wait()
		if err := w.check(x.s, uint64(n)); err != nil {
			t.Errorf("capacity %d: with room again: %v", n, err)
		}
		if err := x.end(t); err != nil {
			t.Errorf("capacity %d: stop: %v", n, err)
		}
		if err := w.revive(t, d, uint64(n), 1); err != nil {
			t.Errorf("capacity %d: restart: %v", n, err)
		}
		return st.Fulls > 0 || n < 10
	})
}
