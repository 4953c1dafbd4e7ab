// Package vfs is the only door from the store to the disk, so that a test can stand in for the
// disk: one that loses power, tears writes, fails an operation or fills up (package vfstest).
//
// What the store may assume of a disk is written in docs/FORMAT.md. In short: bytes survive a
// power cut once Datasync or Sync of their file has returned; a file's name survives once SyncDir of its
// directory has returned; everything else may be kept, lost, or kept in part, in any order.
package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
)

// ErrLocked means that somebody else, in this process or another, holds the lock.
var ErrLocked = errors.New("locked by another process")

// FS is a tree of files. Names are paths as package os takes them. Implementations are safe
// for concurrent use.
type FS interface {
	// OpenFile opens name with the flags of package os. A file that it creates has a name that
	// survives a power cut only after SyncDir of its directory.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	Remove(name string) error
	Rename(oldname, newname string) error
	// MkdirAll makes a directory and its parents; their names need SyncDir of each parent.
	MkdirAll(name string, perm fs.FileMode) error
	ReadDir(name string) ([]fs.DirEntry, error)
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the names in a directory durable: what was created, renamed or removed there.
	SyncDir(name string) error
	// Lock takes an exclusive lock on name, which it creates if missing, for the life of the process or until
	// the closer is closed. ErrLocked means that another holder has it.
	Lock(name string) (io.Closer, error)
	// Free returns the bytes an unprivileged writer may still use on the disk that holds name.
	Free(name string) (uint64, error)

	// External returns a path that package os can open, for a library (bbolt) that insists on opening
	// its file itself. Its writes bypass the FS, so each of its transactions must go through Commit.
	External(name string) (string, error)
	// Commit runs fn, which makes one all-or-nothing durable change to the external file name. A
	// test disk counts it as one write-like operation: after a power cut fn is not run at all.
	Commit(name string, fn func() error) error
}

// File is an open file. Reads and writes name their position, so no cursor is shared.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Name() string
	Size() (int64, error)
	Truncate(size int64) error
	// Preallocate makes the file at least size bytes long. What it adds are zeros in blocks that are allocated *and
	// written*, so that later overwrites change no file-system metadata and Datasync need not write any; what the
	// file holds already stays. It does not sync. When it fails, the file may be longer than before.
	Preallocate(size int64) error
	// Datasync makes the file's bytes and size durable (fdatasync).
	Datasync() error
	// Sync is Datasync and all other metadata (fsync).
	Sync() error
}

// Scarce says whether an error means that there was no file descriptor left, for this process or the machine, and nothing else: nothing was
// opened, so nothing has happened to what is on the disk, and the same may be tried again. An error that joins several must be nothing else in all of them.
func Scarce(err error) bool {
	switch e := err.(type) { //nolint:errorlint // this is what takes it apart
	case nil:
		return false
	case syscall.Errno:
		return e == syscall.EMFILE || e == syscall.ENFILE
	case interface{ Unwrap() []error }:
		all := e.Unwrap()
		return len(all) > 0 && !slices.ContainsFunc(all, func(err error) bool { return !Scarce(err) })
	}
	return Scarce(errors.Unwrap(err))
}

// MkdirAll makes the directory name and its parents with f, and makes the names of those that were missing durable.
func MkdirAll(f FS, name string, perm fs.FileMode) error {
	var parents []string // of the missing ones, the deepest first
	for dir := filepath.Clean(name); ; {
		_, err := f.Stat(dir)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make directory %s: %w", name, err)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			break
		}
		parents = append(parents, parent)
		dir = parent
	}
	if err := f.MkdirAll(name, perm); err != nil {
		return fmt.Errorf("make directory %s: %w", name, err)
	}
	for _, parent := range parents {
		if err := f.SyncDir(parent); err != nil {
			return fmt.Errorf("make directory %s: %w", name, err)
		}
	}
	return nil
}
