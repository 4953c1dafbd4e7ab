package vfstest

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/edgemq/edgemq/store/vfs"
)

// nameOp is a pending change of names, made as a whole or not at all.
type nameOp struct {
	seq   uint64
	edits []nameEdit
}

// nameEdit gives a name in a directory to a node, or to none.
type nameEdit struct {
	key nameKey
	to  *node
}

type nameKey struct {
	dir  *node
	name string
}

func clean(name string) string { return filepath.ToSlash(filepath.Clean(name)) }

// split returns the elements of a name. The working directory and / are one and the same.
func split(name string) []string {
	p := strings.TrimPrefix(path.Clean("/"+filepath.ToSlash(name)), "/")
	if p == "" {
		return nil
	}
	return strings.Split(p, "/")
}

// find returns the node with a name, or nil.
func (d *Disk) find(name string) *node {
	n := d.root
	for _, elem := range split(name) {
		if !n.isDir() {
			return nil
		}
		if n = n.entries[elem]; n == nil {
			return nil
		}
	}
	return n
}

// parent returns the directory that holds or would hold a name.
func (d *Disk) parent(name string) (nameKey, error) {
	elems := split(name)
	if len(elems) == 0 {
		return nameKey{}, syscall.EBUSY // the root
	}
	last := len(elems) - 1
	dir := d.find(path.Join(elems[:last]...))
	switch {
	case dir == nil:
		return nameKey{}, fs.ErrNotExist
	case !dir.isDir():
		return nameKey{}, syscall.ENOTDIR
	}
	return nameKey{dir, elems[last]}, nil
}

// edit changes names for processes at once and leaves the disk for later.
func (d *Disk) edit(edits ...nameEdit) {
	for _, e := range edits {
		if e.to == nil {
			delete(e.key.dir.entries, e.key.name)
		} else {
			e.key.dir.entries[e.key.name] = e.to
		}
	}
	d.names = append(d.names, nameOp{d.next(), edits})
}

// OpenFile is vfs.FS.
func (d *Disk) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ext.has(name) {
		return d.openExternal(name, flag)
	}
	op := Op{Kind: Open, Name: clean(name)}
	key, err := d.parent(name)
	if err != nil {
		return nil, op.error(err)
	}
	n := key.dir.entries[key.name]
	read, write := access(flag)
	switch {
	case n == nil && flag&os.O_CREATE == 0:
		if v := d.begin(op); v.err != nil {
			return nil, v.err
		}
		return nil, op.error(fs.ErrNotExist)
	case n == nil:
		op.Kind = Create
		v := d.begin(op)
		if v.take {
			n = newFile(perm)
			d.edit(nameEdit{key, n})
		}
		if v.err != nil {
			return nil, v.err
		}
	case n.isDir():
		return nil, op.error(syscall.EISDIR)
	case flag&os.O_EXCL != 0 && flag&os.O_CREATE != 0:
		return nil, op.error(fs.ErrExist)
	default:
		if v := d.begin(op); v.err != nil {
			return nil, v.err
		}
	}
	f := &file{d: d, n: n, name: name, read: read, write: write}
	if flag&os.O_TRUNC != 0 && write && len(n.data) > 0 {
		v := d.begin(Op{Kind: Truncate, Name: clean(name)})
		if v.take {
			n.change(dataOp{seq: d.next(), resize: true, inFlight: v.inFlight})
			d.used -= n.free(0)
		}
		if v.err != nil {
			return nil, v.err
		}
	}
	n.opens++
	return f, nil
}

// Remove is vfs.FS.
func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := Op{Kind: Remove, Name: clean(name)}
	if d.ext.has(name) {
		v := d.begin(op)
		if v.err == nil {
			return d.ext.remove(name)
		}
		return v.err
	}
	key, err := d.parent(name)
	if err != nil {
		return op.error(err)
	}
	n := key.dir.entries[key.name]
	switch {
	case n == nil:
		return op.error(fs.ErrNotExist)
	case n.isDir() && (len(n.entries) > 0 || len(d.ext.list(name)) > 0):
		return op.error(syscall.ENOTEMPTY)
	}
	v := d.begin(op)
	if v.take {
		d.edit(nameEdit{key, nil})
		n.linked = false
		d.reap(n)
	}
	return v.err
}

// Rename is vfs.FS.
func (d *Disk) Rename(oldname, newname string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := Op{Kind: Rename, Name: clean(oldname), To: clean(newname)}
	if d.ext.has(oldname) {
		v := d.begin(op)
		if v.err == nil {
			return d.ext.rename(oldname, newname)
		}
		return v.err
	}
	from, err := d.parent(oldname)
	if err != nil {
		return op.error(err)
	}
	to, err := d.parent(newname)
	if err != nil {
		return op.error(err)
	}
	n, old := from.dir.entries[from.name], to.dir.entries[to.name]
	switch {
	case n == nil:
		return op.error(fs.ErrNotExist)
	case n == old:
		return nil
	case old != nil && (old.isDir() || n.isDir()):
		return op.error(fs.ErrExist)
	}
	v := d.begin(op)
	if v.take {
		d.edit(nameEdit{from, nil}, nameEdit{to, n})
		if old != nil {
			old.linked = false
			d.reap(old)
		}
		if n.isDir() {
			return errors.Join(v.err, d.ext.renameDir(oldname, newname))
		}
	}
	return v.err
}

