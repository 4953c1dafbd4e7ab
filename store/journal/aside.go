package journal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// setAside copies the bytes [from, to) of a slot to the directory of damaged data and returns the
// copy's path. It is best effort: a disk too full for the copy must not keep the broker from starting.
func (r *replay) setAside(s *slot, from, to int64) string {
	o := r.j.opts
	if o.ReadOnly || o.DamagedDir == "" {
		return ""
	}
	// The name says where the bytes are from, so finding the same damage again writes the same file.
	path := filepath.Join(o.DamagedDir, fmt.Sprintf("journal-%d-%d.bin", s.seq, from))
	if err := r.copyTo(path, s, from, to); err != nil {
		o.Logger.Error("cannot set damaged journal bytes aside", "path", s.path, "pos", from, "err", err)
		return ""
	}
	return path
}

// copyTo writes the bytes [from, to) of a slot to a new file, durably and without the zeros at the end.
func (r *replay) copyTo(path string, s *slot, from, to int64) (err error) {
	o := r.j.opts
	if err := r.j.makeDir(o.DamagedDir); err != nil {
		return err
	}
	f, err := o.FS.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sc := newScanner(s.file, s.size, r.buf)
	for pos := from; pos < to; pos += BlockSize {
		b, err := sc.bytes(pos, BlockSize)
		if err != nil {
			return err
		}
		if bytes.Count(b, []byte{0}) == len(b) {
			continue // a hole, or nothing at all if no other block follows
		}
		if _, err := f.WriteAt(b, pos-from); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return o.FS.SyncDir(o.DamagedDir)
}
