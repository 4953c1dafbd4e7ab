package store

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/edgemq/edgemq/store/journal"
)

// Why the store is full: bits of Store.full. Any of them refuses durable messages.
const (
	fullLow     = 1 << iota // less than Options.MinFree is left
	fullFlush               // the flusher or a checkpoint met a full disk
	fullJournal             // there is no room for the journal's next file
)

// setFull begins to refuse durable messages.
func (s *Store) setFull(why uint32, err error) {
	if old := s.full.Or(why); old&why == 0 {
		if old == 0 {
			s.count.fulls.Add(1)
		}
		attrs := []any{"free", s.count.diskFree.Load(), "min_free", s.opt.MinFree}
		if err != nil {
			attrs = append(attrs, "err", err)
		}
		what := "disk full"
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			what = "no file descriptors left"
		}
		s.log.Warn(what+", durable messages are refused until there is room", attrs...)
		s.open.lookAgain()
	}
}

// clearFull ends one reason; the last one resumes service.
func (s *Store) clearFull(why uint32) {
	if s.full.Load()&why == 0 {
		return
	}
	if old := s.full.And(^why); old == why {
		s.log.Info("there is room again, service resumed", "free", s.count.diskFree.Load())
	}
	poke(s.progress)
	poke(s.flusher.wake)
}

// isFull says whether an error means a full disk. Only of a write: after a failed fsync nothing is known any more.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, journal.ErrNoRoom)
}

// checkSpace compares what is free with Options.MinFree. Resuming needs a little more, so that it does not flap.
func (s *Store) checkSpace() {
	free, err := s.fs.Free(s.opt.Dir)
	if err != nil {
		return // a file system that cannot tell; a full disk still shows in failing writes
	}
	s.count.diskFree.Store(free)
	switch {
	case free < s.opt.MinFree:
		s.setFull(fullLow, nil)
	case free >= s.opt.MinFree+s.opt.MinFree/16:
		s.clearFull(fullLow)
	}
}

// prepareLoop makes the journal's next file ready before the committer needs it, so that no append waits for it.
func (s *Store) prepareLoop(ctx context.Context) {
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	failing := false
	for {
		switch err := s.journal.Prepare(); {
		case err == nil:
			if failing {
				s.clearFull(fullJournal)
			}
			failing = false
		case isFull(err):
			failing = true
			s.setFull(fullJournal, err)
		default:
			s.fail(err)
			return
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-s.failed:
				return
			case <-s.prepare:
				waiting = false
			case <-retry.C: // there may be room again; or groups have become smaller
				waiting = false
			}
		}
	}
}
