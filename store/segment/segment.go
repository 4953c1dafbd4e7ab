// Package segment reads and writes the files that hold one client's publishes.
//
// A segment is a header of 64 bytes and then records (package record), back to back. The header is
// a record.FileHeader "EMQS" with the fields
//
//	segment id u32 | client u32 | base offset u64 | created i64 (µs since 1970) | zeros
//
// A segment does not know its own length: the checkpoint does (Meta.Bytes), and what lies behind it
// is overwritten. docs/FORMAT.md has the full rules.
package segment

import (
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// HeaderSize is the pos of a segment's first record.
const HeaderSize = record.FileHeaderSize

// Shared is the client number of segments that clients share who have published next to nothing.
const Shared uint32 = 0xFFFFFFFF

// MaxBytes bounds a segment, since the ledger keeps a pos in 32 bits.
const MaxBytes = 1<<32 - 1

// ErrVersion means that a segment is sound but newer than this build.
var ErrVersion = record.ErrVersion

// CorruptError says where a segment stopped making sense.
type CorruptError = record.CorruptError

// Header is what a segment says of itself.
type Header struct {
	ID, Client uint32 // ID is never 0
	Base       uint64 // no record has a lower offset
	Created    int64  // µs since 1970
}

// Meta is what the state keeps of a segment.
type Meta struct {
	ID, Client          uint32
	Bytes               int64 // valid length, header included
	Base, Last          uint64
	FirstTime, LastTime int64
	Records             uint64
	Sealed              bool
	Topics              []uint32 // distinct, ascending; for retention by topic
}

// Dir returns the directory of a client's segments; for Shared the one of shared segments. Its name
// needs SyncDir of root, a new segment's name SyncDir of it.
func Dir(root string, client uint32) string { return "" }

// Path returns the path of a segment.
func Path(root string, client, id uint32) string { return "" }

// Writer appends to a segment. It belongs to one goroutine.
type Writer struct{}

// Create makes a new segment, and its directory if need be. A file of that name is a leftover that
// no checkpoint knows of, and is overwritten. The names are not synced (Dir).
func Create(fsys vfs.FS, root string, h Header) (*Writer, error) { return nil, nil }

// OpenWrite opens a segment to append at length, its valid length as of the checkpoint.
func OpenWrite(fsys vfs.FS, root string, client, id uint32, length int64) (*Writer, error) {
	return nil, nil
}

// Append writes whole records with a single write, without a sync, and returns the pos of the first.
// After an error nothing counts as written, and the same Append may be tried again.
func (w *Writer) Append(b []byte) (pos int64, err error) { return 0, nil }

// Size is the length of the segment with all that was appended.
func (w *Writer) Size() int64 { return 0 }

// Path returns the segment's path.
func (w *Writer) Path() string { return "" }

// Sync makes the segment's bytes durable, not its name.
func (w *Writer) Sync() error { return nil }

// Close releases the file. It syncs nothing.
func (w *Writer) Close() error { return nil }

// Reader reads a segment. It is safe for concurrent use, also beside a Writer of the same segment.
type Reader struct{}

// OpenRead opens a segment and checks its header.
func OpenRead(fsys vfs.FS, path string) (*Reader, error) { return nil, nil }

// ReadAt reads from byte pos of the file on, as io.ReaderAt.
func (r *Reader) ReadAt(p []byte, pos int64) (int, error) { return 0, nil }

// Header returns what the segment says of itself.
func (r *Reader) Header() Header { return Header{} }

// Path returns the segment's path.
func (r *Reader) Path() string { return "" }

// Close releases the file.
func (r *Reader) Close() error { return nil }

// Scan calls fn with every record up to length (-1: the file's end) in order. r aliases a buffer that
// is reused. Where it finds something else than a record it returns a *CorruptError.
func Scan(fsys vfs.FS, path string, length int64, fn func(pos int64, r record.Record) error) error {
	return nil
}

// AppendMeta encodes m at the end of dst.
func AppendMeta(dst []byte, m Meta) []byte { return dst }

// ParseMeta decodes what AppendMeta encoded. A newer encoding gives ErrVersion.
func ParseMeta(b []byte) (Meta, error) { return Meta{}, nil }
