package feed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// savePause is the least time between two saves of cursors, so that consumers that acknowledge while nobody
// publishes do not make the disk sync all the time. With publishes about, the saves ride with their groups.
const savePause = 5 * time.Millisecond

// saver writes the cursors of the feeds that moved. One goroutine, in Hub.Run, saves all of them in one append and
// waits for its commit before the next: each commit group carries what was settled before it began.
type saver struct {
	hub *Hub

	mu    sync.Mutex
	dirty []*Feed
	wake  chan struct{}

	// order is held from reading a cursor to handing it to the store, so that an older one never follows a newer one.
	order sync.Mutex
}

func (s *saver) init(h *Hub) {
	s.hub = h
	s.wake = make(chan struct{}, 1)
}

// touch queues the feed for the saver; f.mu is held.
func (f *Feed) touch() {
	if !f.durable || f.dirty || f.closed {
		return
	}
	f.dirty = true
	s := &f.hub.saver
	s.mu.Lock()
	s.dirty = append(s.dirty, f)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *saver) run(ctx context.Context) {
	done := make(committed, 1)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		if s.save(done) {
			select {
			case err := <-done:
				if err != nil && !errors.Is(err, store.ErrFull) {
					s.hub.logger.Error("saving cursors failed", "err", err)
				}
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(savePause):
		}
	}
}

// committed is a store.Completion that tells a channel with room for it.
type committed chan error

// Committed implements store.Completion.
func (c committed) Committed(_ uint64, err error) { c <- err }

// flush hands every cursor to the store, for its last commit.
func (s *saver) flush() {
	s.hub.feedsMu.Lock()
	for _, f := range s.hub.feeds {
		f.mu.Lock()
		f.touch()
		f.mu.Unlock()
	}
	s.hub.feedsMu.Unlock()
	s.save(nil)
}

// save appends the cursors of all dirty feeds and reports whether done will be called.
func (s *saver) save(done store.Completion) bool {
	s.mu.Lock()
	feeds := s.dirty
	s.dirty = nil
	s.mu.Unlock()
	if len(feeds) == 0 {
		return false
	}
	s.order.Lock()
	defer s.order.Unlock()
	muts := make([]store.Mutation, 0, len(feeds))
	for _, f := range feeds {
		f.mu.Lock()
		f.dirty = false
		if !f.closed {
			muts = f.mutations(muts)
		}
		f.mu.Unlock()
	}
	if len(muts) == 0 {
		return false
	}
	if err := s.hub.log.Append(nil, muts, true, done); err != nil {
		if !errors.Is(err, store.ErrFailed) && !errors.Is(err, store.ErrClosed) { // of those two the broker speaks, and ends
			s.hub.logger.Error("saving cursors failed", "err", err)
		}
		return false
	}
	return true
}

// Save appends muts together with the cursors of feeds, as one unit. done may be nil.
func (h *Hub) Save(muts []store.Mutation, done store.Completion, feeds ...*Feed) error {
	h.saver.order.Lock()
	defer h.saver.order.Unlock()
	return h.saveOrdered(muts, done, feeds...)
}

// SaveSoon is Save for what nobody waits for: it may be a moment before it is committed, see store.AppendSoon.
func (h *Hub) SaveSoon(muts []store.Mutation, feeds ...*Feed) error {
	h.saver.order.Lock()
	defer h.saver.order.Unlock()
	return h.log.AppendSoon(withCursors(muts, feeds))
}

// saveOrdered is Save for a caller that holds saver.order.
func (h *Hub) saveOrdered(muts []store.Mutation, done store.Completion, feeds ...*Feed) error {
	return h.log.Append(nil, withCursors(muts, feeds), true, done)
}

// withCursors adds the cursors of feeds, of which some may be nil.
func withCursors(muts []store.Mutation, feeds []*Feed) []store.Mutation {
	for _, f := range feeds {
		if f == nil {
			continue
		}
		f.mu.Lock()
		if f.durable && !f.closed {
			muts = f.mutations(muts)
		}
		f.mu.Unlock()
	}
	return muts
}

