package store_test

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// TestFullDisk lets the disk fill up at many different moments: durable appends are refused, nothing is lost, and room
// brings service back without a restart.
func TestFullDisk(t *testing.T) {
	inParallel(t, 1, func(t *testing.T, n int) bool {
		w, d := newWorld(), newDisk(vfstest.Never)
		defer d.Close()
		w.lossy = true
		seed := uint64(n)
		d.SetCapacity(int64(n+2) * 8192)
		x, err := w.start(w.options(d))
		if err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("capacity %d: open: %v", n, err)
				return false
			}
			d.SetCapacity(0)
			if err := w.revive(t, d, seed, 1); err != nil {
				t.Errorf("capacity %d: after a start without room: %v", n, err)
			}
			return true
		}
		x.work(t, 14)
		time.Sleep(10 * time.Second)
		st := x.s.Stats()
		if st.Failed != nil {
			t.Errorf("capacity %d: a full disk stopped the store: %v", n, st.Failed)
		}
		if err := w.check(x.s, seed); err != nil {
			t.Errorf("capacity %d: while full: %v", n, err)
		}
		if err := w.clone().revive(t, d.AfterCut(seed), seed, 0); err != nil {
			t.Errorf("capacity %d: power cut while full: %v", n, err)
		}
		d.SetCapacity(0)
		time.Sleep(10 * time.Second)
		if err := x.append("persistent", true); err != nil {
			t.Errorf("capacity %d: append after there was room: %v", n, err)
		}
		x.waiting.Wait()
		if err := w.check(x.s, seed); err != nil {
			t.Errorf("capacity %d: with room again: %v", n, err)
		}
		if err := x.end(t); err != nil {
			t.Errorf("capacity %d: stop: %v", n, err)
		}
		if err := w.revive(t, d, seed, 1); err != nil {
			t.Errorf("capacity %d: restart: %v", n, err)
		}
		return st.Fulls > 0
	})
}

// TestStopWhileFull: a full disk must not keep a store from stopping, nor cost anything that was answered.
func TestStopWhileFull(t *testing.T) {
	inParallel(t, 3, func(t *testing.T, n int) bool {
		w, d := newWorld(), newDisk(vfstest.Never)
		defer d.Close()
		w.lossy = true
		d.SetCapacity(int64(n+40) * 8192)
		if err := w.life(t, d, 14); err != nil {
			t.Errorf("capacity %d: %v", n, err)
			return false
		}
		err := w.life(t, d, 2) // with what room there is
		if err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("capacity %d: restart while full: %v", n, err)
		}
		d.SetCapacity(0)
		if err := w.revive(t, d, uint64(n), 1); err != nil {
			t.Errorf("capacity %d: restart with room: %v", n, err)
		}
		return n < 40
	})
}

// TestFullFor lets one kind of operation find the disk full for a while.
func TestFullFor(t *testing.T) {
	for _, row := range []struct {
		name string
		kind vfstest.Kind
		part string
	}{
		{"the state", vfstest.Commit, ""},
		{"the journal's next file", vfstest.Preallocate, ""},
		{"segments", vfstest.Write, ".seg"},
		{"the ledger", vfstest.Write, ".ldg"},
		{"new segments", vfstest.Create, ".seg"},
		{"new directories", vfstest.Mkdir, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, d := newWorld(), newDisk(vfstest.Never)
				defer d.Close()
				w.lossy = true
				x, err := w.start(w.options(d))
				if err != nil {
					t.Fatal(err)
				}
				x.work(t, 2)
				stop := d.Inject(vfstest.On(row.kind, row.part, syscall.ENOSPC))
				x.work(t, 10)
				if st := x.s.Stats(); st.Fulls == 0 || st.Failed != nil {
					t.Errorf("full %d times, failed: %v", st.Fulls, st.Failed)
				}
				if err := w.check(x.s, 1); err != nil {
					t.Error("while full:", err)
				}
				for seed := range uint64(6) {
					if err := w.clone().revive(t, d.AfterCut(seed), seed, int(seed%2)); err != nil {
						t.Errorf("power cut while full, seed %d: %v", seed, err)
					}
				}
				synctest.Wait()
				full := x.s.Stats().Full
				if len(build("persistent", len(w.clients["persistent"].appends)+1)) == 0 {
					full = false // an append of keys alone passes, so that consumers go on
				}
				if err := x.append("persistent", true); err == nil && full {
					t.Error("a durable append is taken while full")
				} else if err != nil && !errors.Is(err, store.ErrFull) {
					t.Error(err)
				}
				stop()
				time.Sleep(10 * time.Second)
				if err := x.append("persistent", true); err != nil {
					t.Error("with room again:", err)
				}
				x.work(t, 2)
				if err := errors.Join(w.check(x.s, 2), x.end(t)); err != nil {
					t.Error(err)
				}
				if err := w.revive(t, d.AfterCut(vfstest.LoseAll), 3, 1); err != nil {
					t.Error("restart:", err)
				}
			})
		})
	}
}
