package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/edgemq/edgemq/store/journal"
	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/state"
	"github.com/edgemq/edgemq/store/vfs"
)

// openOffline opens the data of a stopped broker to be looked at. Its tail is empty: what is only in the journal comes
// from replayOffline, which keeps one group in memory at a time.
func openOffline(o Options) (_ *Store, cp state.Checkpoint, err error) {
	o = o.withDefaults()
	o.Topic = nil // what is there is looked at, not what may be
	if o.FS == nil {
		o.FS = vfs.OS
	}
	s := &Store{opt: o, log: o.Logger.With("component", "store"), fs: o.FS, segments: o.path("segments"), failed: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("store: open %s: %w", o.Dir, err), s.release())
		}
	}()
	if _, err := o.FS.Stat(o.path("LOCK")); err == nil {
		// Only a lock that is there is taken, since nothing may be written here. Not being allowed to is no
		// obstacle: it may be a copy on read-only media.
		switch lock, err := o.FS.Lock(o.path("LOCK")); {
		case errors.Is(err, vfs.ErrLocked):
			return nil, cp, fmt.Errorf("%w: %s", ErrLocked, o.Dir)
		case err == nil:
			s.lock = lock
		}
	}
	if err := s.stateMissing(); err != nil {
		return nil, cp, err
	}
	if s.state, err = state.OpenReadOnly(o.FS, o.path("state.db")); err != nil {
		return nil, cp, err
	}
	for _, d := range s.state.Damaged() { // Verify names them; the rest can be looked at
		if d.Bucket != 0 {
			s.state.Apply([]Mutation{record.Delete(d.Bucket, d.Key)})
		}
	}
	cp, ok := s.state.Checkpoint()
	if !ok {
		cp.First, cp.Next = 1, 1
	}
	if s.ledger, err = ledger.Open(o.FS, o.path("ledger"), cp.First, cp.Next); err != nil {
		return nil, cp, err
	}
	s.cache.init(o.CacheBytes)
	s.handles.init(s)
	s.flusher.init(s, cp)
	s.clients.init()
	s.topics.init()
	s.limits.init(s)
	if err := errors.Join(s.loadTable(), s.loadTopics()); err != nil {
		return nil, cp, err
	}
	s.tail.init(cp.Next)
	s.first.Store(cp.First)
	return s, cp, nil
}

// replayOffline hands what the journal holds beyond the checkpoint to fn. Names are known by then.
func (s *Store) replayOffline(cp state.Checkpoint, fn func(r Record) error) (journal.Report, journal.Stats, error) {
	j, err := journal.Open(journal.Options{
		Dir: s.opt.path("journal"), FileBytes: s.opt.JournalFileBytes, FS: s.fs, Logger: s.log, ReadOnly: true,
	}, journalPosition(cp))
	if err != nil {
		return journal.Report{}, journal.Stats{}, err
	}
	report, err := j.Replay(func(jg journal.Group) error {
		if _, err := s.replayMutations(jg); err != nil {
			return err
		}
		for b := jg.Records; len(b) > 0; {
			r, n, err := record.Parse(b)
			if err != nil {
				return fmt.Errorf("journal group %d: %w", jg.Seq, err)
			}
			b = b[n:]
			if r.Offset < cp.Next {
				continue
			}
			if err := fn(r); err != nil {
				return err
			}
		}
		return nil
	})
	st := j.Stats()
	return report, st, errors.Join(err, j.Close())
}

// Summary is what Stat found.
type Summary struct {
	First, Next, Checkpoint uint64
	CheckpointTime          int64 // µs since 1970
	Segments                int
	SegmentBytes            int64
	LedgerBytes             int64
	JournalBytes            int64
	StateBytes              int64
	Topics, Clients         []Count // most bytes first
}

// Count is what one topic or client holds.
type Count struct {
	Name           string
	ID             uint32
	Records, Bytes uint64
}

