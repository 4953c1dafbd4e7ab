package feed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
	if !f.opt.Durable || f.dirty || f.closed {
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
			muts = append(muts, f.mutation())
		}
		f.mu.Unlock()
	}
	if len(muts) == 0 {
		return false
	}
	if err := s.hub.log.Append(nil, muts, true, done); err != nil {
		for _, f := range feeds { // try again with the next save
			f.mu.Lock()
			f.touch()
			f.mu.Unlock()
		}
		if !errors.Is(err, store.ErrFull) && !errors.Is(err, store.ErrClosed) {
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

// saveOrdered is Save for a caller that holds saver.order.
func (h *Hub) saveOrdered(muts []store.Mutation, done store.Completion, feeds ...*Feed) error {
	for _, f := range feeds {
		if f == nil || !f.opt.Durable {
			continue
		}
		f.mu.Lock()
		if !f.closed {
			muts = append(muts, f.mutation())
		}
		f.mu.Unlock()
	}
	return h.log.Append(nil, muts, true, done)
}

// CursorKey is the key of a feed's cursor in the state, for deleting it.
func CursorKey(id string) []byte { return []byte(id) }

// mutation returns the change of state that saves the feed's cursor; f.mu is held.
func (f *Feed) mutation() store.Mutation {
	cursor, spans := f.progress()
	return store.Mutation{Bucket: record.BucketCursors, Key: CursorKey(f.id), Value: appendCursor(nil, cursor, f.sent, spans, f.extra)}
}

// progress returns the cursor, below which everything is settled, and what is settled above it; f.mu is held.
func (f *Feed) progress() (cursor uint64, spans []span) {
	cursor = f.examined()
	if f.win.len() == f.held && len(f.extra) == 0 && len(f.skip) == 0 {
		if f.held > 0 { // the usual case: nothing is settled but what has left the window
			cursor = f.win.at(f.win.head).Offset
		}
		return cursor, nil
	}
	open, run := false, false // an unsettled slot was seen; the last slot was settled
	for seq := f.win.head; seq < f.win.tail; seq++ {
		s := f.win.at(seq)
		switch {
		case s.extra:
		case s.state != settled:
			if !open {
				cursor, open = s.Offset, true
			}
			run = false
		case open && run:
			spans[len(spans)-1].to = s.Offset
		case open:
			spans, run = append(spans, span{s.Offset, s.Offset}), true
		}
	}
	keep := f.skip[:0]
	for _, sp := range f.skip {
		if sp.to >= cursor {
			keep = append(keep, sp)
		}
	}
	if f.skip = keep; len(keep) == 0 {
		f.skip = nil
	}
	return cursor, merge(append(spans, keep...))
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
	if f.pos, f.sent, f.skip, f.extra, err = parseCursor(b); err != nil {
		return fmt.Errorf("feed %q: %w", f.id, err)
	}
	f.resent = f.sent
	return nil
}

const cursorVersion = 1

var errCursor = errors.New("feed: damaged cursor")

// appendCursor encodes: version u8, then uvarints: cursor, highest offset sent, number of settled spans, for each the
// distance from the end of the one before and the length less one, number of extra offsets, their distances.
func appendCursor(dst []byte, cursor, sent uint64, spans []span, extra []uint64) []byte {
	dst = append(dst, cursorVersion)
	dst = binary.AppendUvarint(dst, cursor)
	dst = binary.AppendUvarint(dst, sent)
	dst = binary.AppendUvarint(dst, uint64(len(spans)))
	last := uint64(0)
	for _, s := range spans {
		dst = binary.AppendUvarint(dst, s.from-last)
		dst = binary.AppendUvarint(dst, s.to-s.from)
		last = s.to
	}
	dst = binary.AppendUvarint(dst, uint64(len(extra)))
	last = 0
	for _, off := range extra {
		dst = binary.AppendUvarint(dst, off-last)
		last = off
	}
	return dst
}

// parseCursor reads what appendCursor wrote.
func parseCursor(b []byte) (cursor, sent uint64, spans []span, extra []uint64, err error) {
	if len(b) == 0 {
		return 0, 0, nil, nil, errCursor
	}
	if b[0] != cursorVersion {
		return 0, 0, nil, nil, fmt.Errorf("feed: cursor of version %d: %w", b[0], store.ErrVersion)
	}
	b = b[1:]
	next := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			err = errCursor
			return 0
		}
		b = b[n:]
		return v
	}
	cursor, sent = next(), next()
	last := uint64(0)
	for n := next(); n > 0 && err == nil; n-- {
		s := span{from: last + next()}
		s.to = s.from + next()
		spans, last = append(spans, s), s.to
	}
	last = 0
	for n := next(); n > 0 && err == nil; n-- {
		last += next()
		extra = append(extra, last)
	}
	if err == nil && len(b) > 0 {
		err = errCursor
	}
	if err != nil {
		return 0, 0, nil, nil, err
	}
	return cursor, sent, spans, extra, nil
}
