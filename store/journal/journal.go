// Package journal is the write-ahead log that group commit writes: one group, one write, one fdatasync.
//
// data/journal/NNN.jrn are slots: files of one size, preallocated and zeroed, whose names never
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
	"log/slog"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// HeaderSize is what a buffer for Append must reserve in front of its records.
const HeaderSize = 64

// BlockSize is the unit in which groups are laid out: the size of a page, the most that a disk
// spoils when the power goes while it writes.
const BlockSize = 4096

// Errors that callers branch on.
var (
	// ErrVersion means that a file is sound but newer than this build.
	ErrVersion = record.ErrVersion
	// ErrFailed means that an earlier write or fsync failed, so the journal takes nothing more.
	ErrFailed = errors.New("journal: stopped after an I/O error")
	// ErrNoRoom means that the disk had no room for the next file. Nothing was written, and the same
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
	Damaged int      // groups lost, the sum over Damage
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

// Journal is an open journal. Append and Sync belong to one goroutine, the committer; Prepare,
// Release and Stats may be called beside it.
type Journal struct {
	opts Options
}

// Open reads the slots' headers. It returns ErrVersion if one was written by a newer build.
func Open(o Options, from Position) (*Journal, error) { return &Journal{opts: o}, nil }

// Replay calls fn with every group whose seq is at least from.Group, in order and one at a time, and
// makes the journal ready for Append behind the last one.
func (j *Journal) Replay(fn func(g Group) error) (Report, error) { return Report{}, nil }

// Append writes one group with a single write and does not sync. buf begins with HeaderSize bytes
// that Append fills in, then g.RecordsLen bytes of records, then mutations. It is padded with zeros
// to BlockSize, within its capacity if that suffices. It returns the position behind the group.
// After an error other than ErrNoRoom and ErrTooLarge the journal takes nothing more.
func (j *Journal) Append(buf []byte, g GroupHeader) (Position, error) { return Position{}, nil }

// Sync makes all that was appended durable.
func (j *Journal) Sync() error { return nil }

// Prepare makes the next file ready ahead of need. It returns at once if it is.
func (j *Journal) Prepare() error { return nil }

// Release lets files that lie wholly before a position be recycled. The caller has made sure that
// no replay will begin before it.
func (j *Journal) Release(before Position) {}

// MaxGroup is the largest group that fits a file, header included.
func (j *Journal) MaxGroup() int { return int(j.opts.FileBytes - BlockSize) }

// Position is the position behind the last group.
func (j *Journal) Position() Position { return Position{} }

// Stats tells how much the journal holds.
func (j *Journal) Stats() Stats { return Stats{} }

// Close releases the files. It syncs nothing.
func (j *Journal) Close() error { return nil }