// CursorKey is the key of a feed's cursor in the state, for deleting it.
func CursorKey(id string) []byte { return []byte(id) }

// mutation returns the change of state that saves the feed's cursor; f.mu is held.
func (f *Feed) mutation() store.Mutation {
	at, done := f.progress()
	if f.since <= at {
		f.since = 0
	}
	c := cursor{at: at, sent: f.sent, done: done, extra: f.extra, tries: f.tries, since: f.since, gap: f.gap}
	return store.Mutation{Bucket: record.BucketCursors, Key: CursorKey(f.id), Value: c.append(nil)}
}

// progress returns the cursor, below which everything is settled but for the extra, and what is settled above it; f.mu is held.
func (f *Feed) progress() (at uint64, done []past) {
	at = f.examined()
	if f.win.len() == f.held && len(f.extra) == 0 && len(f.past) == 0 {
		if f.held > 0 { // the usual case: nothing is settled but what has left the window
			at = f.win.at(f.win.head).Offset
		}
		return at, nil
	}
	// Behind the first slot that is not settled, offsets rise. Of what lies between two settled neighbours nothing
	// is left to do either: it was examined.
	var spans []span
	open, run := false, false // an unsettled slot was seen; the last slot was settled
	for seq := f.win.head; seq < f.win.tail; seq++ {
		s := f.win.at(seq)
		switch {
		case s.extra:
		case s.state != settled:
			if !open {
				at, open = s.Offset, true
			}
			run = false
		case open && run:
			spans[len(spans)-1].to = s.Offset
		case open:
			spans, run = append(spans, span{s.Offset, s.Offset}), true
		}
	}
	var kept []past
	for _, p := range f.past {
		i := 0
		for i < len(p.spans) && p.spans[i].to < at {
			i++
		}
		if i < len(p.spans) {
			kept = append(kept, past{p.era, p.spans[i:]})
		}
	}
	if f.past = kept; len(spans) > 0 {
		return at, addPast(kept, f.era, spans...)
	}
	return at, kept
}

// lowest is the lowest offset the feed needs; f.mu is held.
func (f *Feed) lowest() uint64 {
	low, _ := f.progress()
	if len(f.extra) > 0 {
		low = min(low, f.extra[0])
	}
	return low
}

// load reads the saved cursor, if there is one.
func (f *Feed) load() error {
	b, ok, err := f.hub.log.Get(record.BucketCursors, CursorKey(f.id))
	if err != nil || !ok {
		return err
	}
	c, err := parseCursor(b)
	if err != nil {
		return fmt.Errorf("feed %q: %w", f.id, err)
	}
	f.sent, f.resent, f.past, f.extra, f.tries = c.sent, c.sent, c.done, c.extra, c.tries
	f.since, f.gap = c.since, c.gap
	for _, p := range f.past {
		f.era = max(f.era, p.era)
	}
	f.restart(c.at)
	return nil
}

// MendCursor takes the place of a cursor that was damaged on the disk: with it the feed begins at the oldest message, so that none is lost and
// many come again.
func MendCursor(key []byte) store.Mutation {
	return record.Put(record.BucketCursors, key, (&cursor{at: 1}).append(nil))
}

// cursor is what is saved of a feed.
type cursor struct {
	at, sent uint64
	done     []past
	extra    []uint64
	tries    map[uint64]try
	since    uint64
	gap      Gap
}

// The versions of a cursor. The second has since and gap, and is written only if there is one of them.
const (
	cursorVersion = 1
	gapVersion    = 2
)

var errCursor = errors.New("feed: damaged cursor")

