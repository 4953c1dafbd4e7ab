package vfstest

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/edgemq/edgemq/store/vfs"
)

// external are the files that a library opens itself: real ones, in a directory of the Disk's own.
type external struct {
	dir    string
	files  map[string]bool   // by cleaned name; true once the name is certain
	before map[string][]byte // content before the Commit that met the power cut
}

// External is vfs.FS: the real path of name. Whoever opens it must close it before Close.
func (d *Disk) External(name string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := Op{Kind: External, Name: clean(name)}
	if v := d.begin(op); v.err != nil {
		return "", v.err
	}
	if _, err := d.parent(name); err != nil {
		return "", op.error(err)
	}
	return d.ext.add(name)
}

// Commit is vfs.FS. If the power goes at fn, it is run, yet ErrPowerCut returned, and an image may show the file with its change
// or without.
func (d *Disk) Commit(name string, fn func() error) error {
	d.commitMu.Lock()
	defer d.commitMu.Unlock()
	d.mu.Lock()
	v := d.begin(Op{Kind: Commit, Name: clean(name)})
	if v.inFlight {
		if b, err := os.ReadFile(d.ext.path(name)); err == nil {
			d.ext.before = map[string][]byte{d.ext.key(name): b}
		}
	}
	d.mu.Unlock()
	if !v.take {
		return v.err
	}
	if err := fn(); err != nil && v.err == nil {
		return err
	}
	return v.err
}

func (*external) key(name string) string { return path.Join(split(name)...) }

func (x *external) path(name string) string {
	return filepath.Join(x.dir, filepath.FromSlash(x.key(name)))
}

func (x *external) add(name string) (string, error) {
	if x.dir == "" {
		// In memory if possible: what a test disk forgets is decided by Commit, not by fsyncs that take their time.
		dir, err := os.MkdirTemp("/dev/shm", "vfstest-")
		if err != nil {
			dir, err = os.MkdirTemp("", "vfstest-")
		}
		if err != nil {
			return "", err
		}
		x.dir = dir
		x.files = make(map[string]bool)
	}
	if _, known := x.files[x.key(name)]; !known {
		x.files[x.key(name)] = false
	}
	real := x.path(name)
	return real, os.MkdirAll(filepath.Dir(real), 0o700)
}

// has says whether name is an external file that exists.
func (x *external) has(name string) bool {
	if _, ok := x.files[x.key(name)]; !ok {
		return false
	}
	_, err := os.Stat(x.path(name))
	return err == nil
}

func (x *external) stat(name string) (fs.FileInfo, error) {
	i, err := os.Stat(x.path(name))
	if err != nil {
		return nil, err
	}
	return info{path.Base(x.key(name)), i.Size(), i.Mode(), i.ModTime()}, nil
}

// list describes the external files in a directory.
func (x *external) list(dir string) []fs.FileInfo {
	var infos []fs.FileInfo
	for name := range x.files {
		if (path.Dir(name) == x.key(dir) || path.Dir(name) == "." && x.key(dir) == "") && x.has(name) {
			if i, err := x.stat(name); err == nil {
				infos = append(infos, i)
			}
		}
	}
	return infos
}

// settle makes the names in a directory certain.
func (x *external) settle(dir string) {
	for _, i := range x.list(dir) {
		x.files[path.Join(x.key(dir), i.Name())] = true
	}
}

func (x *external) remove(name string) error {
	err := os.Remove(x.path(name))
	delete(x.files, x.key(name))
	return err
}

func (x *external) rename(oldname, newname string) error {
	to, err := x.add(newname)
	if err != nil {
		return err
	}
	err = os.Rename(x.path(oldname), to)
	x.files[x.key(newname)] = x.files[x.key(oldname)]
	delete(x.files, x.key(oldname))
	return err
}

// renameDir moves what is in a directory along with it.
func (x *external) renameDir(oldname, newname string) error {
	var errs []error
	for name := range maps.Clone(x.files) {
		if rest, in := strings.CutPrefix(name, x.key(oldname)+"/"); in && x.has(name) {
			errs = append(errs, x.rename(name, path.Join(x.key(newname), rest)))
		}
	}
	return errors.Join(errs...)
}

func (x *external) used() int64 {
	var n int64
	for name := range x.files {
		if i, err := os.Stat(x.path(name)); err == nil {
			n += (i.Size() + blockBytes - 1) / blockBytes * blockBytes
		}
	}
	return n
}

func (x *external) close() error {
	if x.dir == "" {
		return nil
	}
	dir := x.dir
	*x = external{}
	return os.RemoveAll(dir)
}

// copyTo copies the files as an image may show them; without a fate, as they are.
func (x *external) copyTo(to *Disk, f *fate) error {
	var errs []error
	for _, name := range sortedKeys(x.files) { // in order: the choices come from one random source
		certain := x.files[name]
		if !x.has(name) || f != nil && !certain && !f.keepName() {
			continue
		}
		if _, err := to.parent(name); err != nil {
			continue // its directory is gone
		}
		b, err := os.ReadFile(x.path(name))
		if before, ok := x.before[name]; ok && f != nil && !f.keepName() {
			b = before
		}
		real, err2 := to.ext.add(name)
		to.ext.files[name] = certain || f != nil
		errs = append(errs, err, err2, os.WriteFile(real, b, 0o600))
	}
	return errors.Join(errs...)
}

// openExternal opens an external file for reading.
func (d *Disk) openExternal(name string, flag int) (vfs.File, error) {
	op := Op{Kind: Open, Name: clean(name)}
	if v := d.begin(op); v.err != nil {
		return nil, v.err
	}
	if _, write := access(flag); write {
		return nil, op.error(syscall.EROFS)
	}
	return vfs.OS.OpenFile(d.ext.path(name), os.O_RDONLY, 0)
}
