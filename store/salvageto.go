package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/state"
	"github.com/edgemq/edgemq/store/vfs"
)

// rebuild makes the new directory, under another name until it is complete: a broker that started on a part of it would take that for all.
func (v *salvage) rebuild() error {
	to := filepath.Clean(v.so.To)
	part := to + ".part"
	for _, name := range []string{to, part} {
		if _, err := v.fs.Stat(name); err == nil {
			return fmt.Errorf("%s is there already", name)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := vfs.MkdirAll(v.fs, part, 0o700); err != nil {
		return err
	}
	o := v.opt
	o.Dir = part
	if err := v.seed(&o); err != nil {
		return err
	}
	o.refill = v.refill
	s, err := open(o)
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	return errors.Join(v.fs.Rename(part, to), v.fs.SyncDir(filepath.Dir(to)))
}

// seedChanges is how many changes are saved at a time.
const seedChanges = 100_000

// seed makes a state.db with all that is left of the old one and does not depend on where messages are.
func (v *salvage) seed(o *Options) (err error) {
	db, err := state.Open(v.fs, o.path("state.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	first := v.firstOffset()
	cp := state.Checkpoint{JournalGroup: 1, First: first, Next: first}
	save := func() error {
		db.Freeze()
		return db.Save(cp, nil)
	}
	n, next := 0, uint32(1)
	for _, b := range record.Buckets() {
		var failed error
		err := v.state.Range(b, nil, func(k, value []byte) bool {
			list := v.carry(b, k, value, &next)
			db.Apply(list)
			if n += len(list); n >= seedChanges {
				n, failed = 0, save()
			}
			return failed == nil
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
	}
	db.Apply([]Mutation{record.Put(record.BucketMeta, nextClientKey, binary.BigEndian.AppendUint32(nil, next))})
	return save()
}

// carry returns what a value of the old state is in the new one.
func (v *salvage) carry(b record.Bucket, k, value []byte, nextClient *uint32) []Mutation {
	switch b {
	case record.BucketSegments, record.BucketFloors, record.BucketTallies: // of segments there are others, and what was dropped is not in them
		return nil
	case record.BucketMeta:
		switch {
		case string(k) == string(nextClientKey) && len(value) == 4:
			*nextClient = max(*nextClient, binary.BigEndian.Uint32(value))
			return nil
		case !strings.HasPrefix(string(k), string(stepPrefix)):
			return nil
		}
	case record.BucketClients:
		if len(k) == 5 && k[0] == 'i' && len(value) > 0 { // and the other way round, which may be lost
			*nextClient = max(*nextClient, binary.BigEndian.Uint32(k[1:])+1)
			return []Mutation{record.Put(b, k, value), record.Put(b, clientNameKey(string(value[1:])), k[1:])}
		}
	}
	return []Mutation{record.Put(b, k, value)}
}

// firstOffset is the lowest offset that a message may have.
func (v *salvage) firstOffset() uint64 {
	for len(v.sources) > 0 && v.sources[0].next == nil {
		v.advance(v.sources[0])
	}
	if len(v.sources) == 0 {
		return 1
	}
	return max(v.sources[0].at, 1)
}

// refiller hands messages to the flusher of the new store.
type refiller struct {
	s     *Store
	used  *numbers
	next  uint64 // the offset to come
	time  int64  // of the newest record
	group *Group
	ready []*Group
	bytes int64
	kept  map[string]Mutation // topic → the change that retains its last message
}

// maxHole is how many offsets without a message the flusher is given at once.
const maxHole = 1 << 16

// refill moves all messages to the new store. It runs in the place of a replay.
func (v *salvage) refill(s *Store, used *numbers) error {
	f := &refiller{s: s, used: used, next: s.ledger.Next(), kept: map[string]Mutation{}}
	if err := v.each(func(r *Record) error { return f.add(v, r) }); err != nil {
		return err
	}
	// Offsets are never used twice: a cursor may be behind the last message that was found.
	if err := errors.Join(f.skip(v.end(), 0), f.flush()); err != nil {
		return err
	}
	v.out.Retained = len(f.kept)
	s.state.Apply(slices.Collect(maps.Values(f.kept)))
	return nil
}

// end is the offset behind all that were ever given, as far as is known.
func (v *salvage) end() uint64 {
	end := v.prev + 1
	if cp, ok := v.state.Checkpoint(); ok && v.out.State != StateLost {
		end = max(end, cp.Next)
	}
	return end
}

func (f *refiller) add(v *salvage, r *Record) error {
	if err := f.skip(r.Offset, maxHole); err != nil { // the flusher deals with smaller ones
		return err
	}
	if f.group == nil || r.Offset != f.next || len(f.group.buf) >= flushBatch {
		f.close()
		f.group = &Group{Base: r.Offset}
	}
	if r.Time < f.time {
		step := clockStep{r.Offset, r.Time}.mutation()
		if _, ok, err := f.s.state.Get(step.Bucket, step.Key); err != nil {
			return err
		} else if !ok {
			f.s.state.Apply([]Mutation{step})
		}
	}
	g, pos := f.group, len(f.group.buf)
	g.buf = record.Append(g.buf, r)
	g.Entries = append(g.Entries, Entry{
		Time: r.Time, Topic: r.Topic, Client: r.Client, Expiry: r.Expiry, PacketID: r.PacketID, Flags: r.Flags,
		pos: uint32(pos), size: uint32(len(g.buf) - pos), props: uint32(len(r.Props)),
	})
	f.next, f.time = r.Offset+1, r.Time
	f.bytes += int64(len(g.buf)-pos) + entryBytes
	f.retain(v, r)
	if f.bytes >= flushBatch {
		return f.flush()
	}
	return nil
}

// skip leaves offsets empty up to one, until there are no more than some to it.
func (f *refiller) skip(to, left uint64) error {
	for f.next+left < to {
		if err := f.flush(); err != nil {
			return err
		}
		f.next += min(to-f.next, maxHole)
		f.group = &Group{Base: f.next}
	}
	return nil
}

// retain notes what the last message of its topic that has RETAIN makes of the retained ones, if those are lost.
func (f *refiller) retain(v *salvage, r *Record) {
	if v.out.State != StateLost || v.so.Retain == nil || !r.Flags.Has(record.FlagRetain) {
		return
	}
	name := v.topicName(r.Topic)
	m, ok := v.so.Retain(r, name)
	switch {
	case !ok:
	case m.Value == nil:
		delete(f.kept, name)
	default:
		f.kept[name] = m
	}
}

// close ends the group that is being filled.
func (f *refiller) close() {
	if f.group != nil {
		f.used.note(f.group)
		f.ready = append(f.ready, f.group)
		f.group = nil
	}
}

// flush moves what there is to the disk.
func (f *refiller) flush() error {
	f.close()
	if len(f.ready) == 0 {
		return nil
	}
	err := f.s.flusher.move(f.ready)
	f.ready, f.bytes = nil, 0
	return err
}