// append encodes: version u8, with version 2 the uvarints since and From, To and Records of gap, then uvarints: cursor, highest offset sent, number of pasts, for each the era, the number of
// its spans, and for each span the distance from the end of the one before and the length less one; then the
// number of extra offsets and the distance of each from the one before; then, if something was refused, for each such
// message the distance of its offset from the one before, how often, and when it is due (µs since 1970).
func (c *cursor) append(dst []byte) []byte {
	if c.since > 0 || c.gap.To > 0 {
		dst = append(dst, gapVersion)
		for _, v := range []uint64{c.since, c.gap.From, c.gap.To, uint64(c.gap.Records)} {
			dst = binary.AppendUvarint(dst, v)
		}
	} else {
		dst = append(dst, cursorVersion)
	}
	dst = binary.AppendUvarint(dst, c.at)
	dst = binary.AppendUvarint(dst, c.sent)
	dst = binary.AppendUvarint(dst, uint64(len(c.done)))
	for _, p := range c.done {
		dst = binary.AppendUvarint(dst, uint64(p.era))
		dst = binary.AppendUvarint(dst, uint64(len(p.spans)))
		last := uint64(0)
		for _, s := range p.spans {
			dst = binary.AppendUvarint(dst, s.from-last)
			dst = binary.AppendUvarint(dst, s.to-s.from)
			last = s.to
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(c.extra)))
	last := uint64(0)
	for _, off := range c.extra {
		dst = binary.AppendUvarint(dst, off-last)
		last = off
	}
	last = 0
	for _, off := range slices.Sorted(maps.Keys(c.tries)) {
		dst = binary.AppendUvarint(dst, off-last)
		dst = binary.AppendUvarint(dst, uint64(c.tries[off].n))
		dst = binary.AppendUvarint(dst, uint64(c.tries[off].due))
		last = off
	}
	return dst
}

// parseCursor reads what append wrote, and takes nothing that it would not have written: the feed relies on the order.
func parseCursor(b []byte) (c cursor, err error) {
	if len(b) == 0 {
		return cursor{}, errCursor
	}
	if b[0] > gapVersion {
		return cursor{}, fmt.Errorf("feed: cursor of version %d: %w", b[0], store.ErrVersion)
	}
	r := numbers{b: b[1:], bad: b[0] == 0}
	if b[0] == gapVersion {
		c.since = r.next()
		c.gap = Gap{From: r.next(), To: r.next(), Records: int64(r.atMost(math.MaxInt64))}
		r.bad = r.bad || c.since == 0 && c.gap.To == 0
	}
	c.at, c.sent = r.next(), r.next()
	for n := r.next(); n > 0 && !r.bad; n-- {
		p := past{era: uint32(r.atMost(math.MaxUint32))}
		last := uint64(0)
		for k := r.next(); k > 0 && !r.bad; k-- {
			s := span{from: r.after(last, len(p.spans) > 0)}
			s.to = r.after(s.from, false)
			p.spans, last = append(p.spans, s), s.to
		}
		r.bad = r.bad || len(p.spans) == 0
		c.done = append(c.done, p)
	}
	last := uint64(0)
	for n := r.next(); n > 0 && !r.bad; n-- {
		last = r.after(last, len(c.extra) > 0)
		c.extra = append(c.extra, last)
	}
	last = 0
	for len(r.b) > 0 && !r.bad {
		last = r.after(last, len(c.tries) > 0)
		t := try{n: int(r.atMost(math.MaxInt32)), due: int64(r.atMost(math.MaxInt64))}
		if c.tries == nil {
			c.tries = map[uint64]try{}
		}
		c.tries[last] = t
	}
	if r.bad {
		return cursor{}, errCursor
	}
	return c, nil
}

// numbers reads uvarints.
type numbers struct {
	b   []byte
	bad bool
}

func (r *numbers) next() uint64 { return r.atMost(math.MaxUint64) }

func (r *numbers) atMost(limit uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > limit || n > 1 && r.b[n-1] == 0 { // a last byte of 0 adds nothing: not the shortest form
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// after reads an offset given by its distance from last, which is more than 0 if more.
func (r *numbers) after(last uint64, more bool) uint64 {
	d := r.atMost(math.MaxUint64 - last)
	r.bad = r.bad || more && d == 0
	return last + d
}
