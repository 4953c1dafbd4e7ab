package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/segment"
	"github.com/edgemq/edgemq/store/state"
	"github.com/edgemq/edgemq/store/vfs"
)

// Damage is a place on disk that does not make sense.
type Damage struct {
	Path   string
	Pos    int64 // byte position
	Length int64 // 0 if unknown
	Err    error
}

// Report is what Verify found.
type Report struct {
	Files   int
	Bytes   int64
	Records uint64
	Groups  uint64 // in the journal, not yet checkpointed
	Damage  []Damage
	More    map[string]int // places in a file beyond the first MaxPlaces, which Damage does not name
	places  map[string]int
}

// MaxPlaces is how many places of one file a Report names.
const MaxPlaces = 100

func (r *Report) damaged(path string, pos, length int64, err error) {
	if r.places == nil {
		r.places, r.More = map[string]int{}, map[string]int{}
	}
	if r.places[path]++; r.places[path] > MaxPlaces {
		r.More[path]++
		return
	}
	r.Damage = append(r.Damage, Damage{path, pos, length, err})
}

// Places is how many places are damaged, named or not.
func (r *Report) Places() int {
	n := len(r.Damage)
	for _, more := range r.More {
		n += more
	}
	return n
}

// blame adds err with the place it names, or the file if it names none.
func (r *Report) blame(path string, err error) {
	var c *record.CorruptError
	if errors.As(err, &c) {
		r.damaged(c.Path, c.Pos, 0, c.Err)
	} else if err != nil {
		r.damaged(path, 0, 0, err)
	}
}

