package vfs

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// direct is a second descriptor of a file, whose writes go past the cache.
type direct struct {
	mu     sync.Mutex
	file   *os.File
	closed bool // or the file system does not want it
}

// open returns the descriptor, nil if there is none.
func (d *direct) open(of *os.File) *os.File {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file != nil || d.closed {
		return d.file
	}
	f, err := os.OpenFile(of.Name(), os.O_WRONLY|unix.O_DIRECT, 0)
	if err == nil && !same(f, of) { // renamed or removed
		err = errors.Join(os.ErrNotExist, f.Close())
	}
	if d.closed = err != nil; err == nil {
		d.file = f
	}
	return d.file
}

func same(a, b *os.File) bool {
	x, err := a.Stat()
	y, err2 := b.Stat()
	return err == nil && err2 == nil && os.SameFile(x, y)
}

func (d *direct) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.file
	d.file, d.closed = nil, true
	if f == nil {
		return nil
	}
	return f.Close()
}

// WriteDirectAt implements WriteDirect.
func (f *osFile) WriteDirectAt(b []byte, pos int64) (int, error) {
	d := f.direct.open(f.File)
	if d == nil {
		return f.WriteAt(b, pos)
	}
	n, err := d.WriteAt(b, pos)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // the drive's blocks are larger, or the file system is particular
		if f.direct.close() == nil {
			return f.WriteAt(b, pos)
		}
	}
	return n, err
}
