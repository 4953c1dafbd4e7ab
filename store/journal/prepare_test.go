package journal

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/edgemq/edgemq/store/vfs"
)

// While groups are large the next file is only reserved. Once they are small it is filled with zeros and gone on to at once, and what was left
// early is filled when it is used again.
func TestFilesAreFilledForSmallGroups(t *testing.T) {
	o := options(t.TempDir())
	if !canReserve(t) {
		t.Skip("this file system cannot reserve blocks")
	}
	j, _, _ := open(t, o, Position{})
	prepare := func(average int64, want int64) *slot {
		t.Helper()
		j.recent.Store(average)
		if err := j.Prepare(); err != nil {
			t.Fatal(err)
		}
		if j.next.written != want {
			t.Fatalf("with groups of %d bytes the next file is written up to %d, want %d", average, j.next.written, want)
		}
		return j.next
	}
	if j.cur.written != small {
		t.Errorf("the first file is written up to %d", j.cur.written)
	}
	prepare(largeAverage, BlockSize)
	j.recent.Store(8 * largeAverage)
	write(t, j, 16, nil) // the first file takes 15 groups
	left := j.cur
	prepare(largeAverage, BlockSize)
	j.recent.Store(largeAverage)
	write(t, j, 17, nil)
	if j.cur != left {
		t.Error("a file that is not filled was left for another one")
	}
	prepare(0, small)
	end := write(t, j, 18, nil)
	if j.cur == left || left.written != 3*BlockSize {
		t.Errorf("a small group stays in a file that is written up to %d", left.written)
	}
	j.Release(end)
	if again := prepare(0, small); again.number != left.number {
		t.Errorf("file %d is used again, want %d", again.number, left.number)
	}
	from := Position{j.cur.seq, 18}
	j.Close()
	if _, seqs, report := open(t, o, from); !slices.Equal(seqs, upTo(18, 18)) || report.Damaged != 0 {
		t.Errorf("replay gave %v, %+v", seqs, report)
	}
}

func canReserve(t *testing.T) bool {
	f, err := vfs.OS.OpenFile(t.TempDir()+"/a", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return !errors.Is(vfs.Reserve(f, 1<<20), errors.ErrUnsupported)
}

// A file system that cannot reserve gets its files written.
func TestFilesThatCannotBeReserved(t *testing.T) {
	o := options(t.TempDir())
	o.FS = plain{vfs.OS}
	j, _, _ := open(t, o, Position{})
	j.recent.Store(largeAverage)
	if err := j.Prepare(); err != nil || j.next.written != small {
		t.Errorf("written up to %d, %v", j.next.written, err)
	}
	write(t, j, 40, nil)
	j.Close()
	if _, seqs, _ := open(t, o, Position{}); !slices.Equal(seqs, upTo(1, 40)) {
		t.Errorf("replay gave %v", seqs)
	}
}

// plain is a disk whose files do what vfs.File says and no more.
type plain struct{ vfs.FS }

func (p plain) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	f, err := p.FS.OpenFile(name, flag, perm)
	return struct{ vfs.File }{f}, err
}

// A file that was reserved, and cannot be filled since the disk is full, does as it is.
func TestNoRoomToFill(t *testing.T) {
	if !canReserve(t) {
		t.Skip("this file system cannot reserve blocks")
	}
	o := options(t.TempDir())
	var full atomic.Bool
	o.FS = fullDisk{vfs.OS, &full}
	j, _, _ := open(t, o, Position{})
	j.recent.Store(largeAverage)
	if err := j.Prepare(); err != nil || j.next.written != BlockSize {
		t.Fatalf("written up to %d, %v", j.next.written, err)
	}
	j.recent.Store(0)
	full.Store(true)
	if err := j.Prepare(); err != nil || j.next.written != BlockSize {
		t.Errorf("on a full disk it is written up to %d, %v", j.next.written, err)
	}
	full.Store(false)
	write(t, j, 5, nil)
	if err := j.Prepare(); err != nil || j.next.written != small {
		t.Errorf("with room again it is written up to %d, %v", j.next.written, err)
	}
}

// fullDisk is a disk whose blocks cannot be written while full is set, though they can be reserved.
type fullDisk struct {
	vfs.FS
	full *atomic.Bool
}

func (d fullDisk) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	f, err := d.FS.OpenFile(name, flag, perm)
	return fullFile{f, d.full}, err
}

type fullFile struct {
	vfs.File
	full *atomic.Bool
}

func (f fullFile) Reserve(size int64) error { return vfs.Reserve(f.File, size) }

func (f fullFile) WriteAt(b []byte, pos int64) (int, error) {
	if f.full.Load() {
		return 0, &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
	}
	return f.File.WriteAt(b, pos)
}
