// Package ledger keeps the arrival order: one entry of fixed size a record, which says where the record is.
//
// data/ledger/<index>.ldg holds the entries of the offsets from index × 262144 on. It is a header of
// 64 bytes, a record.FileHeader "EMQL" with the fields
//
//	entry size u32 | entries a file u32 | first offset u64 | zeros
//
// and then entries of 40 bytes:
//
//	crc u32 | topic u32 | client u32 | segment u32 | pos u32 | length u32 | expiry u32 |
//	packet id u16 | flags u16 | time i64
//
// crc is CRC-32C over the offset (u64) and the rest of the entry, so an entry in the wrong place is
// as bad as a damaged one. Segment 0 means that there are no bytes behind the entry. docs/FORMAT.md
// has the full rules.
package ledger

import (
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// FileEntries is the number of entries a file holds.
const FileEntries = 262144

// EntrySize is the size of an entry on the disk.
const EntrySize = 40

// ErrVersion means that a file is sound but newer than this build.
var ErrVersion = record.ErrVersion

// CorruptError says where a file stopped making sense.
type CorruptError = record.CorruptError

// Entry says what a record is and where.
type Entry struct {
	Topic, Client uint32
	Segment       uint32 // 0: no bytes behind it (transient, or lost)
	Pos, Length   uint32 // of the whole record, in its segment
	Expiry        uint32
	PacketID      uint16
	Flags         record.Flags
	Time          int64
	Bad           bool // the entry on the disk was damaged or missing: everything else is zero
}

// Ledger is an open ledger. Append, Sync and DropBefore belong to one goroutine; all else may be
// called beside it.
type Ledger struct{}

// Open opens the ledger in dir with the entries [first, next). What lies behind next on the disk is
// overwritten. Nothing is written before the first Append.
func Open(fsys vfs.FS, dir string, first, next uint64) (*Ledger, error) { return nil, nil }

// Append writes entries for the offsets from Next on, with one write a file touched and no sync.
// After an error nothing counts as written, and the same Append may be tried again.
func (l *Ledger) Append(entries []Entry) error { return nil }

// Sync makes what was appended durable, names included.
func (l *Ledger) Sync() error { return nil }

// Read reads the entries from offset from on into dst and returns how many: fewer than len(dst) only
// at Next. It never fails for the sake of damaged entries: those have Bad set, and are counted.
func (l *Ledger) Read(from uint64, dst []Entry) (n int, err error) { return 0, nil }

// Search returns the lowest offset whose record has at least time (µs since 1970), or Next.
func (l *Ledger) Search(time int64) uint64 { return 0 }

// First is the lowest offset kept.
func (l *Ledger) First() uint64 { return 0 }

// Next is the offset that the next entry will get.
func (l *Ledger) Next() uint64 { return 0 }

// Damaged counts the bad entries that were read.
func (l *Ledger) Damaged() uint64 { return 0 }

// Bytes is the size of the ledger on the disk.
func (l *Ledger) Bytes() int64 { return 0 }

// DropBefore moves First to offset and removes the files that lie wholly before it.
func (l *Ledger) DropBefore(offset uint64) error { return nil }

// Close releases the files. It syncs nothing.
func (l *Ledger) Close() error { return nil }
