package feed

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/sparse"
)

const (
	readRecords = 1024    // of one catch-up step
	readBytes   = 1 << 20 // likewise
	readScan    = 1 << 18 // entries examined in one step, so that a long walk notices that it is over
	nearby      = 8192    // offsets that may be read with the dispatcher held, to close the seam
	shut        = 128     // that are read so without trying to come nearer first
	walkTopics  = 1 << 14 // topics that a walk remembers

	firstPause = 100 * time.Millisecond // after a read that failed; doubled until
	longPause  = 10 * time.Second
)

// resume starts the catch-up goroutine if there is something to catch up with, and room; f.mu is held.
func (f *Feed) resume() {
	if f.full() || f.waiting > f.hub.max.records/2 {
		f.relieve()
		return
	}
	if f.reading || !f.behind() {
		return
	}
	f.reading = f.hub.walks.start(f.catchUp)
}

// behind tells whether the feed must read the log to go on; f.mu is held.
func (f *Feed) behind() bool { return !f.live && !f.closed && !f.overran && len(f.members) > 0 }

// abreast tells whether the dispatcher can take over; Hub.mu and f.mu are held.
func (f *Feed) abreast() bool {
	if f.pos < f.hub.pos.Load() {
		return false
	}
	// Walks read what is committed, so they may be ahead of the dispatcher. What was done with before a walk back is
	// the walk's to pass over.
	last := uint64(0)
	for _, p := range f.past {
		last = max(last, p.spans[len(p.spans)-1].to)
	}
	if n := len(f.extra); n > 0 {
		last = max(last, f.extra[n-1])
	}
	return last < f.pos || f.pos >= f.hub.log.Committed()
}

// errPanic is the error of a step that panicked, which was logged.
var errPanic = errors.New("panic")

// walker reads the log for one feed.
type walker struct {
	f       *Feed
	r       *store.Reader
	recs    []store.Record
	gen     uint64             // of targets
	targets map[uint32]*target // what the feed wants of a topic, as of gen or later
	topics  sparse.Table[int8] // of gen: whether the feed wants anything of a topic; 0: not known yet, -1: no
	gap     uint64             // offsets behind the dispatcher, when last looked at
	pause   time.Duration      // after the last read, which failed
}

// catchUp reads the log from the feed's position until the window is full, the feed rests, or it has
// caught up with the dispatcher and is live.
func (f *Feed) catchUp() {
	w := &walker{f: f, r: f.hub.log.NewReader(), gap: math.MaxUint64}
	for {
		began := time.Now()
		more, err := w.step(w.near())
		switch {
		case err != nil:
			w.rest(err)
		case !more:
			return
		default:
			w.yield(began)
		}
	}
}

// near tells whether it is time to close the seam. Before that the walk comes as near as it can, since the
// dispatcher, and with it every other feed, waits meanwhile.
func (w *walker) near() bool {
	w.f.mu.Lock()
	pos := w.f.pos
	w.f.mu.Unlock()
	last, now := w.gap, w.f.hub.pos.Load()
	w.gap = now - min(now, pos)
	return w.gap <= shut || w.gap <= nearby && w.gap > last/2
}

