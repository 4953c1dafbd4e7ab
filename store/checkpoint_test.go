package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// A checkpoint syncs the segments of many clients at once. Wherever the power goes, what was acknowledged is there afterwards.
func TestPowerCutManyClients(t *testing.T) {
	const clients = 10 * fewFiles
	step := 61
	if testing.Short() {
		step = 181
	}
	for k := 0; ; k += step {
		disk := vfstest.NewDisk(k)
		acked := manyClients(t, disk, clients)
		cut := disk.Cut()
		for _, seed := range []uint64{vfstest.LoseAll, uint64(k) + 2} {
			o := small("data")
			o.FS = disk.AfterCut(seed)
			if cut && acked == 0 {
				continue // there may be no store yet
			}
			s, err := Open(o)
			if err != nil {
				t.Fatalf("cut %d: %v", k, err)
			}
			if got := int(s.Next() - 1); got < acked {
				t.Errorf("cut %d: %d messages acknowledged, %d there", k, acked, got)
			}
			recs, next, err := s.NewReader().Read(nil, 1, Limits{MaxRecords: 1 << 20, MaxScan: 1 << 20}, all)
			if err != nil || next != s.Next() || uint64(len(recs)) != next-1 {
				t.Errorf("cut %d: read %d up to %d of %d: %v", k, len(recs), next, s.Next(), err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		disk.Close()
		if !cut {
			return
		}
	}
}

// manyClients has clients publish two messages each, with a checkpoint after either, and returns how many were acknowledged.
func manyClients(t *testing.T, disk *vfstest.Disk, clients int) (acked int) {
	o := small("data")
	o.FS = disk
	s, err := Open(o)
	if err != nil {
		return 0
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	defer func() {
		cancel()
		_ = errors.Join(<-ran, s.Close()) // the power may be gone
	}()
	topic, err := s.TopicID("t")
	if err != nil {
		return 0
	}
	for range 2 {
		for i := range clients {
			client, err := s.ClientID(fmt.Sprint("c", i), true)
			if err != nil {
				return acked
			}
			done := make(based, 1)
			if s.Append([]Message{{Topic: topic, Client: client, Payload: []byte("x")}}, nil, i == clients-1, done) != nil {
				return acked
			}
			if i == clients-1 {
				if a := <-done; a.err != nil {
					return acked
				}
				acked += clients
			}
		}
		for s.Stats().Checkpointed != s.Committed() {
			poke(s.checkpointNow)
			poke(s.flusher.wake)
			select {
			case <-s.failed:
				return acked
			case <-time.After(100 * time.Microsecond):
			}
		}
	}
	return acked
}

func TestAtOnce(t *testing.T) {
	f := &flusher{s: &Store{opt: Options{MaxFiles: 1024}}}
	for _, n := range []int{0, 1, fewFiles, 1000} {
		var calls atomic.Int64
		seen := make([]atomic.Bool, n)
		err := f.atOnce(n, func(i int) error {
			calls.Add(1)
			if seen[i].Swap(true) {
				return fmt.Errorf("%d again", i)
			}
			return nil
		})
		if err != nil || calls.Load() != int64(n) {
			t.Errorf("%d: %d calls, %v", n, calls.Load(), err)
		}
	}
	var calls atomic.Int64
	broken := errors.New("broken")
	err := f.atOnce(100_000, func(i int) error {
		calls.Add(1)
		if i == 500 {
			return broken
		}
		return nil
	})
	if !errors.Is(err, broken) || calls.Load() == 100_000 {
		t.Errorf("%d calls, %v", calls.Load(), err)
	}
}
