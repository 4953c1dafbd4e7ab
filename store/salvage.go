package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"strings"

	"github.com/edgemq/edgemq/store/journal"
	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/segment"
	"github.com/edgemq/edgemq/store/state"
	"github.com/edgemq/edgemq/store/vfs"
)

// SalvageOptions say what becomes of what Salvage finds: one of the two.
type SalvageOptions struct {
	To   string                         // a new data directory; it must not be there
	Each func(m *SalvagedMessage) error // is called with every message, in order; m holds until it returns
	// Retain returns the change by which a message that was published with RETAIN is retained, false if it was not to be. It is asked if what was retained
	// is lost; nil retains nothing.
	Retain func(r *Record, topic string) (Mutation, bool)
}

// SalvagedMessage is a message with the names that its numbers stand for, $lost/topic-<number> and $lost/client-<number> where they are lost.
type SalvagedMessage struct {
	Record
	Topic, Client string
}

// StateLeft says what Salvage could make of state.db.
type StateLeft string

// The ways state.db can be.
const (
	StateWhole   StateLeft = "whole"
	StateDamaged StateLeft = "damaged" // it opens; what is sound in it counts
	StateLost    StateLeft = "lost"    // it does not open, or is not there: names alone count
)

// Salvaged is what Salvage found.
type Salvaged struct {
	Report      // Damage, and Records: the messages found
	State       StateLeft
	First, Last uint64 // offsets; 0 if there is no message
	Journal     uint64 // messages of them that the journal has
	Missing     uint64 // messages that the ledger knows, in segments that are there or should be, and that are not to be found
	Unknown     uint64 // offsets between First and Last of which the ledger says nothing
	Topics      int    // with messages
	Unnamed     int    // topics of them whose name is lost
	Retained    int    // retained messages found in the log again
}

// Salvage reads the messages of a directory in which the broker does not start, whatever is left of state.db, and changes nothing there. They are found by the
// segments and the journal, each record of which says by itself what it is; the ledger tells those from leftovers.
func Salvage(o Options, so SalvageOptions) (_ *Salvaged, err error) {
	o = o.withDefaults()
	o.Topic = nil
	if o.FS == nil {
		o.FS = vfs.OS
	}
	v := &salvage{
		opt: o, so: so, fs: o.FS, log: o.Logger.With("component", "salvage"), out: &Salvaged{State: StateWhole},
		from: math.MaxUint64, topics: map[uint32]string{}, floors: map[uint32]uint64{}, deleted: map[uint32]bool{}, segs: map[uint32]bool{}, seen: map[uint32]bool{},
	}
	if _, err := o.FS.Stat(o.path("LOCK")); err == nil {
		switch lock, err := o.FS.Lock(o.path("LOCK")); {
		case errors.Is(err, vfs.ErrLocked):
			return nil, fmt.Errorf("%w: %s", ErrLocked, o.Dir)
		case err == nil: // or it is a copy on read-only media
			defer lock.Close() //nolint:errcheck // nothing was written
		}
	}
	defer func() {
		if v.state != nil {
			err = errors.Join(err, v.state.Close())
		}
		if v.ledger != nil {
			err = errors.Join(err, v.ledger.Close())
		}
		if errors.Is(err, record.ErrVersion) {
			err = fmt.Errorf("%w: %w", ErrVersion, err)
		}
	}()
	for _, step := range []func() error{v.openState, v.readMutations, v.readNames, v.load} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("salvage %s: %w", o.Dir, err)
		}
	}
	if so.To != "" {
		err = v.rebuild()
	} else {
		err = v.each(v.tell)
	}
	if err != nil {
		return nil, fmt.Errorf("salvage %s: %w", o.Dir, err)
	}
	return v.out, nil
}

