package store

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/store/record"
)

const (
	// farAhead is how far the clock may jump, or be behind the newest record, before it is thought that a clock was wrong. It is long, since a
	// device without a clock of its own begins at the time at which its system was built, and is told the right one later: a clock that is
	// only behind is not believed.
	farAhead = 5 * 365 * 24 * time.Hour
	// clockFloor is when edgemq began (µs since 1970). A clock that shows less has not been set, and when it is, that is no jump.
	clockFloor = 1767225600 * 1e6 // 2026-01-01
	// clockDoubt is how long nothing is deleted for its age after the clock has jumped far ahead: should it be wrong, everything would go at once.
	clockDoubt = 24 * time.Hour
	// stepBytes is the most that a step takes in a group.
	stepBytes   = 64
	stepVersion = 1
)

// WasAhead tells whether a time that was noted as the present is so far ahead of it that the clock must have been wrong then, and has been set right since.
//
// Only what is years ahead counts, and so for records (timeline). Of a smaller step nothing tells which of the clock's two times was the wrong one: what else is
// there to ask, times of files and of the last checkpoint, comes from the same clock, and the process's own clock, which does not step, knows only
// that the other did. To guess has a price on one side alone. Who takes a wrong time in the past for right makes everything seem older than it is when the clock is
// set right again, and deletes it; who does not believe a right one has things end late, by the step.
func WasAhead(noted, now time.Time) bool {
	return now.UnixMicro() >= clockFloor && noted.Sub(now) > farAhead
}

// timeline knows what the times of records are worth. They never run backwards with the offset, so that offsets can be searched by time, but for
// steps: at a step the records before had times far in the future, from a clock that was wrong, and go on with what the clock says now.
// What lies before a step arrived before it, so whatever its time says it counts as no later than the step, and times are in
// order again.
type timeline struct {
	steps atomic.Pointer[[]clockStep] // by offset; nil if there are none, which is almost always
	seen  atomic.Int64                // what the clock said when somebody last asked for what is too old
	doubt atomic.Int64                // ns since 1970 of our process's clock until which it is not believed; 0 for no doubt
}

// clockStep says that what lies below an offset arrived no later than a time (µs since 1970).
type clockStep struct {
	below uint64
	time  int64
}

// real returns when a record arrived, by its time and all steps.
func (c *timeline) real(offset uint64, micros int64) int64 {
	steps := c.steps.Load()
	if steps == nil {
		return micros
	}
	for i := len(*steps) - 1; i >= 0 && (*steps)[i].below > offset; i-- {
		micros = min(micros, (*steps)[i].time)
	}
	return micros
}

// Arrived returns when a record arrived, by the time that it was stored with: that is the same, unless the clock was wrong.
func (s *Store) Arrived(offset uint64, micros int64) int64 { return s.timeline.real(offset, micros) }

// Doubtful tells whether the clock, which has jumped far ahead, is not to be believed when it says that something is old.
func (s *Store) Doubtful() bool { return s.doubtful(s.opt.Now()) }

// realAll puts the real times into records.
func (c *timeline) realAll(recs []Record) {
	if c.steps.Load() == nil {
		return
	}
	for i := range recs {
		recs[i].Time = c.real(recs[i].Offset, recs[i].Time)
	}
}

// add notes a step. Calls do not overlap.
func (c *timeline) add(s clockStep) {
	var steps []clockStep
	if old := c.steps.Load(); old != nil {
		steps = slices.Clone(*old)
	}
	steps = append(steps, s)
	c.steps.Store(&steps)
}

var stepPrefix = []byte("clock-step")

// mutation saves a step, in record.BucketMeta. Key: "clock-step", the offset u64 big-endian. Value: version u8, time i64.
func (s clockStep) mutation() Mutation {
	key := binary.BigEndian.AppendUint64(slices.Clone(stepPrefix), s.below)
	return record.Put(record.BucketMeta, key, binary.LittleEndian.AppendUint64([]byte{stepVersion}, uint64(s.time)))
}

var errStep = errors.New("store: damaged step of the clock")

// load reads the steps, after replay, and forgets those before which nothing is left.
func (c *timeline) load(s *Store, first uint64) error {
	var stale []Mutation
	err := s.state.Range(record.BucketMeta, stepPrefix, func(k, v []byte) bool {
		switch {
		case len(k) != len(stepPrefix)+8 || len(v) != 9 || v[0] != stepVersion:
			s.log.Error("state damaged, times of records may be searched in vain", "file", s.opt.path("state.db"), "bucket", record.BucketMeta, "key", k, "err", errStep)
			s.count.damaged.Add(1)
		case binary.BigEndian.Uint64(k[len(stepPrefix):]) <= first:
			stale = append(stale, record.Delete(record.BucketMeta, slices.Clone(k)))
		default:
			c.add(clockStep{binary.BigEndian.Uint64(k[len(stepPrefix):]), int64(binary.LittleEndian.Uint64(v[1:]))})
		}
		return true
	})
	s.state.Apply(stale)
	return err
}

// stamp returns the time for what is appended next, at base, by what the clock says; the appender's lock is held. With a step, it is
// to be saved with it.
func (s *Store) stamp(now int64, base uint64) (step *clockStep) {
	a := &s.open
	far := farAhead.Microseconds()
	switch {
	case now >= a.time:
		if now-a.time > far && a.time >= clockFloor {
			s.distrust(a.time, now)
		}
		a.time = now
	case a.time-now > far && now >= clockFloor:
		s.log.Warn("records have times far in the future, going on with what the clock says now", "offset", base,
			"newest", time.UnixMicro(a.time).UTC(), "now", time.UnixMicro(now).UTC())
		s.timeline.doubt.Store(0)
		a.time = now
		step = &clockStep{base, now}
		s.timeline.add(*step)
	}
	return step
}

// distrust keeps what is there from being deleted for its age for a while.
func (s *Store) distrust(newest, now int64) {
	s.log.Warn("the clock is far ahead of the newest record, nothing is deleted for its age until it has been so for a while",
		"newest", time.UnixMicro(newest).UTC(), "now", time.UnixMicro(now).UTC(), "wait", clockDoubt)
	s.timeline.doubt.Store(time.Now().Add(clockDoubt).UnixNano())
}

// doubtful tells whether the clock is not to be believed when it says that something is old.
func (s *Store) doubtful(now time.Time) bool {
	s.open.mu.Lock()
	before := s.open.time
	s.open.mu.Unlock()
	before = max(before, s.timeline.seen.Swap(now.UnixMicro()))
	if before >= clockFloor && now.UnixMicro()-before > farAhead.Microseconds() {
		s.distrust(before, now.UnixMicro())
	}
	until := s.timeline.doubt.Load()
	return until != 0 && time.Now().UnixNano() < until
}
