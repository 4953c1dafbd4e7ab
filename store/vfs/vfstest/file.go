package vfstest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"syscall"
)

// file is an open file of a Disk.
type file struct {
	d           *Disk
	n           *node
	name        string
	read, write bool
	closed      bool
}

var errBadHandle = errors.New("not open for this")

// start begins an operation on an open file. It is called with d.mu held.
func (f *file) start(op Op, need bool) verdict {
	op.Name = clean(f.name)
	if f.closed {
		return verdict{err: op.error(fs.ErrClosed)}
	}
	if !need {
		return verdict{err: op.error(errBadHandle)}
	}
	if op.Pos < 0 || op.Len < 0 {
		return verdict{err: op.error(syscall.EINVAL)}
	}
	return f.d.begin(op)
}

func (f *file) Name() string { return f.name }

func (f *file) ReadAt(p []byte, pos int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	v := f.start(Op{Kind: Read, Pos: pos, Len: int64(len(p))}, f.read)
	if !v.take {
		return 0, v.err
	}
	if v.short >= 0 {
		p = p[:v.short]
	}
	if pos >= int64(len(f.n.data)) {
		if len(p) == 0 || v.err != nil {
			return 0, v.err
		}
		return 0, io.EOF
	}
	n := copy(p, f.n.data[pos:])
	if v.err == nil && n < len(p) {
		return n, io.EOF
	}
	return n, v.err
}

func (f *file) WriteAt(p []byte, pos int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	op := Op{Kind: Write, Name: clean(f.name), Pos: pos, Len: int64(len(p))}
	v := f.start(op, f.write)
	if !v.take {
		return 0, v.err
	}
	if v.short >= 0 {
		p = p[:v.short]
	}
	n, err := f.take(pos, int64(len(p)))
	if n > 0 {
		f.n.change(dataOp{seq: f.d.next(), pos: pos, data: bytes.Clone(p[:n]), inFlight: v.inFlight})
	}
	switch {
	case v.err != nil:
		err = v.err
	case err != nil:
		err = op.error(err)
	}
	if v.inFlight {
		n = 0
	}
	return int(n), err
}

// take allocates blocks and returns how many of n bytes have one.
func (f *file) take(pos, n int64) (int64, error) {
	room := int64(math.MaxInt64)
	if f.d.capacity > 0 {
		room = f.d.capacity - f.d.used - f.d.ext.used()
	}
	before := room
	fits := f.n.fit(pos, n, &room)
	f.d.used += before - room
	if fits < n {
		return fits, syscall.ENOSPC
	}
	return n, nil
}

func (f *file) Truncate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	v := f.start(Op{Kind: Truncate, Len: size}, f.write)
	if v.take {
		f.n.change(dataOp{seq: f.d.next(), resize: true, pos: size, inFlight: v.inFlight})
		f.d.used -= f.n.free(size)
	}
	return v.err
}

func (f *file) Preallocate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	op := Op{Kind: Preallocate, Name: clean(f.name), Len: size}
	old := int64(len(f.n.data))
	if !f.closed && size <= old {
		return nil
	}
	v := f.start(op, f.write)
	if !v.take {
		return v.err
	}
	n, err := f.take(old, size-old)
	if err != nil && v.err == nil {
		f.d.used -= f.n.free(old)
		return op.error(err)
	}
	if n > 0 {
		f.n.change(dataOp{seq: f.d.next(), resize: true, pos: old + n, inFlight: v.inFlight})
	}
	return v.err
}

// Reserve implements vfs.Reserve: what a block costs to be written first does not show here.
func (f *file) Reserve(size int64) error { return f.Preallocate(size) }

func (f *file) Datasync() error { return f.sync(Datasync) }

func (f *file) Sync() error { return f.sync(Sync) }

func (f *file) sync(kind Kind) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	v := f.start(Op{Kind: kind}, !f.closed)
	switch {
	case v.inFlight || f.closed || errors.Is(v.err, ErrPowerCut):
	case v.take:
		f.n.settle()
	default:
		f.n.drop()
	}
	return v.err
}

func (f *file) Size() (int64, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	v := f.start(Op{Kind: Stat}, !f.closed)
	return int64(len(f.n.data)), v.err
}

func (f *file) Close() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.closed {
		return &fs.PathError{Op: "close", Path: f.name, Err: fs.ErrClosed}
	}
	f.closed = true
	f.n.opens--
	f.d.reap(f.n)
	return nil
}

// reap gives back the blocks of a file that nobody can reach any more.
func (d *Disk) reap(n *node) {
	if !n.linked && n.opens == 0 {
		d.used -= n.free(0)
	}
}

// access splits the flags of package os.
func access(flag int) (read, write bool) {
	switch flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR) {
	case os.O_WRONLY:
		return false, true
	case os.O_RDWR:
		return true, true
	}
	return true, false
}