// salvage is the state of one Salvage.
type salvage struct {
	opt Options
	so  SalvageOptions
	fs  vfs.FS
	log *slog.Logger
	out *Salvaged

	state   *state.DB                   // what there is of state.db, and in memory what belongs over it
	since   journal.Position            // the checkpoint
	found   []Mutation                  // names found in pages, which count where there is nothing else
	topics  map[uint32]string           // names
	clients generations[uint32, string] // likewise
	floors  map[uint32]uint64           // topic → what lies below was dropped
	table   map[uint32]segment.Meta     // nil if it is lost
	whole   bool                        // the table has all segments
	deleted map[uint32]bool             // segments that the journal deletes
	segs    map[uint32]bool             // segments there are or should be
	sources sources                     // where records come from
	failed  error                       // why one of them ended early
	seen    map[uint32]bool             // topics with messages
	ledger  *ledger.Ledger              // all there is of it
	window  [maxChunk]ledger.Entry      // a part of it
	from    uint64                      // its offset
	prev    uint64                      // the last message's offset
}

// openState opens state.db as far as that is possible.
func (v *salvage) openState() error {
	path := v.opt.path("state.db")
	var missing error
	_, err := v.fs.Stat(path)
	if err == nil {
		v.state, missing, err = state.OpenDamaged(v.fs, path)
	}
	switch corrupt := (*record.CorruptError)(nil); {
	case err == nil:
		damaged := v.state.Damaged()
		for _, d := range damaged {
			v.out.damaged(path, 0, 0, &d)
			if v.opt.Mend != nil {
				if m, ok := v.opt.Mend(d.Bucket, d.Key); ok {
					v.state.Apply([]Mutation{m})
				}
			}
		}
		if missing != nil {
			v.out.damaged(path, 0, 0, missing)
		}
		if len(damaged) > 0 || missing != nil {
			v.out.State = StateDamaged
		}
		cp, ok := v.state.Checkpoint()
		if v.since = journalPosition(cp); ok {
			return nil
		}
		if v.out.State == StateWhole && v.state.Stats().FileBytes > 0 {
			return nil // it has just been made
		}
		return errors.Join(v.state.Close(), v.lost(path, errors.New("no checkpoint")))
	case errors.Is(err, fs.ErrNotExist):
		return v.lost(path, errors.New("it is missing"))
	case errors.As(err, &corrupt):
		return v.lost(path, corrupt.Err)
	}
	return err
}

// lost goes on without state.db, but for the names in pages of it.
func (v *salvage) lost(path string, why error) error {
	v.out.State = StateLost
	v.out.damaged(path, 0, 0, why)
	v.state = state.Empty()
	return state.ScanPages(v.fs, path, func(b record.Bucket, key, value []byte) {
		m := record.Put(b, append([]byte(nil), key...), append([]byte(nil), value...))
		if isName(m) || b == record.BucketMeta && strings.HasPrefix(string(key), string(stepPrefix)) {
			v.found = append(v.found, m)
		}
	})
}

// replay hands out all of the journal that is sound.
func (v *salvage) replay(fn func(g journal.Group) error) error {
	j, err := journal.Open(journal.Options{
		Dir: v.opt.path("journal"), FileBytes: v.opt.JournalFileBytes, FS: v.fs, Logger: v.log, ReadOnly: true, Salvage: true,
	}, journal.Position{})
	if err != nil {
		return err
	}
	_, err = j.Replay(fn)
	return errors.Join(err, j.Close())
}

// readMutations takes the changes since the checkpoint from the journal. Of those before it, and of all if state.db is lost, names count and nothing else:
// the newest value is not there to be told from older ones.
func (v *salvage) readMutations() error {
	return v.replay(func(g journal.Group) error {
		newer := v.out.State != StateLost && g.Seq >= v.since.Group
		for b := g.Mutations; len(b) > 0; {
			m, n, err := record.ParseMutation(b)
			if err != nil {
				return fmt.Errorf("journal group %d: %w", g.Seq, err)
			}
			b = b[n:]
			switch {
			case m.Bucket == record.BucketSegments && m.Value == nil && len(m.Key) == 4:
				v.deleted[binary.BigEndian.Uint32(m.Key)] = true
			case newer, v.out.State == StateLost && isName(m), m.Bucket == record.BucketMeta && v.out.State == StateLost:
				v.state.Apply([]Mutation{m})
			}
		}
		return nil
	})
}

