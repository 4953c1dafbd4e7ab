package store_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// TestTopicLimitsPowerCut cuts the power at every write-like operation while topics with limits are published to: what a limit leaves
// is there afterwards if it was acknowledged, in its order, and never more than the limit.
func TestTopicLimitsPowerCut(t *testing.T) {
	for _, mode := range []store.SyncMode{store.SyncAlways, store.SyncNone} {
		t.Run(mode.String(), func(t *testing.T) {
			inParallel(t, 3, func(t *testing.T, k int) bool {
				d := newDisk(k)
				defer d.Close()
				acked := map[string][]int{}
				if err := limited(d, mode, func(s *store.Store) error { return publishLimited(s, acked) }); err != nil && !d.Cut() {
					t.Errorf("cut %d: %v", k, err)
					return false
				}
				for _, seed := range []uint64{vfstest.LoseAll, vfstest.KeepAll, uint64(k) + 2} {
					after := d.AfterCut(seed)
					if mode == store.SyncNone && seed != vfstest.KeepAll {
						acked = map[string][]int{} // a power cut takes what it likes
					}
					err := limited(after, mode, func(s *store.Store) error { return checkLimited(s, acked) })
					after.Close()
					if err != nil {
						t.Errorf("cut %d, seed %d: %v", k, seed, err)
						return false
					}
				}
				return d.Cut()
			})
		})
	}
}

// limited runs work on a store whose topics have limits, and stops the store.
func limited(d *vfstest.Disk, mode store.SyncMode, work func(s *store.Store) error) error {
	policies := map[string]*store.TopicPolicy{
		"drop": {MaxMessages: 3}, "reject": {MaxMessages: 3, Reject: true}, "last": {Last: true},
	}
	s, err := store.Open(store.Options{
		Dir: "data", FS: d, Sync: mode, JournalFileBytes: 64 << 10, CheckpointBytes: 48 << 10, CheckpointInterval: 3 * time.Second,
		SegmentBytes: 8 << 10, SharedBelow: 1, TailBytes: 1, MinFree: 1, Topic: func(topic string) *store.TopicPolicy { return policies[topic] },
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	err = work(s)
	cancel()
	return errors.Join(err, <-ran, s.Close())
}

var limitedTopics = []string{"drop", "reject", "last", "other"}

func publishLimited(s *store.Store, acked map[string][]int) error {
	for i := range 14 {
		for _, name := range limitedTopics {
			topic, err := s.TopicID(name)
			if err != nil {
				return err
			}
			client, err := s.ClientID("c", false)
			if err != nil {
				return err
			}
			m := store.Message{Topic: topic, Client: client, Flags: record.Flags(1), Payload: make([]byte, 700)}
			binary.LittleEndian.PutUint64(m.Payload, uint64(i))
			if l := s.Limit(topic); l != nil {
				if l.Admit(len(m.Payload)) != nil {
					continue
				}
				m.Flags |= store.FlagAdmitted
			}
			done := make(chan error, 1)
			if err := s.Append([]store.Message{m}, nil, true, answers(done)); err != nil {
				return err
			}
			if err := <-done; err != nil {
				return err
			}
			acked[name] = append(acked[name], i)
		}
		if i%4 == 3 {
			time.Sleep(4 * time.Second) // for a checkpoint and retention
		}
	}
	return nil
}

// answers is a completion that tells a channel.
type answers chan error

func (c answers) Committed(_ uint64, err error) { c <- err }

func checkLimited(s *store.Store, acked map[string][]int) error {
	time.Sleep(time.Second) // what the last run could not say it had dropped is dropped again
	recs, _, err := s.NewReader().Read(nil, 1, store.Limits{}, func(uint64, uint32) bool { return true })
	if err != nil {
		return err
	}
	left := map[string][]int{}
	for _, r := range recs {
		name := s.TopicName(r.Topic)
		left[name] = append(left[name], int(binary.LittleEndian.Uint64(r.Payload)))
	}
	for _, name := range limitedTopics {
		got, want := left[name], acked[name]
		if !slices.IsSorted(got) {
			return fmt.Errorf("%s is out of order: %v", name, got)
		}
		most := map[string]int{"drop": 3, "reject": 3, "last": 1, "other": 1 << 20}[name]
		if len(got) > most {
			return fmt.Errorf("%d of %s are left: %v", len(got), name, got)
		}
		if len(want) == 0 {
			continue
		}
		// One that was not acknowledged may have come as well.
		if max(0, len(want)-1) > 0 && len(got) < min(most, len(want)) || len(got) == 0 {
			return fmt.Errorf("of %v, acknowledged of %s, are left: %v", want, name, got)
		}
		last := want[len(want)-1]
		if end := got[len(got)-1]; name != "reject" && end != last && end != last+1 {
			return fmt.Errorf("the last acknowledged of %s is %d, and left are %v", name, last, got)
		}
		for i, n := range got {
			if i > 0 && n != got[i-1]+1 {
				return fmt.Errorf("of %s are left %v", name, got)
			}
		}
	}
	return nil
}
