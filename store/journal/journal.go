// Package journal is the write-ahead log that group commit writes: one group, one write, one fdatasync.
//
// data/journal/NNN.jrn are slots: files of one size, preallocated and mostly zeroed (prepare.go), whose names never
// change, so a slot is recycled without touching the directory. Each life of a slot has a file seq,
// higher than all before, and a random salt. A slot is
//
//	header  one block of 4 KiB: record.FileHeader "EMQJ" {file seq u64 | file size u64 | salt u64}, zeros
//	groups  each from a block boundary: header of 64 bytes | records | mutations | zeros to the next block
//
// and a group's header is
//
//	magic "EMQG" | crc u32 | file seq u64 | group seq u64 | synced seq u64 | base offset u64 |
//	records length u32 | mutations length u32 | record count u32 | reserved u32 | salt u64
//
// crc is CRC-32C over the rest of the header, the records and the mutations. Group seqs count up by
// one for ever. Groups begin on blocks so that no sector that holds an acknowledged group is written
// again. The salt is there because payloads come from strangers: while replay looks for a group behind
// damage, a payload that imitates one must not be taken for one. docs/FORMAT.md has the full rules.
package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// HeaderSize is what a buffer for Append must reserve in front of its records.
const HeaderSize = 64

// BlockSize is the unit in which groups are laid out: the size of a page, the most that a disk
// spoils when the power goes while it writes.
const BlockSize = 4096

const (
	defaultFileBytes = 64 << 20
	minFileBytes     = 4 * BlockSize
	maxFileBytes     = 1 << 30 // lengths within a group are u32
)

// Errors that callers branch on.
var (
	// ErrVersion means that a file is sound but newer than this build.
	ErrVersion = record.ErrVersion
	// ErrFailed means that an earlier write or fsync failed, so the journal takes nothing more.
	ErrFailed = errors.New("journal: stopped after an I/O error")
	// ErrNoRoom means that the disk had no room for the next file, or the process no descriptor. Nothing was written, and the same
	// Append may be tried again once Release or somebody else has made room.
	ErrNoRoom = errors.New("journal: no room for the next file")
	// ErrTooLarge means that a group does not fit a file (MaxGroup).
	ErrTooLarge = errors.New("journal: group larger than a file")
	// ErrReadOnly means that the journal was opened to be looked at.
	ErrReadOnly = errors.New("journal: opened read-only")
)

// CorruptError says where a file stopped making sense.
type CorruptError = record.CorruptError

// Options says where the journal is and how large its files are.
type Options struct {
	Dir        string
	DamagedDir string       // damaged groups are copied there; "" copies nothing
	FileBytes  int64        // size of a new file; 0 means 64 MiB
	ReadOnly   bool         // change nothing on the disk: Replay only
	Salvage    bool         // hand out every sound group there is, in order, and call nothing damage: nobody knows where replay begins
	FS         vfs.FS       // the disk
	Logger     *slog.Logger // nil discards
}

// Position is a place between two groups: the next group has seq Group, and is in the file with
// seq File or a later one. The zero Position is the beginning.
type Position struct{ File, Group uint64 }

// GroupHeader says what is in a buffer given to Append.
type GroupHeader struct {
	Base       uint64 // offset of the first record
	Count      int    // number of records
	RecordsLen int    // bytes of records behind the header; mutations follow
	Sum        uint32 // CRC-32C of the first Summed bytes of the records, for a caller that has it
	Summed     int
}

// Group is a group that Replay found.
type Group struct {
	Seq                uint64
	Base               uint64
	Count              int
	Records, Mutations []byte // valid until the function returns
}

// Damage is a stretch of a journal file that held acknowledged groups and no longer does.
type Damage struct {
	Path        string
	Pos, Len    int64
	First, Last uint64 // seqs of the lost groups
	Aside       string // the copy of it, "" if there is none
}

// Report says what Replay found.
type Report struct {
	Groups  int
	Records int
	Damaged int      // groups lost; one may be spread over several Damage
	Damage  []Damage // in order
	// TornPath and TornPos tell where the log was cut: from there on nothing was ever acknowledged.
	// TornPath is empty if the log ended cleanly. Dropped counts the sound groups behind the cut.
	TornPath string
	TornPos  int64
	Dropped  int
	Rebuilt  int      // header blocks rebuilt from the groups behind them
	Next     Position // where Append goes on
}

// Stats is what the journal holds now.
type Stats struct {
	Files, Free int   // slots in use and slots to be recycled
	Bytes       int64 // of all slots
}

