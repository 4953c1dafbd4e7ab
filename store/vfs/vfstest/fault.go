package vfstest

import (
	"io/fs"
	"strings"
)

// Kind is a kind of operation.
type Kind uint8

// The kinds. The first group are the write-like ones.
const (
	Create Kind = iota
	Mkdir
	Write
	Truncate
	Preallocate
	Datasync
	Sync
	SyncDir
	Remove
	Rename
	Commit

	Open // of a file that is there
	Read
	Stat // Size too
	ReadDir
	Lock
	Free
	External
	kinds
)

var kindNames = [kinds]string{
	"create", "mkdir", "write", "truncate", "preallocate", "datasync", "sync", "syncdir", "remove", "rename", "commit",
	"open", "read", "stat", "readdir", "lock", "free", "external",
}

func (k Kind) String() string { return kindNames[k] }

func (k Kind) writes() bool { return k <= Commit }

// Op is one operation, as a fault rule sees it.
type Op struct {
	Kind  Kind
	Name  string // as the caller named the file, cleaned
	To    string // the new name, of a rename
	Pos   int64  // of a read or write
	Len   int64  // of a read or write; the size, of Truncate and Preallocate
	Index int    // number among the write-like operations, from 0 as in NewDisk; -1 for others
	Nth   int    // number among the operations of this kind, from 1
}

func (op Op) error(err error) error {
	return &fs.PathError{Op: op.Kind.String(), Path: op.Name, Err: err}
}

type fault struct{ rule func(Op) error }

// Inject makes every operation for which rule returns an error fail with it; the returned function ends that. The
// operation has no effect, unless the error is a Short or an After. A failed Datasync or Sync drops what was to be synced: it
// still reads back, but never reaches the disk, whatever later syncs report, as on Linux. rule must not call
// the Disk.
func (d *Disk) Inject(rule func(op Op) error) (stop func()) {
	f := &fault{rule}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = append(d.faults, f)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		kept := d.faults[:0:0]
		for _, other := range d.faults {
			if other != f {
				kept = append(kept, other)
			}
		}
		d.faults = kept
	}
}

// Nth is a rule that fails the n-th operation (from 1) of a kind, as the Disk has counted them from its start.
func Nth(n int, kind Kind, err error) func(Op) error {
	return func(op Op) error {
		if op.Kind == kind && op.Nth == n {
			return err
		}
		return nil
	}
}

// At is a rule that fails the write-like operation with this index.
func At(index int, err error) func(Op) error {
	return func(op Op) error {
		if op.Index == index {
			return err
		}
		return nil
	}
}

// On is a rule that fails all operations of a kind on files whose name contains part.
func On(kind Kind, part string, err error) func(Op) error {
	return func(op Op) error {
		if op.Kind == kind && strings.Contains(op.Name, part) {
			return err
		}
		return nil
	}
}

// Short is an error of a read or write that moves N bytes first.
type Short struct {
	N   int
	Err error
}

func (s *Short) Error() string { return "short: " + s.Err.Error() }
func (s *Short) Unwrap() error { return s.Err }

// After is an error that is reported although the operation has had its effect.
type After struct{ Err error }

func (a *After) Error() string { return a.Err.Error() }
func (a *After) Unwrap() error { return a.Err }

func faulty(op Op, err error) verdict {
	v := verdict{err: op.error(err)}
	switch e := err.(type) { //nolint:errorlint // what a rule returned itself
	case *Short:
		v.take, v.short = true, min(e.N, int(op.Len))
	case *After:
		v.take, v.short = true, -1
	}
	return v
}
