package vfs

import "errors"

// reserver is a File that can take blocks without writing them.
type reserver interface {
	Reserve(size int64) error
}

// Reserve is f.Preallocate, but for that what it adds need not have been written: the blocks are the file's, they read as zeros, and the
// first write of each changes metadata, which Datasync then has to write as well. It takes no time. ErrUnsupported means that this
// file system cannot do it, and that nothing has changed.
func Reserve(f File, size int64) error {
	if r, ok := f.(reserver); ok {
		return r.Reserve(size)
	}
	return errors.ErrUnsupported
}