// Journal is an open journal. Append and Sync are for one goroutine at a time, whoever commits; Prepare,
// Release, Position and Stats may be called beside it.
type Journal struct {
	opts Options
	from Position

	// Of whoever commits.
	cur    *slot
	pos    int64        // where the next group goes in cur
	group  uint64       // seq of the last group appended
	synced uint64       // seq of the last group known durable
	recent atomic.Int64 // average bytes of the last few groups

	prepareMu sync.Mutex // held while the next file is being made; taken before mu

	mu       sync.Mutex
	live     []*slot // hold groups that a replay may need; ascending seq, cur is the last
	free     []*slot // to be recycled
	removed  []*slot // being deleted
	next     *slot   // prepared, follows cur
	nextSeq  uint64  // of the next life of a slot
	position Position
	failed   error
	closed   bool
}

// Open reads the slots' headers. It returns ErrVersion if one was written by a newer build.
// from is where the last checkpoint says that replay begins.
func Open(o Options, from Position) (_ *Journal, err error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FileBytes == 0 {
		o.FileBytes = defaultFileBytes
	}
	o.FileBytes = min(padded(o.FileBytes), maxFileBytes)
	if o.FileBytes < minFileBytes {
		return nil, fmt.Errorf("journal files of %d bytes are too small, the least is %d", o.FileBytes, minFileBytes)
	}
	j := &Journal{opts: o, from: Position{from.File, max(from.Group, 1)}}
	defer func() {
		if err != nil {
			err = errors.Join(err, j.Close())
		}
	}()
	if err := j.makeDir(o.Dir); err != nil {
		return nil, fmt.Errorf("make journal directory: %w", err)
	}
	if err := j.syncNames(); err != nil {
		return nil, fmt.Errorf("sync journal directory: %w", err)
	}
	names, err := o.FS.ReadDir(o.Dir)
	if err != nil && !(o.ReadOnly && errors.Is(err, fs.ErrNotExist)) {
		return nil, fmt.Errorf("read journal directory: %w", err)
	}
	for _, name := range names {
		n, ok := slotNumber(name.Name())
		if !ok {
			o.Logger.Warn("strange file in the journal directory", "path", filepath.Join(o.Dir, name.Name()))
			continue
		}
		s, err := j.openSlot(n)
		if err != nil {
			return nil, err
		}
		j.free = append(j.free, s) // until Replay has looked at it
	}
	return j, nil
}

// makeDir makes a directory, unless it is there, and the names that lead to it durable.
func (j *Journal) makeDir(dir string) error {
	if _, err := j.opts.FS.Stat(dir); err == nil || j.opts.ReadOnly {
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := j.makeDir(parent); err != nil {
			return err
		}
	}
	if err := j.opts.FS.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	return j.opts.FS.SyncDir(parent)
}

// syncNames makes the names of the files there are durable. A process that was killed may have left
// behind a file whose name was not, and replay is about to rely on it.
func (j *Journal) syncNames() error {
	if j.opts.ReadOnly {
		return nil
	}
	return errors.Join(j.opts.FS.SyncDir(j.opts.Dir), j.opts.FS.SyncDir(filepath.Dir(j.opts.Dir)))
}

// MaxGroup is the largest group that fits a file, header included.
func (j *Journal) MaxGroup() int { return int(j.opts.FileBytes - BlockSize) }

// Position is the position behind the last group.
func (j *Journal) Position() Position {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.position
}

// Stats tells how much the journal holds.
func (j *Journal) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	st := Stats{Files: len(j.live), Free: len(j.free)}
	slots := slices.Concat(j.live, j.free)
	if j.next != nil {
		slots = append(slots, j.next)
		st.Free++
	}
	for _, s := range slots {
		st.Bytes += s.size
	}
	return st
}

// Spare returns the paths of the files, as they were opened, that no replay needs: their life was over before it begins.
func (j *Journal) Spare() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var paths []string
	for _, s := range j.free {
		if !s.hurt && s.seq < j.from.File {
			paths = append(paths, s.path)
		}
	}
	return paths
}

// Close releases the files. It syncs nothing. Call it when nobody uses the journal any more.
func (j *Journal) Close() error {
	j.prepareMu.Lock()
	defer j.prepareMu.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil
	}
	j.closed = true
	var errs []error
	slots := slices.Concat(j.live, j.free)
	if j.next != nil {
		slots = append(slots, j.next)
	}
	for _, s := range slots {
		errs = append(errs, s.file.Close())
	}
	return errors.Join(errs...)
}
