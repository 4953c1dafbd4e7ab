package store_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
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
		for i, client := range []string{"persistent", "meter", fmt.Sprint("oneshot", round)} {
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
	if r, err := store.Verify(w.options(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("verify: %w: %+v", err, r.Damage)
	}
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
		return w.killed().revive(t, d, seed+1, 0) // it was stopped cleanly, so all is there
	}
	return err
}

// inParallel runs fn for n = 0, step, 2*step, … on all processors until it returns false; under -short it takes larger steps.
func inParallel(t *testing.T, step int, fn func(t *testing.T, n int) bool) {
	const workers = 2
	if testing.Short() {
		step = step*7 - 1
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

// newDisk returns a disk whose drive may spoil whole sectors of the journal when the power goes: groups do not share any.
func newDisk(cut int) *vfstest.Disk {
	d := vfstest.NewDisk(cut)
	d.TearSectors(func(name string) bool { return strings.HasSuffix(name, ".jrn") })
	return d
}

// TestPowerCut cuts the power at every write-like operation of two lives of a store.
func TestPowerCut(t *testing.T) {
	inParallel(t, 1, func(t *testing.T, k int) bool { return powerCut(t, newWorld(), k) })
}

// TestPowerCutWithoutSync: with the weaker modes a power cut takes back what was answered, but never the middle of something,
// and nothing that a checkpoint or a clean stop covers. kill -9 takes back nothing.
func TestPowerCutWithoutSync(t *testing.T) {
	for _, mode := range []store.SyncMode{store.SyncInterval, store.SyncNone} {
		t.Run(mode.String(), func(t *testing.T) {
			inParallel(t, 3, func(t *testing.T, k int) bool {
				w := newWorld()
				w.sync = mode
				return powerCut(t, w, k)
			})
		})
	}
}

func powerCut(t *testing.T, w *world, k int) (cut bool) {
	d := newDisk(k)
	defer d.Close()
	for _, rounds := range []int{9, 4} {
		if err := w.life(t, d, rounds); err != nil && !d.Cut() {
			t.Errorf("cut %d: %v", k, err)
			return false
		}
	}
	if !d.Cut() && w.freed == 0 {
		t.Error("no numbers were given up")
	}
	for i, seed := range []uint64{vfstest.LoseAll, vfstest.KeepAll, uint64(k) + 2, uint64(k) + 1000} {
		after, rounds := w.clone(), 0
		if seed == vfstest.KeepAll {
			after = w.killed()
		}
		if i == 3 {
			rounds = 2
		}
		if err := after.revive(t, d.AfterCut(seed), seed, rounds); err != nil {
			t.Errorf("cut %d, seed %d: %v", k, seed, err)
			return false
		}
	}
	return d.Cut()
}

// TestPowerCutWhileRecovering cuts the power again at every operation of the recovery from a first cut. What the recovered
// store showed before the second cut must still be there after it.
func TestPowerCutWhileRecovering(t *testing.T) {
	for _, first := range []int{30, 75, 120} {
		t.Run(fmt.Sprint("after", first), func(t *testing.T) {
			inParallel(t, 1, func(t *testing.T, k int) bool {
				w, d := newWorld(), newDisk(first)
				defer d.Close()
				_ = w.life(t, d, 9)
				seed := uint64(first + k%3)
				crashed := d.AfterCut(seed)
				crashed.CutAfter(k)
				if err := w.life(t, crashed, 1); err != nil && !crashed.Cut() {
					t.Errorf("cut %d, then %d: %v", first, k, err)
					return false
				}
				for i := range uint64(2) {
					seed := (uint64(k)*2 + 1) * i
					if err := w.clone().revive(t, crashed.AfterCut(seed), seed, int(i)); err != nil {
						t.Errorf("cut %d, then %d, seed %d: %v", first, k, seed, err)
						return false
					}
				}
				return crashed.Cut()
			})
		})
	}
}

// TestKillThenPowerCut kills the process at every write-like operation, and cuts the power some time after the next one
// has started: what it found was in the page cache and not on the disk, and it has shown it to clients.
func TestKillThenPowerCut(t *testing.T) {
	for _, mode := range []store.SyncMode{store.SyncAlways, store.SyncNone} {
		t.Run(mode.String(), func(t *testing.T) {
			inParallel(t, 1, func(t *testing.T, k int) bool {
				w, d := newWorld(), newDisk(k)
				defer d.Close()
				w.sync = mode
				_ = w.life(t, d, 6)
				if err := w.killed().revive(t, d.AfterKill(), 1, 0); err != nil {
					t.Errorf("kill at %d: %v", k, err)
					return false
				}
				next := d.AfterKill()
				next.CutAfter(k * 7 % 31)
				if err := w.life(t, next, 1); err != nil && !next.Cut() {
					t.Errorf("kill at %d: %v", k, err)
					return false
				}
				for _, seed := range []uint64{vfstest.LoseAll, uint64(k) + 2} {
					if err := w.clone().revive(t, next.AfterCut(seed), seed, 0); err != nil {
						t.Errorf("kill at %d, seed %d: %v", k, seed, err)
						return false
					}
				}
				return d.Cut()
			})
		})
	}
}

// TestFailedOperation fails every write-like operation in turn: the store may stop, but it answers everybody, says nothing
// is durable that is not, and finds everything at the next start, be it after kill -9 or after a power cut.
func TestFailedOperation(t *testing.T) {
	for _, row := range []struct {
		name       string
		step       int
		err, cause error
	}{
		{"EIO", 1, syscall.EIO, syscall.EIO},
		{"EIO reported late", 3, &vfstest.After{Err: syscall.EIO}, syscall.EIO},
		{"short write", 3, &vfstest.Short{N: 700, Err: syscall.EIO}, syscall.EIO},
		{"ENOSPC", 2, syscall.ENOSPC, syscall.ENOSPC},
	} {
		t.Run(row.name, func(t *testing.T) {
			inParallel(t, row.step, func(t *testing.T, k int) bool {
				w, d := newWorld(), newDisk(vfstest.Never)
				defer d.Close()
				w.lossy = row.cause == syscall.ENOSPC
				stop := d.Inject(vfstest.At(k, row.err))
				for _, rounds := range []int{6, 2} {
					if err := w.life(t, d, rounds); err != nil && !errors.Is(err, row.cause) {
						t.Errorf("operation %d: %v", k, err)
						return false
					}
				}
				stop()
				hit := d.Ops() > k
				seed := uint64(k)
				for _, step := range []struct {
					name string
					run  func() error
				}{
					{"power cut", func() error { return w.clone().revive(t, d.AfterCut(seed), seed, 0) }},
					// The same disk, as the next process finds it: pages that an fsync dropped still read back.
					{"kill", func() error { return w.revive(t, d, seed, 1) }},
					{"kill, then power cut", func() error { return w.revive(t, d.AfterCut(vfstest.LoseAll), seed, 0) }},
				} {
					if err := step.run(); err != nil {
						t.Errorf("operation %d, %s: %v", k, step.name, err)
						return false
					}
				}
				return hit
			})
		})
	}
}
