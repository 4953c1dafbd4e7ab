package state

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// OpenDamaged opens what can be had of the state of a stopped broker and changes nothing on the disk: as OpenReadOnly, but that keys are missing
// does not matter (it is returned), and damaged values count as deleted. Without a file it is empty.
func OpenDamaged(fsys vfs.FS, path string) (d *DB, missing error, err error) {
	external, err := fsys.External(path)
	if err != nil {
		return nil, nil, fmt.Errorf("open state: %w", err)
	}
	d = &DB{fsys: fsys, path: path, readOnly: true, repairing: true}
	if _, err := os.Stat(external); errors.Is(err, fs.ErrNotExist) {
		return d, nil, nil
	}
	if err := d.open(external); err != nil {
		return nil, nil, err
	}
	for _, x := range d.damaged {
		if x.Bucket != 0 {
			d.Apply([]record.Mutation{record.Delete(x.Bucket, x.Key)})
		}
	}
	return d, d.accepted, nil
}

// Empty is a state without a file, to apply to in memory.
func Empty() *DB { return &DB{readOnly: true} }

// ScanPages looks for values in a file that bbolt cannot open, page by page: whatever the tree is worth, a value has a checksum over its bucket, its key
// and itself. fn gets values of earlier states too, in no order. What it gets holds until it returns.
func ScanPages(fsys vfs.FS, path string, fn func(b Bucket, key, value []byte)) (err error) {
	external, err := fsys.External(path)
	if err != nil {
		return fmt.Errorf("open state: %w", err)
	}
	f, err := os.Open(external)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("open state: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open state: %w", err)
	}
	for pos, size := int64(0), info.Size(); pos < size; pos += pageBytesOnDisk {
		page := make([]byte, pageBytesOnDisk)
		if n, err := f.ReadAt(page, pos); err != nil && !errors.Is(err, io.EOF) {
			continue // a sector that cannot be read
		} else if page = page[:n]; n < pageHeader {
			return nil
		}
		if order.Uint16(page[8:]) != leafPage {
			continue
		}
		if more := min(int64(order.Uint32(page[12:]))*pageBytesOnDisk, size-pos-int64(len(page))); more > 0 && more < record.MaxSize {
			page = append(page, make([]byte, more)...)
			n, _ := f.ReadAt(page[pageBytesOnDisk:], pos+pageBytesOnDisk)
			page = page[:pageBytesOnDisk+n]
		}
		scanLeaf(page, fn)
	}
	return nil
}

// pageBytesOnDisk is the size of a page, as create chose it.
const pageBytesOnDisk = 4096

// scanLeaf looks at the elements of a leaf page that lie within it, and those of the small buckets among them.
func scanLeaf(b []byte, fn func(b Bucket, key, value []byte)) {
	for at := pageHeader; at+pageElement <= len(b) && at < pageHeader+int(order.Uint16(b[10:]))*pageElement; at += pageElement {
		e := b[at : at+pageElement]
		begin := uint64(at) + uint64(order.Uint32(e[4:]))
		mid := begin + uint64(order.Uint32(e[8:]))
		end := mid + uint64(order.Uint32(e[12:]))
		if end > uint64(len(b)) || mid == begin {
			continue
		}
		key, value := b[begin:mid], b[mid:end]
		if order.Uint32(e) == bucketElement {
			if len(value) >= 16+pageHeader {
				scanLeaf(bytes.Clone(value[16:]), fn) // a page of its own within the value, and not longer
			}
			continue
		}
		for _, bucket := range record.Buckets() {
			name := bucket.String()
			if v, ok := unseal(name, key, value); ok && !plainKey(name, key) {
				fn(bucket, key, v)
				break
			}
		}
	}
}