// step reads once and reports whether to go on. With near the dispatcher is held while the last few records are read,
// which are in memory, so that nothing falls between what was read and what it pushes.
func (w *walker) step(near bool) (more bool, err error) {
	f, h := w.f, w.f.hub
	defer func() {
		if p := recover(); p != nil { // it costs this feed a pause, or its messages until somebody has looked, but nobody else
			h.fault("panic in a walk through the log, trying again", p, "feed", f.id)
			w.r, w.targets = h.log.NewReader(), nil // whatever state they were in
			more, err = true, errPanic
		}
	}()
	if !near {
		return w.read()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if more, err = w.read(); !more || err != nil {
		return more, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.behind() && f.abreast() {
		f.live, f.reading = true, false
		for _, m := range f.members {
			m.w.Wake() // somebody may wait for having caught up
		}
		return false, nil
	}
	return true, nil
}

// rest waits after an error, which may pass: too many open files, for one. The feed has nobody else to wake it.
func (w *walker) rest(err error) {
	h := w.f.hub
	w.pause = min(max(2*w.pause, firstPause), longPause)
	h.logger.Error("reading the log failed, trying again", "feed", w.f.id, "err", err, "wait", w.pause)
	select {
	case <-h.ctx.Done():
	case <-time.After(w.pause):
	}
}

// stretch is what a walk reads next.
type stretch struct {
	pos, epoch, since uint64
	records, bytes    int // at most
	past              []past
	extra             []uint64
}

// next returns what to read next; false if the walk is over.
func (w *walker) next() (v stretch, ok bool) {
	f := w.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.behind() || f.full() || f.hub.ctx.Err() != nil {
		f.reading = false
		f.relieve() // those with nothing to take would not ask
		return v, false
	}
	if w.gen != f.gen || w.targets == nil {
		w.gen, w.targets, w.topics = f.gen, map[uint32]*target{}, sparse.Table[int8]{}
	}
	return stretch{
		pos: f.pos, epoch: f.epoch, since: f.since, past: f.past, extra: slices.Clone(f.extra),
		records: min(readRecords, f.room()), bytes: max(1, min(readBytes, f.roomBytes())),
	}, true
}

// read moves one stretch of the log into the window and reports whether to go on.
func (w *walker) read() (more bool, err error) {
	f := w.f
	v, ok := w.next()
	if !ok {
		return false, nil
	}
	pos, lim := v.pos, store.Limits{MaxRecords: v.records, MaxBytes: v.bytes, MaxScan: readScan, Topics: w.wants}
	var gap Gap
	if f.queues != nil {
		lim.Dropped, lim.DroppedFrom = &gap, v.since
	}
	if from, first := max(pos, lim.DroppedFrom), f.hub.log.First(); lim.Dropped != nil && from < first && f.hub.log.DroppedSince(from, w.wants) {
		gap = Gap{From: from, To: first} // what the ledger knew of them is gone, too
	}

	recs, next, err := w.r.Read(w.recs[:0], pos, lim, func(off uint64, topicID uint32) bool {
		t := w.target(topicID)
		if !t.holds(off) {
			return false
		}
		if _, ok := slices.BinarySearch(v.extra, off); ok {
			return true
		}
		return !t.done(v.past, off)
	})
	if err != nil {
		return true, fmt.Errorf("at offset %d: %w", pos, err)
	}
	w.pause = 0
	f.take(w, recs, next, v.epoch, gap)
	clear(recs)
	w.recs = recs
	return true, nil
}

// take moves what a walk has read into the window.
func (f *Feed) take(w *walker, recs []store.Record, next, epoch uint64, gap Gap) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.epoch != epoch || f.gen != w.gen {
		// The feed went back, rested or got a filter meanwhile: what was read is void, and what
		// the new filter would have chosen was passed by.
		return
	}
	for _, r := range recs {
		if f.tooLate(r.Flags, r.Offset) {
			continue
		}
		t, ok := w.targets[r.Topic]
		if !ok { // forgotten again
			t = f.target(r.Topic)
		}
		if m := f.choose(t, r.Offset, f.mine(r.Client)); m != nil {
			f.add(&r, m)
		}
	}
	f.pos = next
	f.forgetExtra()
	if gap.To > 0 {
		f.hub.logger.Warn("messages that a queue had yet to deliver are gone", "queue", f.name, "offset", gap.From, "to", gap.To, "records", gap.Records)
		f.lose(gap)
	}
	if len(recs) > 0 && f.lagging(recs[0].Time) {
		f.fallBehind()
	}
	f.wake()
}

// lagging tells whether the feed is further behind than it may be, going by the time of the last record it read; f.mu is held.
func (f *Feed) lagging(micros int64) bool {
	lag := f.maxLag
	if lag.Time > 0 && f.hub.log.Now().Sub(time.UnixMicro(micros)) > lag.Time {
		return true
	}
	mean := f.hub.mean.Load()
	return lag.Bytes > 0 && mean > 0 && int64(f.hub.pos.Load()-min(f.pos, f.hub.pos.Load()))*mean > lag.Bytes
}

// fallBehind gives up on a feed that is too far behind and has no right to wait; f.mu is held.
func (f *Feed) fallBehind() {
	reliable := false
	for flt := range f.filters.All() {
		reliable = reliable || flt.QoS > 0
	}
	if !reliable {
		to := f.hub.pos.Load()
		skipped := to - min(f.pos, to)
		f.stats.Skipped += skipped
		f.pos = max(f.pos, to)
		f.epoch++
		f.hub.logger.Warn("slow subscriber was moved forward to now", "feed", f.id, "offset", to, "records", skipped)
		return
	}
	if f.overran {
		return
	}
	f.overran = true
	f.hub.logger.Warn("slow subscriber is too far behind", "feed", f.id)
	if f.overrun != nil {
		f.hub.walks.start(func() { // it takes locks that come before ours
			defer f.hub.caught("panic while a slow subscriber was disconnected", "feed", f.id)
			f.overrun()
		})
	}
}

// target returns what the feed wants of a topic, as of w.gen or later.
func (w *walker) target(id uint32) *target {
	t, ok := w.targets[id]
	if !ok {
		t = w.f.targetOf(id)
		if len(w.targets) >= walkTopics {
			clear(w.targets)
		}
		w.targets[id] = t
	}
	return t
}

// wants tells whether the feed wants anything of a topic.
func (w *walker) wants(id uint32) bool {
	at := w.topics.Make(id)
	if *at == 0 {
		*at = -1
		if w.f.targetOf(id) != nil {
			*at = 1
		}
	}
	return *at > 0
}
