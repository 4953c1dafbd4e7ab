// Package vfstest is a disk in memory that loses power, fails operations and fills up.
//
// It keeps what a crash could show: for each file the bytes that are on the disk for certain and the writes since then
// that are not, and the same for the names in each directory. AfterCut makes from that one of the disks
// a machine could find when the power comes back:
//
//   - Bytes are certain after Datasync or Sync of their file; names after SyncDir of their directory. A file
//     whose name is not certain may vanish, synced bytes and all; a removed one may come back.
//   - Other writes are kept, lost or torn, sector by sector (512 bytes), in any order, and so are sizes. A sector
//     has the content of one moment: a later write is not there without an earlier one to the same sector. The bytes
//     of a lost write may be garbage, as if the power went while the drive wrote the sector; bytes of a sector that
//     no pending write touched are spared, unless TearSectors says otherwise.
//   - Changes of names are kept or lost each for itself, except that one needs the earlier ones of the same name. A rename
//     happens as a whole or not at all.
//
// AfterKill makes the disk that the next process finds when one has died alone (kill -9).
package vfstest

import (
	"errors"
	"io/fs"
	"sync"
	"time"

	"github.com/edgemq/edgemq/store/vfs"
)

// ErrPowerCut is what every operation returns once the power is off.
var ErrPowerCut = errors.New("vfstest: the power is off")

// Never is a cut point that no test reaches.
const Never = 1 << 62

// Disk is a disk in memory. It is safe for concurrent use.
type Disk struct {
	commitMu sync.Mutex // held while a Commit runs, so that AfterCut copies no half-made transaction; before mu

	mu       sync.Mutex
	root     *node
	names    []nameOp // changes of names that are not certain yet, oldest first
	seq      uint64   // numbers pending changes, of bytes and names alike
	cutAt    int      // so many write-like operations succeed
	ops      int
	counts   [kinds]int
	cut      bool
	faults   []*fault
	locks    map[string]bool
	capacity int64 // 0 is no limit
	used     int64
	tear     func(name string) bool
	ext      external
	images   []*Disk // made from this one; Close closes them
}

var _ vfs.FS = (*Disk)(nil)

// NewDisk returns an empty disk on which cutAfter write-like operations succeed and the next one meets a power cut:
// it and all later ones fail with ErrPowerCut, reads included.
//
// Write-like are WriteAt, Truncate, Preallocate, Datasync, Sync, SyncDir, Remove, Rename, Commit, and, if they make
// something that was not there, OpenFile, MkdirAll and Lock.
func NewDisk(cutAfter int) *Disk {
	return &Disk{root: newDir(), cutAt: cutAfter, locks: make(map[string]bool)}
}

// Close removes the real files that External made, here and in the images that AfterCut took of this disk.
func (d *Disk) Close() error {
	d.commitMu.Lock()
	defer d.commitMu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, image := range d.images {
		errs = append(errs, image.Close())
	}
	d.images = nil
	return errors.Join(append(errs, d.ext.close())...)
}

// CutAfter moves the power cut: n more write-like operations succeed.
func (d *Disk) CutAfter(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cutAt = d.ops + n
}

// Cut says whether the power has gone.
func (d *Disk) Cut() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cut
}

// Ops returns how many write-like operations there have been, the one at the cut included.
func (d *Disk) Ops() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ops
}

// Count returns how many operations of these kinds there have been.
func (d *Disk) Count(of ...Kind) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, k := range of {
		n += d.counts[k]
	}
	return n
}

// SetCapacity limits the bytes on the disk, counted in blocks of 4 KiB; 0 means no limit. A write that does not fit is
// made as far as it fits and returns ENOSPC.
func (d *Disk) SetCapacity(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.capacity = n
}

// Used returns the bytes that files take, counted in blocks of 4 KiB.
func (d *Disk) Used() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used + d.ext.used()
}

// TearSectors makes AfterCut harsher for files whose name want accepts: a sector that was being written may be garbage as a
// whole, with the certain bytes in it. This holds for drives that promise no "powersafe overwrite".
func (d *Disk) TearSectors(want func(name string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tear = want
}

// verdict says what becomes of an operation.
type verdict struct {
	err      error
	take     bool // it has its effect on what is in memory, err or not
	short    int  // with take: only this many bytes of a write; -1 for all
	inFlight bool // the power goes during it
}

// begin counts an operation and says what becomes of it. It is called with d.mu held.
func (d *Disk) begin(op Op) verdict {
	if d.cut {
		return verdict{err: op.error(ErrPowerCut)}
	}
	d.counts[op.Kind]++
	op.Nth = d.counts[op.Kind]
	op.Index = -1
	if op.Kind.writes() {
		op.Index = d.ops
		d.ops++
		if op.Index >= d.cutAt {
			d.cut = true
			return verdict{err: op.error(ErrPowerCut), take: true, short: -1, inFlight: true}
		}
	}
	for _, f := range d.faults {
		if err := f.rule(op); err != nil {
			return faulty(op, err)
		}
	}
	return verdict{take: true, short: -1}
}

// next numbers a pending change.
func (d *Disk) next() uint64 {
	d.seq++
	return d.seq
}

// info describes a node to callers of Stat and ReadDir.
type info struct {
	name string
	size int64
	mode fs.FileMode
	time time.Time
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return i.mode }
func (i info) ModTime() time.Time { return i.time }
func (i info) IsDir() bool        { return i.mode.IsDir() }
func (i info) Sys() any           { return nil }
