package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/edgemq/edgemq/store/journal"
	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/segment"
	"github.com/edgemq/edgemq/store/state"
	"github.com/edgemq/edgemq/store/vfs"
)

func journalPosition(cp state.Checkpoint) journal.Position {
	return journal.Position{File: cp.JournalFile, Group: cp.JournalGroup}
}

// Open locks the directory and recovers what it holds; the work is bounded by the journal, not by the backlog.
//
// The checkpoint in state.db says how long segments and ledger are for certain. The journal has all that was committed
// since, and is moved to them by the flusher's own code, in its batches. What a torn checkpoint left behind those lengths is
// overwritten. A crash during recovery changes nothing of that: the next one begins at the same place.
func Open(o Options) (_ *Store, err error) {
	o = o.withDefaults()
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	s, err := open(o)
	if err != nil && isFull(err) {
		// What is in the journal has to go to its place before anything else can, so nobody can make room by consuming. What can be
		// done without goes first.
		var freed int64
		if freed, err = makeRoom(&o, err); freed > 0 {
			s, err = open(o)
		}
	}
	if err != nil && isFull(err) {
		err = noRoom(&o, err)
	}
	return s, err
}

// open is one try of Open.
func open(o Options) (_ *Store, err error) {
	s := &Store{
		opt: o, log: o.Logger.With("component", "store"), fs: o.FS, segments: o.path("segments"),
		progress: make(chan struct{}, 1), prepare: make(chan struct{}, 1), checkpointNow: make(chan struct{}, 1),
		failed: make(chan struct{}), retainEvery: retainEvery, freer: freer{every: cmp.Or(o.freeEvery, freeEvery)},
	}
	defer func() {
		if err != nil {
			for _, a := range s.flusher.writers {
				err = errors.Join(err, a.close())
			}
			err = errors.Join(err, s.release())
		}
	}()
	if err := s.makeDirs(); err != nil {
		return nil, fmt.Errorf("store: make directory: %w", err)
	}
	if s.lock, err = o.FS.Lock(o.path("LOCK")); err != nil {
		if errors.Is(err, vfs.ErrLocked) {
			return nil, fmt.Errorf("%w: %s", ErrLocked, o.Dir)
		}
		return nil, fmt.Errorf("store: lock data directory: %w", err)
	}
	if err := s.recover(); err != nil {
		if errors.Is(err, record.ErrVersion) {
			return nil, fmt.Errorf("%w: %w", ErrVersion, err)
		}
		return nil, fmt.Errorf("store: open %s: %w", o.Dir, err)
	}
	return s, nil
}