// Verify checks every byte of a stopped store. It opens nothing for writing. The error wraps ErrDamaged if Report.Damage is not empty.
func Verify(o Options) (_ Report, err error) {
	var r Report
	s, cp, err := openOffline(o)
	if err != nil {
		var c *record.CorruptError
		if !errors.As(err, &c) {
			return r, err
		}
		r.blame("", err) // of what is behind it nothing can be said
		return r, r.verdict()
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	r.state(s)
	if err := r.journal(s, cp); err != nil { // first, since it may say that segments have been deleted
		return r, err
	}
	uses, err := r.ledger(s, cp)
	if err != nil {
		return r, err
	}
	r.segments(s, uses)
	return r, r.verdict()
}

func (r *Report) verdict() error {
	if n := r.Places(); n > 0 {
		return fmt.Errorf("%w: places: %d", ErrDamaged, n)
	}
	return nil
}

func (r *Report) state(s *Store) {
	path := s.opt.path("state.db")
	r.Files++
	r.Bytes += size(s.fs, path)
	r.blame(path, s.state.Check())
	for _, d := range s.state.Damaged() {
		r.damaged(path, 0, 0, &d)
	}
}

// use is what the ledger says of a segment.
type use struct {
	records uint64
	bytes   int64
}

// ledger checks the entries, and counts what they say of segments.
func (r *Report) ledger(s *Store, cp state.Checkpoint) (map[uint32]*use, error) {
	uses := make(map[uint32]*use)
	path := func(offset uint64) string {
		return s.opt.path("ledger", fmt.Sprintf("%08x.ldg", offset/ledger.FileEntries))
	}
	if cp.First < cp.Next {
		for i := cp.First / ledger.FileEntries; i <= (cp.Next-1)/ledger.FileEntries; i++ {
			name := path(i * ledger.FileEntries)
			r.Files++
			r.Bytes += size(s.fs, name)
			r.blame(name, ledgerHeader(s.fs, name))
		}
	}
	position := func(offset uint64) int64 {
		return record.FileHeaderSize + int64(offset%ledger.FileEntries)*ledger.EntrySize
	}
	run := uint64(0) // damaged entries up to here, which are one place
	flush := func(next uint64) {
		switch {
		case run == 1:
			r.damaged(path(next-1), position(next-1), ledger.EntrySize, fmt.Errorf("entry of offset %d is damaged", next-1))
		case run > 1:
			r.damaged(path(next-run), position(next-run), int64(run)*ledger.EntrySize, fmt.Errorf("entries of offsets %d to %d are damaged", next-run, next-1))
		}
		run = 0
	}
	err := s.eachEntry(cp, func(offset uint64, e *ledger.Entry) {
		if !e.Bad || offset%ledger.FileEntries == 0 {
			flush(offset)
		}
		if e.Bad {
			run++
			return
		}
		if e.Segment == 0 {
			return
		}
		u := uses[e.Segment]
		if u == nil {
			u = new(use)
			uses[e.Segment] = u
		}
		u.records++
		u.bytes += int64(e.Length)
		if g := s.table.get(e.Segment); g != nil && int64(e.Pos)+int64(e.Length) > g.meta.Bytes {
			r.damaged(path(offset), position(offset), ledger.EntrySize, fmt.Errorf("entry of offset %d points behind the end of segment %d", offset, e.Segment))
		}
	})
	flush(cp.Next)
	return uses, err
}

func ledgerHeader(fsys vfs.FS, path string) error {
	f, err := fsys.OpenFile(path, 0, 0)
	if err != nil {
		return err
	}
	b := make([]byte, record.FileHeaderSize)
	if n, err := f.ReadAt(b, 0); n < len(b) {
		return errors.Join(err, f.Close())
	}
	_, err = record.ParseFileHeader(b, "EMQL", 1, record.FileHeaderSize)
	return errors.Join(err, f.Close())
}

// segments reads every record, and compares with what the ledger says.
func (r *Report) segments(s *Store, uses map[uint32]*use) {
	for _, g := range s.table.sorted() {
		path := segment.Path(s.segments, g.client, g.id)
		r.Files++
		r.Bytes += g.meta.Bytes
		records, sound := r.segment(s, g, path)
		r.Records += records
		if !sound {
			continue
		}
		u := uses[g.id]
		if u == nil {
			u = new(use)
		}
		switch {
		case records != g.meta.Records:
			r.damaged(path, 0, 0, fmt.Errorf("%d records, the state knows of %d", records, g.meta.Records))
		case g.meta.Base >= s.First() && (u.records != records || u.bytes != g.meta.Bytes-segment.HeaderSize) && !r.hasLedgerDamage():
			r.damaged(path, 0, 0, fmt.Errorf("%d records, the ledger knows of %d", records, u.records))
		}
	}
}

// segment reads every record of one segment.
func (r *Report) segment(s *Store, g *seg, path string) (records uint64, sound bool) {
	last := uint64(0)
	before := r.Places()
	err := segment.Survey(s.fs, path, g.meta.Bytes, func(offset uint64, client uint32) bool {
		return offset > last && offset <= g.meta.Last && (client == g.client || g.client == segment.Shared)
	}, func(pos int64, rec record.Record) {
		switch {
		case rec.Offset <= last:
			r.damaged(path, pos, 0, fmt.Errorf("record %d follows record %d", rec.Offset, last))
		case g.client != segment.Shared && rec.Client != g.client:
			r.damaged(path, pos, 0, fmt.Errorf("record %d is of client %d", rec.Offset, rec.Client))
		}
		last = max(last, rec.Offset)
		records++
	}, func(pos, length int64, err error) {
		r.damaged(path, pos, length, err)
	})
	r.blame(path, err)
	return records, r.Places() == before
}

// hasLedgerDamage says whether entries are missing, so that the ledger's counts say nothing.
func (r *Report) hasLedgerDamage() bool {
	return slices.ContainsFunc(r.Damage, func(d Damage) bool { return filepath.Ext(d.Path) == ".ldg" })
}

func (r *Report) journal(s *Store, cp state.Checkpoint) error {
	report, st, err := s.replayOffline(cp, func(Record) error {
		r.Records++
		return nil
	})
	if err != nil {
		return err
	}
	r.Files += st.Files
	r.Bytes += st.Bytes
	r.Groups = uint64(report.Groups)
	for _, d := range report.Damage {
		r.damaged(d.Path, d.Pos, d.Len, fmt.Errorf("groups %d to %d, which were acknowledged, are damaged", d.First, d.Last))
	}
	return nil
}
