package feed

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/store"
)

// Limits bound what waits in a queue; zeros do not.
type Limits struct {
	MaxMessages int64
	MaxBytes    int64
	MaxAge      time.Duration // older messages are dropped
	// Reject refuses messages sent to a full queue. Otherwise, and for what it draws from topics, the oldest are dropped.
	Reject bool
}

func (l *Limits) any() bool { return l.MaxMessages > 0 || l.MaxBytes > 0 || l.MaxAge > 0 }

// exceeded tells whether so much is more than may wait.
func (l *Limits) exceeded(messages, bytes int64) bool {
	return l.MaxMessages > 0 && messages > l.MaxMessages || l.MaxBytes > 0 && bytes > l.MaxBytes
}

// Gap is a stretch of the log of which messages were taken from a queue's consumers. Records is 0 if it is not known how many.
type Gap = store.Gap

// admission counts what waits in a queue that refuses more than it may hold: what was let in since the last count, less
// what was settled since.
type admission struct {
	maxMessages, maxBytes int64
	messages, bytes       atomic.Int64
}

// Admit tells whether a queue takes a message of that size, and counts it if so. Messages sent to the queue itself are counted at once, those
// of bound topics once a second, when all that is committed is counted anew. What is on its way to the disk at that moment is forgotten: by that
// much, some milliseconds of publishes, a queue may come to hold more than its limit.
func (f *Feed) Admit(size int) bool {
	a := f.admission.Load()
	if a == nil {
		return true
	}
	n, b := a.messages.Add(1), a.bytes.Add(int64(size))
	if a.maxMessages > 0 && n > a.maxMessages || a.maxBytes > 0 && b > a.maxBytes {
		a.messages.Add(-1)
		a.bytes.Add(-int64(size))
		return false
	}
	return true
}

// Room tells whether Admit would take a message of that size now.
func (f *Feed) Room(size int) bool {
	a := f.admission.Load()
	return a == nil || (a.maxMessages == 0 || a.messages.Load() < a.maxMessages) && (a.maxBytes == 0 || a.bytes.Load()+int64(size) <= a.maxBytes)
}

// left counts a message out that was settled; f.mu is held.
func (f *Feed) left(size int) {
	if a := f.admission.Load(); a != nil {
		a.messages.Add(-1)
		a.bytes.Add(-int64(size))
	}
}

// setLimits puts the limits of a policy into force; f.mu is held.
func (f *Feed) setLimits(l Limits) {
	f.admission.Store(nil)
	if l.Reject && (l.MaxMessages > 0 || l.MaxBytes > 0) {
		f.admission.Store(&admission{maxMessages: l.MaxMessages, maxBytes: l.MaxBytes})
	}
}

// enforce compares what waits in a queue with its limits and drops what is too much or too old.
func (f *Feed) enforce(now time.Time) error {
	f.mu.Lock()
	l := f.policy.Limits
	f.mu.Unlock()
	if !l.any() {
		return nil
	}
	waiting, err := f.Backlog() // which costs what has changed since the last time
	if err != nil {
		return err
	}
	if a := f.admission.Load(); a != nil {
		a.messages.Store(waiting.Messages)
		a.bytes.Store(waiting.Bytes)
	}
	if l.MaxAge == 0 && !l.exceeded(waiting.Messages, waiting.Bytes) {
		return nil
	}
	log := f.hub.log
	v := f.look()
	end := log.Committed()
	want := v.byTopic()
	count := func(from uint64) (store.Tally, error) { return log.Count(from, end, want) }
	all, err := count(v.from)
	if err != nil {
		return err
	}
	to := v.from
	if l.MaxAge > 0 {
		to = max(to, log.SearchTime(now.Add(-l.MaxAge).UnixMicro()))
	}
	over := func(t store.Tally) bool { return l.exceeded(int64(t.Records)-int64(len(v.settled)), int64(t.Bytes)) }
	if over(all) {
		low, high := v.from, end // over at low, not at high
		for low+1 < high {
			mid := low + (high-low)/2
			t, err := count(mid)
			if err != nil {
				return err
			}
			if over(t) {
				low = mid
			} else {
				high = mid
			}
		}
		to = max(to, high)
	}
	if to <= v.from {
		return nil
	}
	rest, err := count(to)
	if err != nil {
		return err
	}
	f.skipTo(to, Gap{From: max(v.from, log.First()), To: to, Records: int64(all.Records - rest.Records)})
	return nil
}

// byTopic tells of each topic whether the queue wants it, and remembers.
func (v *view) byTopic() func(topicID uint32) bool {
	known := map[uint32]bool{}
	return func(id uint32) bool {
		want, ok := known[id]
		if !ok {
			want = v.f.targetOf(id) != nil
			known[id] = want
		}
		return want
	}
}

// skipTo gives up what waits below an offset. What is with members stays with them.
func (f *Feed) skipTo(to uint64, gap Gap) {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	for seq := f.win.head; seq < f.win.tail; seq++ {
		if s := f.win.at(seq); s.Offset < to && (s.state == waiting || s.state == refused) {
			f.settle(s)
		}
	}
	f.win.trim()
	for len(f.extra) > 0 && f.extra[0] < to && !f.inWindow(f.extra[0]) {
		f.extra = f.extra[1:]
	}
	if !f.live && f.pos < to {
		f.pos = to
		f.epoch++
		f.live = len(f.members) > 0 && f.abreast()
	}
	f.touch()
	if gap.Records > 0 {
		h.logger.Warn("queue is over its limits, its oldest messages were dropped", "queue", f.name, "offset", gap.From, "to", gap.To, "records", gap.Records)
		f.lose(gap)
	}
	f.resume()
}

// lose notes that messages were dropped before anybody had them. Whoever is told first takes it off the queue, which keeps it with
// its cursor until then. f.mu is held.
func (f *Feed) lose(gap Gap) {
	if gap.To == 0 {
		return
	}
	f.stats.Dropped += uint64(gap.Records)
	f.gap.Merge(gap)
	f.touch()
	for _, m := range f.members {
		m.gap.Merge(gap)
		m.w.Wake()
	}
}

// Gap returns what was taken from the member since the last call, with To 0 for nothing.
func (m *Member) Gap() Gap {
	m.feed.mu.Lock()
	defer m.feed.mu.Unlock()
	g := m.gap
	if m.gap = (Gap{}); g.To > 0 && m.feed.gap.To > 0 {
		m.feed.gap = Gap{} // told
		m.feed.touch()
	}
	return g
}

// Enforce compares what waits in every queue with the queue's limits now, and not only at the next look at them: what a
// full queue may not take is then known.
func (q *Queues) Enforce() error {
	for _, name := range q.Names() {
		f, err := q.Find(name)
		if err != nil {
			continue // deleted meanwhile
		}
		if err := f.enforce(f.hub.log.Now()); err != nil {
			return fmt.Errorf("count the messages of queue %q: %w", name, err)
		}
	}
	return nil
}
