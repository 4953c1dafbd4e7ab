package store

import (
	"slices"
	"testing"
	"time"
)

// A clock that was wrong, far ahead, costs nothing but that what came meanwhile counts as come when the clock was set right.
func TestClockFarAhead(t *testing.T) {
	o := small(t.TempDir())
	var c clock
	o.Now = c.now
	r := start(t, o)
	begin := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	put := func(at time.Time, n int) {
		t.Helper()
		for i := range n {
			c.micros.Store(at.Add(time.Duration(i) * time.Minute).UnixMicro())
			r.put(numbered(r.topic("t"), r.client("c"), i, 100))
		}
	}
	ahead := time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)
	put(begin, 10)                    // 1 to 10
	put(ahead, 5)                     // 11 to 15
	put(begin.Add(time.Hour), 10)     // 16 to 25
	put(ahead.AddDate(50, 0, 0), 5)   // 26 to 30, without the doubts of a second time
	put(begin.Add(30*time.Minute), 5) // 31 to 35: it was ahead a little all the time
	put(begin.Add(24*time.Hour), 5)   // 36 to 40
	check := func(when string) {
		t.Helper()
		for _, row := range []struct {
			at   time.Time
			want uint64
		}{
			{begin, 1},
			{begin.Add(5 * time.Minute), 6},
			{begin.Add(10 * time.Minute), 11},
			{begin.Add(30 * time.Minute), 11},
			{begin.Add(32 * time.Minute), 33},
			{begin.Add(2 * time.Hour), 36},
			{begin.Add(24 * time.Hour), 36},
			{begin.Add(25 * time.Hour), 41},
			{ahead, 41},
		} {
			if got := r.SearchTime(row.at.UnixMicro()); got != row.want {
				t.Errorf("%s: %v is offset %d, want %d", when, row.at, got, row.want)
			}
		}
		var last int64
		for _, rec := range r.read(1) {
			if at, ok := r.TimeOf(rec.Offset); !ok || at != rec.Time {
				t.Errorf("%s: offset %d is of %d, and of %d, %v", when, rec.Offset, rec.Time, at, ok)
			}
			if rec.Time < last || rec.Time > begin.Add(25*time.Hour).UnixMicro() {
				t.Errorf("%s: offset %d is of %v", when, rec.Offset, time.UnixMicro(rec.Time).UTC())
			}
			last = rec.Time
		}
	}
	check("in memory")
	r.flushAll()
	check("in part on disk")
	r.kill()
	r = start(t, o)
	check("after a kill")
	r.checkpointAll()
	r.end()
	r = start(t, o)
	check("after a stop")
	if report, err := Verify(o); err == nil && len(report.Damage) > 0 {
		t.Errorf("verify: %v", report.Damage)
	}
}

// While the clock is far ahead nothing is deleted for its age, and afterwards what came meanwhile is, in its time.
func TestRetentionWhileTheClockIsAhead(t *testing.T) {
	r, c := aged(t, func(o *Options) {
		o.RetainAge = 24 * time.Hour
		o.Topic = policies(map[string]*TopicPolicy{"limited": {MaxAge: time.Hour}})
	})
	begin := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	c.micros.Store(begin.UnixMicro())
	r.put(numbered(r.topic("limited"), r.client("other"), 0, 100))
	fillAged(r, c, "a", "one", 14)
	c.micros.Store(begin.AddDate(70, 0, 0).UnixMicro())
	passes := func() { // of retention
		t.Helper()
		for range 2 { // the second begins when the first is over
			c.advance(time.Second)
			r.await("a pass of retention", func() bool { return r.timeline.seen.Load() == c.micros.Load() })
		}
	}
	passes()
	fillAged(r, c, "a", "one", 14)
	passes()
	if r.First() != 1 || len(r.read(1)) != 29 {
		t.Fatalf("first %d, %d messages, while the clock is ahead", r.First(), len(r.read(1)))
	}
	c.micros.Store(begin.Add(time.Hour).UnixMicro())
	fillAged(r, c, "a", "one", 1)
	c.advance(25 * time.Hour)
	fillAged(r, c, "a", "one", 1)
	r.await("what was stored with a wrong time to be deleted", func() bool { return r.First() > 28 })
}

// A clock that has not been set, or is behind by less than is thought wrong, makes no steps.
func TestClockBehind(t *testing.T) {
	o := small(t.TempDir())
	var c clock
	o.Now = c.now
	r := start(t, o)
	now := time.Date(2040, 6, 1, 0, 0, 0, 0, time.UTC)
	var times []time.Time
	for _, at := range []time.Time{now, time.UnixMicro(5), now.AddDate(-4, 0, 0), now.AddDate(0, 0, 1)} {
		c.micros.Store(at.UnixMicro())
		r.put(numbered(r.topic("t"), r.client("c"), 0, 100))
	}
	for _, rec := range r.read(1) {
		times = append(times, time.UnixMicro(rec.Time).UTC())
	}
	if want := []time.Time{now, now, now, now.AddDate(0, 0, 1)}; !slices.Equal(times, want) || r.timeline.steps.Load() != nil {
		t.Errorf("%v, want %v", times, want)
	}
}
