package feed

import (
	"slices"
	"time"

	"github.com/edgemq/edgemq/store"
)

const (
	readRecords = 1024    // of one catch-up step
	readBytes   = 1 << 20 // likewise
	readScan    = 1 << 18 // entries examined in one step, so that a long walk notices that it is over
	closeGap    = 8192    // offsets that may be read with the dispatcher held, to close the seam
)

// resume starts the catch-up goroutine if there is something to catch up with, and room; f.mu is held.
func (f *Feed) resume() {
	if f.live || f.reading || f.closed || f.overrun || len(f.members) == 0 || f.full() || f.waiting > lowWater {
		return
	}
	select {
	case <-f.hub.ctx.Done():
		return
	default:
	}
	f.reading = true
	f.hub.wg.Add(1)
	go f.catchUp()
}

// walker reads the log for one feed, remembering by topic what the feed wants.
type walker struct {
	f       *Feed
	r       *store.Reader
	recs    []store.Record
	gen     uint64
	targets []*target // by topic number; see known
	known   []bool
}

// catchUp reads the log from the feed's position until the window is full, the feed rests, or it has
// caught up with the dispatcher and is live.
func (f *Feed) catchUp() {
	defer f.hub.wg.Done()
	w := &walker{f: f, r: f.hub.log.NewReader()}
	for w.step() {
	}
}

// step reads once and reports whether to go on.
func (w *walker) step() bool {
	f, h := w.f, w.f.hub
	f.mu.Lock()
	if f.live || f.closed || f.overrun || len(f.members) == 0 || f.full() || h.ctx.Err() != nil {
		f.reading = false
		f.mu.Unlock()
		return false
	}
	near := h.pos.Load() <= f.pos+closeGap
	f.mu.Unlock()
	if near {
		// The dispatcher waits for us while we read the last few records, which are in memory, so
		// nothing can fall between what we have read and what it pushes.
		h.mu.Lock()
		defer h.mu.Unlock()
		if !w.read() {
			return false
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.pos >= h.pos.Load() && len(f.members) > 0 && !f.closed {
			f.live, f.reading = true, false
			return false
		}
		return true
	}
	return w.read()
}

// read moves one stretch of the log into the window and reports whether to go on.
func (w *walker) read() bool {
	f := w.f
	f.mu.Lock()
	pos, epoch := f.pos, f.epoch
	lim := store.Limits{MaxRecords: min(readRecords, max(1, maxUnsettled-f.held)), MaxBytes: max(1, min(readBytes, maxBytes-f.bytes)), MaxScan: readScan}
	if w.gen != f.gen || w.targets == nil {
		w.gen, w.targets, w.known = f.gen, w.targets[:0], w.known[:0]
	}
	extra := slices.Clone(f.extra)
	f.mu.Unlock()

	recs, next, err := w.r.Read(w.recs[:0], pos, lim, func(off uint64, topicID uint32) bool {
		t := w.target(topicID)
		if t == nil {
			return false
		}
		if off >= t.from {
			return true
		}
		if _, ok := slices.BinarySearch(extra, off); ok {
			return true
		}
		return t.at(off, false) != nil
	})
	if err != nil {
		f.hub.logger.Error("reading the log failed", "feed", f.id, "offset", pos, "err", err)
		f.mu.Lock()
		f.reading = false
		f.mu.Unlock()
		return false
	}

	f.mu.Lock()
	if f.epoch != epoch || f.gen != w.gen {
		// The feed went back, rested or got a filter meanwhile: what was read is void, and what
		// the new filter would have chosen was passed by.
		f.mu.Unlock()
		return true
	}
	for _, r := range recs {
		m := w.target(r.Topic).at(r.Offset, r.Client == f.opt.Local && r.Client != 0)
		if m == nil && f.isExtra(r.Offset) && !f.inFlight(r.Offset) {
			m = w.target(r.Topic).merge(func(*Filter) bool { return true })
		}
		if m != nil {
			f.add(r, m)
		}
	}
	f.pos = next
	if len(recs) > 0 && f.lagging(recs[0].Time) {
		defer f.fallBehind()
	}
	members := f.members
	f.mu.Unlock()
	clear(recs)
	w.recs = recs
	if len(recs) > 0 {
		for _, m := range members {
			m.w.Wake()
		}
	}
	return true
}

// lagging tells whether the feed is further behind than it may be, going by the time of the last record it read; f.mu is held.
func (f *Feed) lagging(micros int64) bool {
	lag := f.opt.MaxLag
	if lag.Time > 0 && time.Since(time.UnixMicro(micros)) > lag.Time {
		return true
	}
	mean := f.hub.mean.Load()
	return lag.Bytes > 0 && mean > 0 && int64(f.hub.pos.Load()-min(f.pos, f.hub.pos.Load()))*mean > lag.Bytes
}

// fallBehind gives up on a feed that is too far behind and has no right to wait.
func (f *Feed) fallBehind() {
	f.mu.Lock()
	reliable := false
	for _, flt := range f.filters {
		reliable = reliable || flt.QoS > 0
	}
	if !reliable {
		to := f.hub.pos.Load()
		skipped := to - min(f.pos, to)
		f.stats.Skipped += skipped
		f.pos = max(f.pos, to)
		f.epoch++
		f.mu.Unlock()
		f.hub.logger.Warn("slow subscriber was moved forward to now", "feed", f.id, "offset", to, "records", skipped)
		return
	}
	first := !f.overrun
	f.overrun = true
	f.mu.Unlock()
	if first {
		f.hub.logger.Warn("slow subscriber is too far behind", "feed", f.id)
		if f.opt.Overrun != nil {
			f.hub.wg.Go(f.opt.Overrun) // it takes locks that come before ours
		}
	}
}

// target returns what the feed wants of a topic, as of w.gen or later.
func (w *walker) target(id uint32) *target {
	if int(id) >= len(w.known) {
		n := int(id) + 1 + 64
		w.known = append(w.known, make([]bool, n-len(w.known))...)
		w.targets = append(w.targets, make([]*target, n-len(w.targets))...)
	}
	if !w.known[id] {
		w.f.mu.Lock()
		w.targets[id] = w.f.target(id)
		w.f.mu.Unlock()
		w.known[id] = true
	}
	return w.targets[id]
}

// isExtra tells whether off was chosen before the feed went back; f.mu is held.
func (f *Feed) isExtra(off uint64) bool {
	_, ok := slices.BinarySearch(f.extra, off)
	return ok
}

// inFlight tells whether off is with a member; f.mu is held.
func (f *Feed) inFlight(off uint64) bool {
	for seq := f.win.head; seq < f.win.tail; seq++ {
		if s := f.win.at(seq); s.Offset == off && s.state == sent {
			return true
		}
	}
	return false
}
