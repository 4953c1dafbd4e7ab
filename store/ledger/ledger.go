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
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// FileEntries is the number of entries a file holds.
const FileEntries = 262144

// ErrVersion means that a file is sound but newer than this build.
var ErrVersion = record.ErrVersion

// CorruptError says where a file stopped making sense.
type CorruptError = record.CorruptError

// Ledger is an open ledger. Append, Sync and DropBefore belong to one goroutine; all else may be
// called beside it.
type Ledger struct {
	fsys    vfs.FS
	dir     string
	perFile uint64    // entries
	certain [2]uint64 // first and next at Open: these entries are on the disk for certain, and the headers before them

	first, next atomic.Uint64
	damaged     atomic.Uint64

	// The appender's own.
	buf      []byte
	tail     vfs.File // the file that next is in
	tailFile uint64   // its index
	sent     int64    // up to here in it vfs.Writeback has begun
	synced   bool     // nothing was written since the last Sync
	created  bool     // a file was made whose name is not synced
	made     bool     // the directory is there
	err      error    // of a failed sync: what is on the disk is not known any more

	mu    sync.Mutex
	files map[uint64]*handle // files open for reading, by index
	clock uint64             // counts uses, to find the handle that was not used for longest
}

// Open opens the ledger in dir with the entries [first, next). What lies behind next on the disk is
// overwritten. Nothing is written before the first Append.
func Open(fsys vfs.FS, dir string, first, next uint64) (*Ledger, error) {
	return open(fsys, dir, first, next, FileEntries)
}

// OpenAll opens whatever there is of the ledger in dir, to be read: what its files do not have is Bad.
func OpenAll(fsys vfs.FS, dir string) (*Ledger, error) {
	l, err := Open(fsys, dir, 1, 1)
	if err != nil {
		return nil, err
	}
	files, err := l.list()
	if err != nil || len(files) == 0 {
		return l, err
	}
	return Open(fsys, dir, 1, (files[len(files)-1]+1)*FileEntries)
}

// open is Open with files of any size, for tests.
func open(fsys vfs.FS, dir string, first, next, perFile uint64) (*Ledger, error) {
	if first > next {
		return nil, fmt.Errorf("open ledger: first offset %d is behind the next one %d", first, next)
	}
	l := &Ledger{fsys: fsys, dir: dir, perFile: perFile, certain: [2]uint64{first, next}, synced: true, files: make(map[uint64]*handle)}
	l.first.Store(first)
	l.next.Store(next)
	files, err := l.list()
	if err != nil {
		return nil, err
	}
	for _, i := range files {
		if first < next && i >= first/l.perFile && i <= (next-1)/l.perFile {
			// One header read a file; a damaged one is put right by the next write, and the entries speak for themselves.
			if err := l.checkVersion(i); err != nil {
				return nil, err
			}
		}
	}
	return l, nil
}

func (l *Ledger) path(index uint64) string {
	return filepath.Join(l.dir, fmt.Sprintf("%08x.ldg", index))
}

// list lists the indexes of the files there are, ascending up to 2³².
func (l *Ledger) list() ([]uint64, error) {
	names, err := l.fsys.ReadDir(l.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read ledger directory: %w", err)
	}
	var all []uint64
	for _, name := range names {
		hex, ok := strings.CutSuffix(name.Name(), ".ldg")
		i, err := strconv.ParseUint(hex, 16, 46)
		if ok && err == nil && filepath.Base(l.path(i)) == name.Name() {
			all = append(all, i)
		}
	}
	return all, nil
}

// First is the lowest offset kept.
func (l *Ledger) First() uint64 { return l.first.Load() }

// Next is the offset that the next entry will get.
func (l *Ledger) Next() uint64 { return l.next.Load() }

// Damaged counts the bad entries that were read.
func (l *Ledger) Damaged() uint64 { return l.damaged.Load() }

// Bytes is the size of the ledger on the disk.
func (l *Ledger) Bytes() int64 {
	first, next := l.first.Load(), l.next.Load()
	if first == next {
		return 0
	}
	files := (next-1)/l.perFile - first/l.perFile + 1
	return int64(files*headerSize + (next-first/l.perFile*l.perFile)*EntrySize)
}

// DropBefore moves First to offset and removes the files that lie wholly before it. A file that a power
// cut brings back is removed at the next call.
func (l *Ledger) DropBefore(offset uint64) error {
	offset = min(offset, l.next.Load())
	if offset > l.first.Load() {
		l.first.Store(offset)
	}
	files, err := l.list()
	if err != nil {
		return err
	}
	var errs []error
	for _, i := range files {
		if i < l.first.Load()/l.perFile {
			l.forget(i)
			if l.tail != nil && l.tailFile == i { // full, and the next entry begins another
				errs = append(errs, l.Sync(), l.tail.Close())
				l.tail = nil
			}
			errs = append(errs, l.fsys.Remove(l.path(i)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("drop from the ledger: %w", err)
	}
	return nil
}

// Close releases the files. It syncs nothing. Call it when nobody uses the ledger any more.
func (l *Ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, h := range l.files {
		errs = append(errs, h.file.Close())
	}
	clear(l.files)
	if l.tail != nil {
		errs = append(errs, l.tail.Close())
		l.tail = nil
	}
	return errors.Join(errs...)
}
