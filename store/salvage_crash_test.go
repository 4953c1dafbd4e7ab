package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// TestSalvagePowerCut cuts the power at every write-like operation of two lives, and then state.db is lost as well: what was acknowledged is there, in its
// order and with its names, and the new directory has it too.
func TestSalvagePowerCut(t *testing.T) {
	inParallel(t, 7, func(t *testing.T, k int) bool {
		d := newDisk(k)
		defer d.Close()
		o := store.Options{
			Dir: "data", FS: d, JournalFileBytes: 64 << 10, CheckpointBytes: 48 << 10, CheckpointInterval: 3 * time.Second,
			SegmentBytes: 8 << 10, SharedBelow: 1, TailBytes: 1, MinFree: 1,
		}
		var acked []string
		for life := range 2 {
			if err := nameful(o, life, &acked); err != nil && !d.Cut() {
				t.Errorf("cut %d: %v", k, err)
				return false
			}
		}
		for _, seed := range []uint64{vfstest.LoseAll, uint64(k) + 2} {
			after := d.AfterCut(seed)
			o.FS = after
			if _, err := after.Stat("data/state.db"); err == nil || len(acked) > 0 {
				if err := errors.Join(after.Remove("data/state.db"), checkSalvage(o, acked)); err != nil {
					t.Errorf("cut %d, seed %d: %v", k, seed, err)
				}
			}
			after.Close()
		}
		return d.Cut() && !t.Failed()
	})
}

// nameful appends messages, most of which bring new names.
func nameful(o store.Options, life int, acked *[]string) error {
	s, err := store.Open(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	err = func() error {
		for i := range 12 {
			name := fmt.Sprint("topic/", life, "/", i-i%3)
			topic, err := s.TopicID(name)
			if err != nil {
				return err
			}
			from := fmt.Sprint("client", life, i%5)
			client, err := s.ClientID(from, i%5 == 0)
			if err != nil {
				return err
			}
			done := make(chan error, 1)
			m := store.Message{Topic: topic, Client: client, Flags: record.Flags(1), Payload: fmt.Appendf(nil, "%014000d", i)}
			if err := s.Append([]store.Message{m}, nil, true, answers(done)); err != nil {
				return err
			}
			if err := <-done; err != nil {
				return err
			}
			*acked = append(*acked, fmt.Sprintf("%s %s %s", name, from, m.Payload))
			if i%4 == 3 {
				time.Sleep(4 * time.Second) // for a checkpoint
			}
		}
		return nil
	}()
	cancel()
	return errors.Join(err, <-ran, s.Close())
}

func checkSalvage(o store.Options, acked []string) error {
	var got []string
	_, err := store.Salvage(o, store.SalvageOptions{Each: func(m *store.SalvagedMessage) error {
		got = append(got, fmt.Sprintf("%s %s %s", m.Topic, m.Client, m.Payload))
		return nil
	}})
	if err != nil {
		return err
	}
	at := 0
	for _, l := range got { // one that was not acknowledged may have come as well
		if at < len(acked) && l == acked[at] {
			at++
		}
	}
	if at < len(acked) || len(got) > len(acked)+2 {
		return fmt.Errorf("salvaged %d, of %d acknowledged %d; the next is %.60q", len(got), len(acked), at, append(acked, "")[at])
	}
	if _, err := store.Salvage(o, store.SalvageOptions{To: "new"}); err != nil {
		return err
	}
	o.Dir = "new"
	r, err := store.Verify(o)
	if err != nil {
		return fmt.Errorf("%w: %+v", err, r.Damage)
	}
	if int(r.Records) != len(got) {
		err = fmt.Errorf("%d in the new directory, %d were found", r.Records, len(got))
	}
	return err
}