// MkdirAll is vfs.FS.
func (d *Disk) MkdirAll(name string, _ fs.FileMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := Op{Kind: Mkdir, Name: clean(name)}
	var v verdict
	dir := d.root
	for _, elem := range split(name) {
		n := dir.entries[elem]
		if n == nil {
			if op.Kind == Mkdir && !v.take { // one operation, however many directories
				if v = d.begin(op); !v.take {
					return v.err
				}
			}
			n = newDir()
			d.edit(nameEdit{nameKey{dir, elem}, n})
		}
		if !n.isDir() {
			return op.error(syscall.ENOTDIR)
		}
		dir = n
	}
	if d.cut && v.err == nil {
		return op.error(ErrPowerCut)
	}
	return v.err
}

// ReadDir is vfs.FS.
func (d *Disk) ReadDir(name string) ([]fs.DirEntry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := Op{Kind: ReadDir, Name: clean(name)}
	if v := d.begin(op); v.err != nil {
		return nil, v.err
	}
	n := d.find(name)
	switch {
	case n == nil:
		return nil, op.error(fs.ErrNotExist)
	case !n.isDir():
		return nil, op.error(syscall.ENOTDIR)
	}
	entries := make([]fs.DirEntry, 0, len(n.entries))
	for elem, child := range n.entries {
		entries = append(entries, fs.FileInfoToDirEntry(child.info(elem)))
	}
	for _, i := range d.ext.list(name) {
		entries = append(entries, fs.FileInfoToDirEntry(i))
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// Stat is vfs.FS.
func (d *Disk) Stat(name string) (fs.FileInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := Op{Kind: Stat, Name: clean(name)}
	if v := d.begin(op); v.err != nil {
		return nil, v.err
	}
	if d.ext.has(name) {
		return d.ext.stat(name)
	}
	n := d.find(name)
	if n == nil {
		return nil, op.error(fs.ErrNotExist)
	}
	return n.info(path.Base(clean(name))), nil
}

// SyncDir is vfs.FS.
func (d *Disk) SyncDir(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := Op{Kind: SyncDir, Name: clean(name)}
	n := d.find(name)
	switch {
	case d.cut:
		return op.error(ErrPowerCut)
	case n == nil:
		return op.error(fs.ErrNotExist)
	case !n.isDir():
		return op.error(syscall.ENOTDIR)
	}
	v := d.begin(op)
	if v.take && !v.inFlight {
		d.settleNames(n)
		d.ext.settle(name)
	}
	return v.err
}

// settleNames makes the names in dir certain, and with them whatever earlier changes of other directories they rest on.
func (d *Disk) settleNames(dir *node) {
	due := make([]bool, len(d.names))
	keys := make(map[nameKey]bool)
	for i, op := range slices.Backward(d.names) {
		for _, e := range op.edits {
			due[i] = due[i] || e.key.dir == dir || keys[e.key]
		}
		if due[i] {
			for _, e := range op.edits {
				keys[e.key] = true
			}
		}
	}
	rest := d.names[:0:0]
	for i, op := range d.names {
		if !due[i] {
			rest = append(rest, op)
			continue
		}
		for _, e := range op.edits {
			e.apply(e.key.dir.certain)
		}
	}
	d.names = rest
}

func (e nameEdit) apply(names map[string]*node) {
	if e.to == nil {
		delete(names, e.key.name)
	} else {
		names[e.key.name] = e.to
	}
}

// Lock is vfs.FS. The lock ends with the power.
func (d *Disk) Lock(name string) (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := Op{Kind: Lock, Name: clean(name)}
	if v := d.begin(op); v.err != nil {
		return nil, v.err
	}
	key, err := d.parent(name)
	if err != nil {
		return nil, op.error(err)
	}
	if key.dir.entries[key.name] == nil {
		v := d.begin(Op{Kind: Create, Name: op.Name})
		if v.take {
			d.edit(nameEdit{key, newFile(0o600)})
		}
		if v.err != nil {
			return nil, v.err
		}
	}
	id := path.Join(split(name)...)
	if d.locks[id] {
		return nil, op.error(vfs.ErrLocked)
	}
	d.locks[id] = true
	return &held{d: d, id: id}, nil
}

// held is a lock that somebody has.
type held struct {
	d    *Disk
	id   string
	done bool
}

func (h *held) Close() error {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if h.done {
		return fs.ErrClosed
	}
	h.done = true
	delete(h.d.locks, h.id)
	return nil
}

// Free is vfs.FS.
func (d *Disk) Free(name string) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := Op{Kind: Free, Name: clean(name)}
	if v := d.begin(op); v.err != nil {
		return 0, v.err
	}
	if d.find(name) == nil && !d.ext.has(name) {
		return 0, op.error(fs.ErrNotExist)
	}
	if d.capacity == 0 {
		return 1 << 50, nil
	}
	return uint64(max(0, d.capacity-d.used-d.ext.used())), nil
}
