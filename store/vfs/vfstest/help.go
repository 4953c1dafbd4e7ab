package vfstest

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// ReadFile returns what a process would read, also when the power is off. It counts as no operation.
func (d *Disk) ReadFile(name string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ext.has(name) {
		return os.ReadFile(d.ext.path(name))
	}
	n := d.find(name)
	if n == nil || n.isDir() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist}
	}
	return bytes.Clone(n.data), nil
}

// WriteFile puts a file on the disk for certain, with its directories. It counts as no operation.
func (d *Disk) WriteFile(name string, b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	elems := split(name)
	dir := d.root
	for i, elem := range elems {
		n := dir.entries[elem]
		if n == nil {
			if n = newDir(); i == len(elems)-1 {
				n = newFile(0o644)
			}
			d.edit(nameEdit{nameKey{dir, elem}, n})
		}
		d.settleNames(dir)
		dir = n
	}
	dir.dirty = nil
	dir.data, dir.base = bytes.Clone(b), bytes.Clone(b)
	d.used -= dir.free(0)
	room := int64(1) << 62
	before := room
	dir.fit(0, int64(len(b)), &room)
	d.used += before - room
}

// List returns the names of all files, sorted, without a leading slash. It counts as no operation.
func (d *Disk) List() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	var walk func(dir *node, prefix string)
	walk = func(dir *node, prefix string) {
		for elem, n := range dir.entries {
			if n.isDir() {
				walk(n, path.Join(prefix, elem))
			} else {
				names = append(names, path.Join(prefix, elem))
			}
		}
	}
	walk(d.root, "")
	for name := range d.ext.files {
		if d.ext.has(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Corrupt flips the bits of mask in the byte at pos, in what is on the disk and in what a process reads.
func (d *Disk) Corrupt(name string, pos int64, mask byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ext.has(name) {
		return corruptReal(d.ext.path(name), pos, mask)
	}
	n := d.find(name)
	if n == nil || n.isDir() || pos >= int64(len(n.data)) {
		return fmt.Errorf("corrupt %s at %d: %w", name, pos, fs.ErrNotExist)
	}
	n.data[pos] ^= mask
	if pos < int64(len(n.base)) {
		n.base[pos] ^= mask
	}
	for _, op := range n.dirty {
		if !op.resize && pos >= op.pos && pos < op.pos+int64(len(op.data)) {
			op.data[pos-op.pos] ^= mask
		}
	}
	return nil
}

func corruptReal(name string, pos int64, mask byte) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], pos); err != nil {
		return err
	}
	b[0] ^= mask
	_, err = f.WriteAt(b[:], pos)
	return err
}