// Stat counts what a stopped store holds.
func Stat(o Options) (_ Summary, err error) {
	s, cp, err := openOffline(o)
	if err != nil {
		return Summary{}, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	out := Summary{First: cp.First, Next: cp.Next, Checkpoint: cp.Next, CheckpointTime: cp.Saved}
	topics, clients := make(map[uint32]*Count), make(map[uint32]*Count)
	count := func(m map[uint32]*Count, id uint32, size int) {
		c := m[id]
		if c == nil {
			c = &Count{ID: id}
			m[id] = c
		}
		c.Records++
		c.Bytes += uint64(size)
	}
	err = s.eachEntry(cp, func(_ uint64, e *ledger.Entry) {
		if e.Segment != 0 && s.table.get(e.Segment) != nil {
			count(topics, e.Topic, int(e.Length))
			count(clients, e.Client, int(e.Length))
		}
	})
	if err != nil {
		return Summary{}, err
	}
	_, st, err := s.replayOffline(cp, func(r Record) error {
		count(topics, r.Topic, record.Size(len(r.Props), len(r.Payload)))
		count(clients, r.Client, record.Size(len(r.Props), len(r.Payload)))
		out.Next = r.Offset + 1
		return nil
	})
	if err != nil {
		return Summary{}, err
	}
	out.Segments, out.SegmentBytes = s.table.totals()
	out.LedgerBytes, out.JournalBytes, out.StateBytes = s.ledger.Bytes(), st.Bytes, s.state.Stats().FileBytes
	out.Topics = ranked(topics, s.TopicName)
	out.Clients = ranked(clients, s.ClientName)
	return out, nil
}

func ranked(m map[uint32]*Count, name func(uint32) string) []Count {
	var all []Count
	for c := range maps.Values(m) {
		c.Name = name(c.ID)
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b Count) int {
		switch {
		case a.Bytes != b.Bytes && a.Bytes > b.Bytes, a.Bytes == b.Bytes && a.ID < b.ID:
			return -1
		}
		return 1
	})
	return all
}

// eachEntry walks the ledger up to the checkpoint.
func (s *Store) eachEntry(cp state.Checkpoint, fn func(offset uint64, e *ledger.Entry)) error {
	entries := make([]ledger.Entry, maxChunk)
	for offset := cp.First; offset < cp.Next; {
		n, err := s.ledger.Read(offset, entries[:min(cp.Next-offset, maxChunk)])
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("ledger ends at offset %d, not at %d", offset, cp.Next)
		}
		for i := range entries[:n] {
			fn(offset+uint64(i), &entries[i])
		}
		offset += uint64(n)
	}
	return nil
}

// Filter chooses what Dump writes.
type Filter struct {
	Topic  string // exact name; "" is any
	Client string
	From   uint64
	Limit  uint64 // 0 is all
}

// dumped is the line that Dump writes for a record.
type dumped struct {
	Offset   uint64    `json:"offset"`
	Time     time.Time `json:"time"`
	Client   string    `json:"client"`
	Topic    string    `json:"topic"`
	QoS      byte      `json:"qos"`
	Retain   bool      `json:"retain,omitempty"`
	Expiry   *uint32   `json:"expiry,omitempty"`
	PacketID uint16    `json:"packet_id,omitempty"`
	Props    []byte    `json:"props,omitempty"`          // MQTT 5 properties as on the wire, base64
	Payload  *string   `json:"payload,omitempty"`        // if it is UTF-8
	Binary   []byte    `json:"payload_base64,omitempty"` // if it is not
}

var errLimit = errors.New("limit reached")

// Dump writes the records of a stopped store to w, one JSON object a line. Damaged records are logged and skipped.
func Dump(w io.Writer, o Options, f Filter) (err error) {
	s, cp, err := openOffline(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	written := uint64(0)
	write := func(r Record) error {
		topic, client := s.TopicName(r.Topic), s.ClientName(r.Client)
		if r.Offset < f.From || f.Topic != "" && topic != f.Topic || f.Client != "" && client != f.Client || r.Flags.Has(record.FlagTransient) {
			return nil
		}
		d := dumped{
			Offset: r.Offset, Time: time.UnixMicro(r.Time).UTC(), Client: client, Topic: topic, QoS: r.Flags.QoS(),
			Retain: r.Flags.Has(record.FlagRetain), PacketID: r.PacketID, Props: r.Props,
		}
		if r.Flags.Has(record.FlagExpiry) {
			d.Expiry = &r.Expiry
		}
		if utf8.Valid(r.Payload) {
			text := string(r.Payload)
			d.Payload = &text
		} else {
			d.Binary = r.Payload
		}
		if err := enc.Encode(d); err != nil {
			return err
		}
		if written++; written == f.Limit {
			return errLimit
		}
		return nil
	}
	topic, known := s.LookupTopic([]byte(f.Topic))
	reader, from := s.NewReader(), f.From
	var recs []Record
	for from < cp.Next {
		recs, from, err = reader.Read(recs[:0], from, Limits{MaxRecords: 1024, MaxBytes: 8 << 20}, func(_ uint64, t uint32) bool {
			return f.Topic == "" || known && t == topic
		})
		if err != nil {
			return err
		}
		for _, r := range recs {
			if err := write(r); err != nil {
				return ignoreLimit(err)
			}
		}
	}
	_, _, err = s.replayOffline(cp, write)
	return ignoreLimit(err)
}

func ignoreLimit(err error) error {
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// size returns the size of a file, 0 if it is not there.
func size(fsys vfs.FS, path string) int64 {
	info, err := fsys.Stat(path)
	if err != nil || info.Mode()&fs.ModeType != 0 {
		return 0
	}
	return info.Size()
}