// readNames fills in names that are neither in state.db nor in the journal.
func (v *salvage) readNames() error {
	var list []Mutation
	damaged, err := readNames(&v.opt, v.fs, func(m Mutation) { list = append(list, m) })
	if err != nil {
		return err
	}
	if damaged > 0 {
		v.out.damaged(v.opt.path("names"), 0, 0, fmt.Errorf("%d bytes make no sense", damaged))
	}
	// What the file says last counts, and what it deletes is gone: pages may hold names of a number's earlier life.
	named := map[string]Mutation{}
	for _, m := range append(v.found, list...) {
		named[string(append([]byte{byte(m.Bucket)}, m.Key...))] = m
	}
	v.found = nil
	for _, m := range named {
		if _, ok, err := v.state.Get(m.Bucket, m.Key); err != nil {
			return err
		} else if !ok && m.Value != nil {
			v.state.Apply([]Mutation{m})
		}
	}
	return nil
}

// load reads what is needed of the state, and finds the segments.
func (v *salvage) load() (err error) {
	err = v.state.Range(record.BucketTopics, nil, func(k, name []byte) bool {
		if len(k) == 4 {
			v.topics[binary.BigEndian.Uint32(k)] = string(name)
		}
		return true
	})
	if err != nil {
		return err
	}
	err = v.state.Range(record.BucketFloors, nil, func(k, b []byte) bool {
		if f, err := parseThree(b, floorVersion, errFloor); err == nil && len(k) == 4 {
			v.floors[binary.BigEndian.Uint32(k)] = f[0]
		}
		return true
	})
	if err != nil {
		return err
	}
	if v.out.State != StateLost {
		v.table, v.whole = map[uint32]segment.Meta{}, v.out.State == StateWhole
		err = v.state.Range(record.BucketSegments, nil, func(_, b []byte) bool {
			m, err := segment.ParseMeta(b)
			if err != nil {
				v.whole = false
				return true
			}
			v.table[m.ID], v.segs[m.ID] = m, true
			return true
		})
		if err != nil {
			return err
		}
	}
	if v.ledger, err = ledger.OpenAll(v.fs, v.opt.path("ledger")); err != nil {
		return err
	}
	return v.findSources()
}

// topicName is the name of a topic.
func (v *salvage) topicName(id uint32) string {
	if name := v.topics[id]; name != "" {
		return name
	}
	return lostTopic(id)
}

// lostTopic is the name of a topic whose own is lost.
func lostTopic(id uint32) string { return fmt.Sprintf("$lost/topic-%d", id) }

// clientName is the name of a client.
func (v *salvage) clientName(id uint32) string {
	if name, ok := v.clients.get(id); ok {
		return name
	}
	name := fmt.Sprintf("$lost/client-%d", id)
	if b, ok, err := v.state.Get(record.BucketClients, clientIDKey(id)); err == nil && ok && len(b) > 0 {
		name = string(b[1:])
	}
	v.clients.put(id, name, len(name))
	return name
}

// count notes a message that was found.
func (v *salvage) count(r *Record, journaled bool) {
	if v.out.First == 0 {
		v.out.First = r.Offset
	}
	v.out.Last = r.Offset
	v.out.Records++
	if journaled {
		v.out.Journal++
	}
	if !v.seen[r.Topic] {
		v.seen[r.Topic] = true
		v.out.Topics++
		if v.topics[r.Topic] == "" {
			v.out.Unnamed++
		}
	}
}

// tell hands a message to who asked for it.
func (v *salvage) tell(r *Record) error {
	return v.so.Each(&SalvagedMessage{*r, v.topicName(r.Topic), v.clientName(r.Client)})
}
