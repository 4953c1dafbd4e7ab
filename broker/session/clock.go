package session

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// What was saved while the clock was far ahead, and the clock has been set right since, would wait until it is there: sessions and retained messages would not expire, nor
// Wills and delayed messages be published, for decades. It counts as having happened now (store.WasAhead).

// setBack tells whether the clock, which a loop looks at, says less than it did, and whether by so much that it was wrong. At the first time it may have
// been so before.
type setBack struct{ last time.Time }

func (c *setBack) at(now time.Time) (back, wrong bool) {
	now = now.Round(0) // without the reading of the process's own clock, which does not go back
	last := c.last
	c.last = now
	return now.Before(last) || last.IsZero(), store.WasAhead(last, now) || last.IsZero()
}

// setRight has a session that rests do so from now on, if what it has rested since is far ahead; mu is held.
func (s *Session) setRight(now time.Time) {
	if s.link != nil {
		return
	}
	if w := s.will; w != nil {
		if delay := time.Duration(w.delay) * time.Second; store.WasAhead(w.due.Add(-delay), now) {
			w.due = now.Add(min(delay, time.Duration(s.expiry)*time.Second))
			s.saveWill(nil)
		}
	}
	if !store.WasAhead(s.offline, now) {
		return
	}
	s.m.logger.Warn("session rests since a time far ahead, its expiry counts from now on", "client", s.id, "since", s.offline)
	if s.offline = now; s.durable {
		if err := s.m.hub.SaveSoon([]store.Mutation{s.mutation()}); err != nil {
			s.m.logger.Error("saving a session failed", "client", s.id, "err", err)
		}
	}
}

// setRight has messages that came when the clock was far ahead wait from now on.
func (d *delayed) setRight() error {
	now := d.m.log.Now()
	var muts []store.Mutation
	var first int64
	size := 0
	save := func() error {
		if len(muts) == 0 {
			return nil
		}
		err := d.m.log.Append(nil, muts, true, nil)
		if muts, size = nil, 0; err == nil {
			d.note(first)
		}
		return err
	}
	var failed error
	err := d.m.log.Range(record.BucketDelayed, nil, func(k, v []byte) bool {
		if len(k) != 16 {
			return true
		}
		due := time.UnixMicro(int64(binary.BigEndian.Uint64(k)))
		if !store.WasAhead(due, now) {
			return true
		}
		_, _, rec, err := parseDelayed(v)
		if err != nil || !store.WasAhead(time.UnixMicro(rec.Time), now) {
			return true // set aside when it is due; or meant to wait for years
		}
		at := now.Add(due.Sub(time.UnixMicro(rec.Time))).UnixMicro()
		if first == 0 || at < first {
			first = at
		}
		key := append(binary.BigEndian.AppendUint64(nil, uint64(at)), k[8:]...)
		muts = append(muts, record.Delete(record.BucketDelayed, slices.Clone(k)), record.Put(record.BucketDelayed, key, slices.Clone(v)))
		if size += len(v); len(muts) >= 2*delayBatch || size >= appendBytes {
			failed = save()
		}
		return failed == nil
	})
	if err == nil {
		err = failed
	}
	if err == nil {
		err = save()
	}
	return err
}

// setRight has retained messages that came when the clock was far ahead, and expire, do so as if they had come now.
func (r *retainer) setRight(m *Manager, now time.Time) error {
	var muts []store.Mutation
	look := func() error {
		muts = nil
		return m.log.Range(record.BucketRetained, nil, func(k, v []byte) bool {
			if rec, err := parseRetained(v); err == nil && rec.Flags.Has(record.FlagExpiry) && store.WasAhead(time.UnixMicro(rec.Time), now) {
				muts = append(muts, record.Put(record.BucketRetained, slices.Clone(k), setRetainedTime(slices.Clone(v), now.UnixMicro())))
			}
			return true
		})
	}
	if err := look(); err != nil || len(muts) == 0 {
		return err
	}
	r.mu.Lock() // nothing is retained meanwhile; and what was before is in the state after this
	defer r.mu.Unlock()
	if err := m.delayed.barrier(); err != nil {
		return err
	}
	if err := look(); err != nil {
		return err
	}
	for _, mut := range muts {
		if err := m.log.Append(nil, []store.Mutation{mut}, false, nil); err != nil {
			return err
		}
		rec, _ := parseRetained(mut.Value) // it was read above
		r.set(string(mut.Key), rec.Time+int64(rec.Expiry)*1e6)
	}
	return nil
}
