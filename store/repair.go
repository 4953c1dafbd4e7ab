package store

import (
	"errors"
	"fmt"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/state"
	"github.com/edgemq/edgemq/store/vfs"
)

// mendState puts aside what is damaged in the state and can be done without: then messages that were dropped are there again, or are
// delivered again. Of anything else the error says where it is and what can be done.
func (s *Store) mendState() error {
	path := s.opt.path("state.db")
	if s.state.Fallback() {
		s.log.Warn("a meta page of the state is damaged, or a power cut tore it; the other one counts, and the journal since then", "file", path)
	}
	var list []Mutation
	for _, d := range s.state.Damaged() {
		m, ok := s.mend(d)
		if !ok {
			return &record.CorruptError{Path: path, Err: fmt.Errorf("%w; restore it from a copy, or have \"edgemq store repair\" delete what is damaged", &d)}
		}
		list = append(list, m)
		s.count.damaged.Add(1)
		s.log.Error("state damaged, going on without a value", "file", path, "bucket", d.Name, "key", string(d.Key))
	}
	s.state.Apply(list)
	return nil
}

// mend returns what takes the place of a damaged value, false if nothing may.
func (s *Store) mend(d state.Damaged) (Mutation, bool) {
	switch {
	case d.Bucket == record.BucketFloors || d.Bucket == record.BucketTallies:
		return record.Delete(d.Bucket, d.Key), true
	case s.opt.Mend != nil:
		return s.opt.Mend(d.Bucket, d.Key)
	}
	return Mutation{}, false
}

// Repaired is what Repair did.
type Repaired struct {
	Deleted  []string // values that were damaged
	Accepted error    // what is wrong besides, and was accepted; nil if nothing is
}

// errSegments is why Repair does not delete an entry of the table of segments.
var errSegments = errors.New("the entry of a segment is damaged, and to delete it would be the end of the messages in the segment: restore state.db from a copy")

// Repair deletes what is damaged in the state of a stopped store, so that it can be opened. What the values said is lost.
func Repair(o Options) (_ Repaired, err error) {
	o = o.withDefaults()
	if o.FS == nil {
		o.FS = vfs.OS
	}
	lock, err := o.FS.Lock(o.path("LOCK"))
	if errors.Is(err, vfs.ErrLocked) {
		return Repaired{}, fmt.Errorf("%w: %s", ErrLocked, o.Dir)
	} else if err != nil {
		return Repaired{}, fmt.Errorf("store: lock data directory: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	segments := false
	deleted, accepted, err := state.Repair(o.FS, o.path("state.db"), func(d state.Damaged) bool {
		segments = segments || d.Bucket == record.BucketSegments
		return segments
	})
	if segments {
		return Repaired{}, fmt.Errorf("%w: %w", errSegments, err)
	}
	out := Repaired{Accepted: accepted}
	for _, d := range deleted {
		out.Deleted = append(out.Deleted, fmt.Sprintf("bucket %s, key %q", d.Name, d.Key))
	}
	return out, err
}
