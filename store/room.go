package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/edgemq/edgemq/store/journal"
	"github.com/edgemq/edgemq/store/state"
)

// makeRoom deletes, on a full disk, what a start can do without: journal files that are only kept to be used again, and the index. It
// returns how many bytes that were, and the error to report if there are none.
func makeRoom(o *Options, cause error) (freed int64, err error) {
	lock, err := o.FS.Lock(o.path("LOCK"))
	if err != nil {
		return 0, errors.Join(cause, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	paths, err := spareJournal(o)
	if err != nil {
		return 0, errors.Join(cause, err)
	}
	if names, err := o.FS.ReadDir(o.path("index")); err == nil {
		for _, name := range names {
			if filepath.Ext(name.Name()) == ".idx" {
				paths = append(paths, o.path("index", name.Name()))
			}
		}
	}
	for _, path := range paths {
		n := size(o.FS, path)
		if err := o.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return freed, errors.Join(cause, err)
		}
		freed += n
	}
	if freed == 0 {
		return 0, cause
	}
	o.Logger.Warn("the disk is full: deleted what can be made again", "component", "store", "files", len(paths), "bytes", freed)
	return freed, nil
}

// spareJournal returns the journal files that no replay needs.
func spareJournal(o *Options) ([]string, error) {
	st, err := state.OpenReadOnly(o.FS, o.path("state.db"))
	if err != nil {
		return nil, err
	}
	cp, _ := st.Checkpoint()
	if err := st.Close(); err != nil {
		return nil, err
	}
	j, err := journal.Open(journal.Options{Dir: o.path("journal"), FileBytes: o.JournalFileBytes, FS: o.FS, ReadOnly: true}, journalPosition(cp))
	if err != nil {
		return nil, err
	}
	return j.Spare(), j.Close()
}

// noRoom says how much room a start needs.
func noRoom(o *Options, cause error) error {
	need := int64(4 << 20) // for state.db, and what goes with each file
	if names, err := o.FS.ReadDir(o.path("journal")); err == nil {
		for _, name := range names {
			need += size(o.FS, o.path("journal", name.Name()))
		}
	}
	return fmt.Errorf("%w: %w: the start needs room to bring what the journal holds to its place: free up to %d MiB where %s is, by deleting other files. All of edgemq's own are needed",
		ErrFull, cause, (need+1<<20-1)>>20, o.Dir)
}
