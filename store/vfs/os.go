package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// OS is the real disk.
var OS FS = osFS{}

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err // not f: a nil *osFile in a File would not be nil
	}
	return &osFile{File: f}, nil
}

func (osFS) Remove(name string) error                     { return os.Remove(name) }
func (osFS) Rename(oldname, newname string) error         { return os.Rename(oldname, newname) }
func (osFS) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (osFS) ReadDir(name string) ([]fs.DirEntry, error)   { return os.ReadDir(name) }
func (osFS) Stat(name string) (fs.FileInfo, error)        { return os.Stat(name) }
func (osFS) SyncDir(name string) error                    { return syncDir(name) }
func (osFS) External(name string) (string, error)         { return name, nil }
func (osFS) Commit(_ string, fn func() error) error       { return fn() }

func (osFS) Free(name string) (uint64, error) {
	n, err := free(name)
	if err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	return n, nil
}

// Lock holds a lock of the operating system on an open file, which ends with the process however that ends. The
// file stays behind: removing it would let a second holder lock a new file of the same name.
func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "lock", Path: name, Err: err}, f.Close())
	}
	return f, nil
}

type osFile struct {
	*os.File
	direct direct
}

// Close implements File.
func (f *osFile) Close() error {
	return errors.Join(f.File.Close(), f.direct.close())
}

func (f *osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f *osFile) Datasync() error {
	if err := control(f.File, datasync); err != nil {
		return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}

func (f *osFile) Preallocate(size int64) error {
	old, err := f.Size()
	if err != nil {
		return err
	}
	if size <= old {
		return nil
	}
	// Ask for all blocks at once, so that they lie together and a full disk shows before anything is written.
	err = control(f.File, func(fd uintptr) error { return allocate(fd, old, size-old) })
	for pos := old; pos < size && err == nil; {
		var n int
		n, err = WriteDirect(f, zeros[:min(size-pos, int64(len(zeros)))], pos)
		pos += int64(n)
	}
	if err != nil {
		// Give back what was taken, since the likely cause is a full disk.
		return errors.Join(fmt.Errorf("preallocate %s: %w", f.Name(), err), f.Truncate(old))
	}
	return nil
}

// control runs fn with f's descriptor, which a concurrent Close cannot take away meanwhile.
func control(f *os.File, fn func(fd uintptr) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if conn.Control(func(fd uintptr) { inner = fn(fd) }) != nil {
		return fs.ErrClosed // the only cause, under a name that no other package can test for
	}
	return inner
}
