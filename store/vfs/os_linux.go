package vfs

import (
	"errors"
	"io"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"
)

func datasync(fd uintptr) error {
	for {
		if err := unix.Fdatasync(int(fd)); err != unix.EINTR {
			return err
		}
	}
}

// allocate takes the blocks without changing the size: a crash in the middle then leaves a file that is short, not
// one that looks done and has blocks that were never written. A file system that cannot do it is no error.
func allocate(fd uintptr, pos, n int64) error {
	for {
		err := unix.Fallocate(int(fd), unix.FALLOC_FL_KEEP_SIZE, pos, n)
		switch {
		case err == unix.EINTR:
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			return nil
		}
		return err
	}
}

// Reserve implements vfs.Reserve.
func (f *osFile) Reserve(size int64) error {
	old, err := f.Size()
	if err != nil || size <= old {
		return err
	}
	err = control(f.File, func(fd uintptr) error {
		for {
			if err := unix.Fallocate(int(fd), 0, old, size-old); err != unix.EINTR {
				return err
			}
		}
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		return errors.ErrUnsupported
	}
	return errors.Join(&fs.PathError{Op: "fallocate", Path: f.Name(), Err: err}, f.Truncate(old)) // it may have got some of them
}

// Writeback begins to write bytes to the disk and does not wait for them.
func (f *osFile) Writeback(pos, n int64) error {
	return control(f.File, func(fd uintptr) error {
		return unix.SyncFileRange(int(fd), pos, n, unix.SYNC_FILE_RANGE_WRITE)
	})
}

// maxVector is IOV_MAX, the most that one pwritev takes.
const maxVector = 1024

// WriteVAt implements WriteV.
func (f *osFile) WriteVAt(bufs [][]byte, pos int64) error {
	bufs = slices.DeleteFunc(bufs, func(b []byte) bool { return len(b) == 0 }) // so that writing nothing is an error
	for len(bufs) > 0 {
		n := 0
		err := control(f.File, func(fd uintptr) (err error) {
			n, err = unix.Pwritev(int(fd), bufs[:min(len(bufs), maxVector)], pos)
			return err
		})
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && n == 0:
			err = io.ErrShortWrite
		}
		if err != nil {
			return &fs.PathError{Op: "pwritev", Path: f.Name(), Err: err}
		}
		pos += int64(n)
		for len(bufs) > 0 && n >= len(bufs[0]) {
			n -= len(bufs[0])
			bufs = bufs[1:]
		}
		if n > 0 {
			bufs[0] = bufs[0][n:]
		}
	}
	return nil
}