// makeDirs makes the directories and their names durable, also those of an earlier start that got no further than making
// them: a directory that is there may still go with the next power cut.
func (s *Store) makeDirs() error {
	dirs := []string{s.opt.path("journal"), s.segments, s.opt.path("ledger")}
	for _, dir := range dirs {
		if err := vfs.MkdirAll(s.fs, dir, 0o700); err != nil {
			return err
		}
	}
	for dir := s.opt.Dir; ; dir = filepath.Dir(dir) {
		// Parents that are not ours to read were there before us.
		if err := s.fs.SyncDir(dir); err != nil && (dir == s.opt.Dir || !errors.Is(err, fs.ErrPermission)) {
			return err
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// stateMissing returns an error if state.db is gone and other files are not: it comes before they do and its name is synced, so no
// crash does this. Begun anew, the store would take what is there for leftovers.
func (s *Store) stateMissing() error {
	name := s.opt.path("state.db")
	if _, err := s.fs.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		return nil // what else may be wrong is seen when it is opened
	}
	for _, dir := range []string{"journal", "segments", "ledger"} {
		files, err := s.fs.ReadDir(s.opt.path(dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(files) > 0 {
			return &record.CorruptError{Path: name, Err: fmt.Errorf("it is missing, but %s is there: restore it from a copy, take the messages out with \"edgemq store salvage\", or move the directory away to begin anew",
				s.opt.path(dir, files[0].Name()))}
		}
	}
	return nil
}

func (s *Store) recover() (err error) {
	o := &s.opt
	start := time.Now()
	if err := s.stateMissing(); err != nil {
		return err
	}
	if s.state, err = state.Open(o.FS, o.path("state.db")); err != nil {
		return err
	}
	if err := s.mendState(); err != nil {
		return err
	}
	cp, ok := s.state.Checkpoint()
	if !ok {
		cp.First, cp.Next = 1, 1
	}
	if s.ledger, err = ledger.Open(o.FS, o.path("ledger"), cp.First, cp.Next); err != nil {
		return err
	}
	s.journal, err = journal.Open(journal.Options{
		Dir: o.path("journal"), DamagedDir: o.path("damaged"), FileBytes: o.JournalFileBytes, FS: o.FS, Logger: s.log,
	}, journalPosition(cp))
	if err != nil {
		return err
	}
	s.bounds()
	s.cache.init(o.CacheBytes)
	s.handles.init(s)
	s.index.init(s, cmp.Or(o.indexBlock, ledger.FileEntries))
	s.flusher.init(s, cp)
	s.clients.init()
	if err := s.loadTable(); err != nil {
		return err
	}
	s.topics.init()
	s.limits.init(s)
	if err := s.loadTopics(); err != nil {
		return err
	}
	if err := s.limits.loadTallies(); err != nil {
		return err
	}
	report, used, err := s.replay()
	if err != nil {
		return err
	}
	if o.refill != nil {
		if err := o.refill(s, &used); err != nil {
			return err
		}
	}
	if err := s.topics.load(s); err != nil {
		return err
	}
	s.nameLost(used)
	if err := s.limits.loadFloors(); err != nil {
		return err
	}
	if err := s.clients.load(s); err != nil {
		return err
	}
	next := s.ledger.Next()
	if err := s.timeline.load(s, max(cp.First, 1)); err != nil {
		return err
	}
	s.tail.init(next)
	s.open.init(next, s.flusher.time, s.maxGroup)
	s.first.Store(max(cp.First, 1))
	s.flusher.cur = s.tail.newest()
	s.position = s.journal.Position()
	s.committer.at = s.position
	s.durableFile.Store(cp.JournalFile)
	if report.Groups > 0 {
		s.durableFile.Store(s.position.File) // the file was there; a new one begins without groups
	}
	s.names.load(s)
	// Also if nothing was replayed: replay has freed the journal's files before the checkpoint, and the other meta page of state.db
	// may have an older one, which would need them.
	if err := s.checkpoint(true); err != nil {
		return err
	}
	s.checkpointedNext.Store(next)
	s.sweepBelow = s.flusher.nextID
	s.flusher.checkpointed = time.Now()
	s.checkSpace()
	if report.Groups > 0 || report.Damaged > 0 {
		s.log.Info("store recovered", "groups", report.Groups, "records", report.Records, "offset", next,
			"damaged", report.Damaged, "took", time.Since(start))
	}
	return nil
}

// loadTable reads the segments that the checkpoint knows and finds those that are open.
func (s *Store) loadTable() error {
	s.table.segs = make(map[uint32]*seg)
	f := &s.flusher
	var bad error
	err := s.state.Range(record.BucketSegments, nil, func(k, v []byte) bool {
		m, err := segment.ParseMeta(v)
		if err != nil {
			bad = &record.CorruptError{Path: s.opt.path("state.db"), Err: fmt.Errorf("table of segments, key %x: %w", k, err)}
			return false
		}
		g := s.table.add(m)
		g.saved = m.Sealed
		f.nextID = max(f.nextID, m.ID+1)
		if m.Sealed {
			return true
		}
		a := &active{seg: g, topics: m.Topics}
		if other := f.own[m.Client]; other != nil { // never written so, but one of them must be closed
			if other.id > a.id {
				a, other = other, a
			}
			s.table.update(other.seg, func(m *segment.Meta) { m.Sealed = true })
			f.dirty[other.id] = other
		}
		f.own[m.Client] = a
		return true
	})
	if err := errors.Join(err, bad); err != nil {
		return err
	}
	v, ok, err := s.state.Get(record.BucketMeta, nextSegmentKey)
	if ok && len(v) == 4 {
		f.nextID = max(f.nextID, binary.BigEndian.Uint32(v))
	}
	return err
}

// replay moves what the journal holds beyond the checkpoint to where it belongs.
func (s *Store) replay() (report journal.Report, used numbers, err error) {
	var groups []*Group
	var size int64
	flush := func() error {
		if len(groups) == 0 {
			return nil
		}
		err := s.flusher.move(groups)
		groups, size = nil, 0
		return err
	}
	report, err = s.journal.Replay(func(jg journal.Group) error {
		freed, err := s.replayMutations(jg)
		if err != nil {
			return err
		}
		for _, id := range freed {
			delete(used.topics, id) // what had it was deleted before
		}
		g, err := parseGroup(jg)
		if err != nil {
			return err
		}
		if len(g.Entries) == 0 {
			return nil
		}
		used.note(g)
		groups = append(groups, g)
		if size += g.bytes; size < flushBatch {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	s.count.damaged.Add(uint64(report.Damaged))
	for _, d := range report.Damage {
		s.log.Error("journal damaged, acknowledged records are lost", "file", d.Path, "pos", d.Pos, "len", d.Len,
			"groups", d.Last-d.First+1, "aside", d.Aside)
	}
	return report, used, err
}

// numbers are the topics and clients that replayed records refer to.
type numbers struct {
	topics map[uint32]struct{}
	client uint32 // the highest
}

func (u *numbers) note(g *Group) {
	if u.topics == nil {
		u.topics = make(map[uint32]struct{})
	}
	last := uint32(0)
	for i := range g.Entries {
		e := &g.Entries[i]
		if e.Topic != last {
			last = e.Topic
			u.topics[last] = struct{}{}
		}
		u.client = max(u.client, e.Client)
	}
}

// nameLost gives names to numbers whose own were lost with a damaged group. Otherwise the numbers would be given again, to
// others, and old records pass for theirs.
func (s *Store) nameLost(used numbers) {
	var list []Mutation
	for id := range used.topics {
		if id != 0 && s.TopicName(id) == "" {
			name := lostTopic(id)
			s.limits.add(id, name)
			s.topics.set(id, name)
			list = append(list, record.Put(record.BucketTopics, topicKey(id), []byte(name)))
		}
	}
	v, _, _ := s.state.Get(record.BucketMeta, nextClientKey)
	if used.client > 0 && (len(v) != 4 || binary.BigEndian.Uint32(v) <= used.client) {
		list = append(list, record.Put(record.BucketMeta, nextClientKey, binary.BigEndian.AppendUint32(nil, used.client+1)))
	}
	s.state.Apply(list)
}

// replayMutations applies a group's mutations, to the state and to what mirrors it. It returns the numbers of topics that were given up.
func (s *Store) replayMutations(jg journal.Group) (freed []uint32, _ error) {
	var list []Mutation
	for b := jg.Mutations; len(b) > 0; {
		m, n, err := record.ParseMutation(b)
		if err != nil {
			return nil, fmt.Errorf("group %d: %w", jg.Seq, err) // its checksum was right, so this is a bug or a newer format
		}
		b = b[n:]
		list = append(list, m)
		switch {
		case m.Bucket == record.BucketTopics && m.Value != nil && len(m.Key) == 4:
			id := binary.BigEndian.Uint32(m.Key)
			fresh := s.TopicName(id) == ""
			if l := s.limits.add(id, string(m.Value)); l != nil && fresh {
				l.counted = true // all there is comes with the journal
			}
			s.topics.set(id, string(m.Value))
		case m.Bucket == record.BucketTopics && m.Value == nil && len(m.Key) == 4:
			freed = append(freed, binary.BigEndian.Uint32(m.Key))
		case m.Bucket == record.BucketSegments && m.Value == nil && len(m.Key) == 4:
			s.table.remove(binary.BigEndian.Uint32(m.Key)) // its file is swept away later
		}
	}
	s.state.Apply(list)
	s.topics.drop(freed)
	for _, id := range freed {
		s.limits.drop(id)
	}
	return freed, nil
}

// parseGroup makes a group of the tail of one in the journal. The journal has verified its checksum.
func parseGroup(jg journal.Group) (*Group, error) {
	g := &Group{Base: jg.Base, Entries: make([]Entry, 0, jg.Count)}
	g.buf = append(g.buf, jg.Records...)
	for pos := 0; pos < len(g.buf); {
		r, n, err := record.Parse(g.buf[pos:])
		if err != nil {
			return nil, fmt.Errorf("group %d: %w", jg.Seq, err)
		}
		g.Entries = append(g.Entries, Entry{
			Time: r.Time, Topic: r.Topic, Client: r.Client, Expiry: r.Expiry, PacketID: r.PacketID, Flags: r.Flags,
			pos: uint32(pos), size: uint32(n), props: uint32(len(r.Props)),
		})
		pos += n
	}
	g.bytes = int64(cap(g.buf) + cap(g.Entries)*entryBytes + groupBytes)
	return g, nil
}

// loadTopics reads the numbers that have names as of the checkpoint.
func (s *Store) loadTopics() error {
	return s.state.Range(record.BucketTopics, nil, func(k, v []byte) bool {
		if len(k) == 4 {
			s.limits.add(binary.BigEndian.Uint32(k), string(v))
			s.topics.set(binary.BigEndian.Uint32(k), string(v))
		}
		return true
	})
}

func (f *flusher) init(s *Store, cp state.Checkpoint) {
	*f = flusher{
		s: s, wake: make(chan struct{}, 1), nextID: 1, time: cp.Time, saved: cp,
		own: make(map[uint32]*active), dirty: make(map[uint32]*active), dirs: make(map[uint32]struct{}),
		tallied: make(map[uint32]*TopicLimit),
	}
}
