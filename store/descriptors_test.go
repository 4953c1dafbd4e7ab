package store_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// TestNoDescriptors: opens fail for a while, since the process or the machine has no descriptor left. The store goes on afterwards by itself, and nothing that
// was answered is lost, even if the power goes meanwhile.
func TestNoDescriptors(t *testing.T) {
	any := func(kinds ...vfstest.Kind) func(op vfstest.Op) error {
		return func(op vfstest.Op) error {
			for _, k := range kinds {
				if op.Kind == k {
					return syscall.EMFILE
				}
			}
			return nil
		}
	}
	for _, row := range []struct {
		name string
		rule func(op vfstest.Op) error
	}{
		{"new segments", vfstest.On(vfstest.Create, ".seg", syscall.EMFILE)},
		{"segments", vfstest.On(vfstest.Open, ".seg", syscall.ENFILE)},
		{"the ledger", vfstest.On(vfstest.Create, ".ldg", syscall.EMFILE)},
		{"the ledger, to read", vfstest.On(vfstest.Open, ".ldg", syscall.EMFILE)},
		{"the journal's next file", vfstest.On(vfstest.Create, ".jrn", syscall.EMFILE)},
		{"directories", any(vfstest.SyncDir)},
		{"everything", any(vfstest.Create, vfstest.Open, vfstest.SyncDir, vfstest.ReadDir)},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, d := newWorld(), newDisk(vfstest.Never)
				defer d.Close()
				w.lossy = true
				x, err := w.start(w.options(d))
				if err != nil {
					t.Fatal(err)
				}
				x.work(t, 2)
				stop := d.Inject(row.rule)
				x.work(t, 10)
				time.Sleep(20 * time.Second)
				if st := x.s.Stats(); st.Failed != nil {
					t.Fatalf("the store has failed: %v", st.Failed)
				} else {
					t.Log(st.Starved, st.Fulls)
				}
				for seed := range uint64(4) {
					if err := w.clone().revive(t, d.AfterCut(seed), seed, int(seed%2)); err != nil {
						t.Errorf("power cut meanwhile, seed %d: %v", seed, err)
					}
				}
				stop()
				time.Sleep(10 * time.Second)
				if st := x.s.Stats(); st.Full || st.Failed != nil {
					t.Errorf("afterwards: full %v, failed %v", st.Full, st.Failed)
				}
				if err := x.append("persistent", true); err != nil {
					t.Error("afterwards:", err)
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

// A moment without descriptors refuses nothing, a long time does, and it is counted.
func TestDescriptorsPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(vfstest.Never)
		defer d.Close()
		s, stopStore := manySegments(t, d)
		defer stopStore()
		put := func(i int) error {
			topic, err := s.TopicID("t")
			if err != nil {
				return err
			}
			client, err := s.ClientID(fmt.Sprint("c", i), true)
			if err != nil {
				return err
			}
			done := make(chan error, 1)
			if err := s.Append([]store.Message{{Topic: topic, Client: client, Flags: 1, Payload: []byte("x")}}, nil, true, answers(done)); err != nil {
				return err
			}
			return <-done
		}
		if err := put(0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		end := d.Inject(vfstest.On(vfstest.Create, ".seg", syscall.EMFILE))
		for i := range 3 {
			if err := put(1 + i); err != nil {
				t.Errorf("after %d s: %v", i, err)
			}
			time.Sleep(time.Second)
		}
		if st := s.Stats(); st.Full || st.Starved == 0 {
			t.Errorf("full %v, starved %d", st.Full, st.Starved)
		}
		time.Sleep(5 * time.Second)
		if err := put(10); !errors.Is(err, store.ErrFull) || !s.Stats().Full {
			t.Errorf("after a long time: %v", err)
		}
		end()
		time.Sleep(2 * time.Second)
		if err := put(11); err != nil || s.Stats().Full {
			t.Error(err)
		}
	})
}

func manySegments(t *testing.T, d *vfstest.Disk) (*store.Store, func()) {
	t.Helper()
	s, err := store.Open(store.Options{Dir: "data", FS: d, JournalFileBytes: 256 << 10, CheckpointInterval: time.Hour, MinFree: 1, SharedBelow: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	return s, func() {
		cancel()
		if err := errors.Join(<-ran, s.Close()); err != nil {
			t.Error(err)
		}
	}
}
