package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// version is the version of everything in state.db, the values that other packages keep there included. Version 1 had no checksums.
const version = 2

const (
	lockTimeout = 5 * time.Second // the store holds its own lock, so only a tool could be in the way
	filePerm    = 0o640
)

var (
	metaName      = []byte(record.BucketMeta.String())
	formatKey     = []byte("format")
	checkpointKey = []byte("checkpoint")
)

// Open opens the state at path, and makes it if there is none.
func Open(fsys vfs.FS, path string) (*DB, error) {
	external, err := fsys.External(path)
	if err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	if _, err := os.Stat(external); errors.Is(err, fs.ErrNotExist) {
		if err := create(fsys, path); err != nil {
			return nil, fmt.Errorf("create state: %w", err)
		}
	}
	// Also if it was there: a process that was killed may have left a name that is not synced.
	if err := fsys.SyncDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("sync directory of state: %w", err)
	}
	d := &DB{fsys: fsys, path: path}
	if err := d.open(external); err != nil {
		return nil, err
	}
	return d, nil
}

// OpenReadOnly opens the state of a stopped broker and changes nothing on the disk. Apply works, in memory.
// Without a file it is empty.
func OpenReadOnly(fsys vfs.FS, path string) (*DB, error) {
	external, err := fsys.External(path)
	if err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	d := &DB{fsys: fsys, path: path, readOnly: true}
	if _, err := os.Stat(external); errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err := d.open(external); err != nil {
		return nil, err
	}
	return d, nil
}

// Repair opens a damaged state as far as that is possible, deletes what is damaged, but for what keep says, and accepts that keys are
// missing. It returns what it has deleted, and what it has accepted.
func Repair(fsys vfs.FS, path string, keep func(Damaged) bool) (deleted []Damaged, accepted error, err error) {
	external, err := fsys.External(path)
	if err != nil {
		return nil, nil, fmt.Errorf("open state: %w", err)
	}
	d := &DB{fsys: fsys, path: path, repairing: true}
	if err := d.open(external); err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	cp, ok := d.Checkpoint()
	if !ok {
		return nil, nil, &CorruptError{Path: path, Err: errors.New("no checkpoint")}
	}
	var list []record.Mutation
	for _, x := range d.damaged {
		if keep(x) {
			return nil, nil, &CorruptError{Path: path, Err: &x}
		}
		if x.Bucket != 0 { // else Save does it
			list = append(list, record.Delete(x.Bucket, x.Key))
		}
	}
	deleted = d.damaged
	return deleted, d.accepted, d.Save(cp, list)
}

// create makes an empty state under another name first: bbolt cannot open a file whose first pages a power cut has spoiled.
func create(fsys vfs.FS, path string) error {
	temporary := path + ".new"
	external, err := fsys.External(temporary)
	if err != nil {
		return err
	}
	if err := os.Remove(external); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = fsys.Commit(temporary, func() error {
		db, err := bolt.Open(external, filePerm, &bolt.Options{Timeout: lockTimeout, PageSize: 4096})
		if err != nil {
			return err
		}
		return errors.Join(db.Update(func(tx *bolt.Tx) error {
			for _, b := range record.Buckets() {
				if _, err := tx.CreateBucket([]byte(b.String())); err != nil {
					return err
				}
			}
			meta := tx.Bucket(metaName)
			return errors.Join(meta.Put(formatKey, binary.LittleEndian.AppendUint16(nil, version)), meta.Put(sumsKey, sums{}.append(nil)))
		}), db.Close())
	})
	if err != nil {
		return err
	}
	return fsys.Rename(temporary, path)
}

// open opens bbolt and reads what Open must know. On failure everything is closed.
func (d *DB) open(external string) error {
	if err := d.checkFile(external); err != nil {
		return fmt.Errorf("open state: %w", err)
	}
	var file *os.File
	err := guard(d.path, func() (err error) {
		d.bolt, err = bolt.Open(external, filePerm, &bolt.Options{
			Timeout: lockTimeout, FreelistType: bolt.FreelistMapType, ReadOnly: d.readOnly,
			OpenFile: func(name string, flag int, perm os.FileMode) (_ *os.File, err error) {
				file, err = os.OpenFile(name, flag, perm)
				return file, err
			},
		})
		return err
	})
	if err != nil {
		d.bolt = nil
		if file != nil {
			file.Close() //nolint:errcheck // if bbolt panicked, nobody else lets go of the file and its lock
		}
		return fmt.Errorf("open state: %w", err)
	}
	err = d.view(d.read)
	if err == nil && d.plain && !d.readOnly {
		err = d.upgrade()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open state: %w", err), d.Close())
	}
	return nil
}

// checkFile looks for damage that bbolt does not survive.
func (d *DB) checkFile(external string) error {
	f, err := os.Open(external)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	metas, err := checkPages(f, info.Size())
	if err != nil {
		return &CorruptError{Path: d.path, Err: err}
	}
	d.fallback = metas < 2
	return nil
}

// read reads format and checkpoint.
func (d *DB) read(tx *bolt.Tx) error {
	// bbolt maps the file: to read what was cut off would be a fault.
	if info, err := os.Stat(tx.DB().Path()); err != nil {
		return err
	} else if info.Size() < tx.Size() {
		return &CorruptError{Path: d.path, Pos: info.Size(), Err: fmt.Errorf("file is cut short, it had %d bytes", tx.Size())}
	}
	meta := tx.Bucket(metaName)
	if meta == nil {
		return &CorruptError{Path: d.path, Err: errors.New("no bucket of that name: " + string(metaName))}
	}
	format := meta.Get(formatKey)
	if len(format) != 2 {
		return &CorruptError{Path: d.path, Err: errors.New("no format version")}
	}
	v := binary.LittleEndian.Uint16(format)
	if v > version {
		return fmt.Errorf("state %s: %w: version %d, this build knows %d", d.path, ErrVersion, v, version)
	}
	if v == 0 {
		return &CorruptError{Path: d.path, Err: errors.New("format version 0")}
	}
	d.plain = v < 2
	for _, b := range record.Buckets() {
		if b <= record.BucketUsers && tx.Bucket([]byte(b.String())) == nil { // those were made with the file
			return &CorruptError{Path: d.path, Err: fmt.Errorf("no bucket %v", b)}
		}
	}
	if !d.plain {
		if err := d.verify(tx); err != nil {
			return err
		}
	}
	b := meta.Get(checkpointKey)
	if b == nil {
		return nil
	}
	cp, err := parseCheckpoint(b)
	switch {
	case errors.Is(err, ErrVersion):
		return fmt.Errorf("state %s: %w", d.path, err)
	case err != nil:
		return &CorruptError{Path: d.path, Err: err}
	}
	d.checkpoint = &cp
	return nil
}

// guard runs fn, which calls bbolt. bbolt trusts its file: on a damaged one it panics, or reads behind the end of
// the file's mapping.
func guard(path string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = &CorruptError{Path: path, Err: fmt.Errorf("bbolt: %v", r)}
		}
	}()
	err = fn()
	for _, damage := range []error{bolterrors.ErrInvalid, bolterrors.ErrVersionMismatch, bolterrors.ErrChecksum} {
		if errors.Is(err, damage) {
			return &CorruptError{Path: path, Err: err}
		}
	}
	return err
}

// view runs fn in a read transaction.
func (d *DB) view(fn func(tx *bolt.Tx) error) error {
	if d.bolt == nil {
		return nil
	}
	return guard(d.path, func() error { return d.bolt.View(fn) })
}

// Save writes what is frozen, then extra, and the checkpoint in one transaction. On failure nothing
// is lost, and Freeze and Save may be repeated: after ENOSPC, that is. After another error it is not known
// what the disk holds, and the state is to be opened anew.
func (d *DB) Save(cp Checkpoint, extra []record.Mutation) error {
	if d.readOnly {
		return errors.New("save state: opened read-only")
	}
	if d.broken != nil {
		return d.broken
	}
	// Nobody changes what is frozen but Freeze, which runs in this goroutine.
	frozen := d.frozen.buckets
	s := maps.Clone(d.sums)
	err := d.fsys.Commit(d.path, func() error {
		return guard(d.path, func() error {
			return d.bolt.Update(func(tx *bolt.Tx) error { return s.write(tx, frozen, d.damaged, cp, extra) })
		})
	})
	if err != nil {
		err = fmt.Errorf("save state: %w", err)
		if corrupt := (*CorruptError)(nil); errors.As(err, &corrupt) {
			d.broken = err
		}
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.frozen = overlay{}
	d.checkpoint = &cp
	d.sums, d.damaged = s, nil
	return nil
}

// write makes the changes of one Save, among which is the deletion of damaged values.
func (s sums) write(tx *bolt.Tx, frozen map[Bucket]map[string]*change, damaged []Damaged, cp Checkpoint, extra []record.Mutation) error {
	set := func(b Bucket, key, value []byte) error {
		t, err := tx.CreateBucketIfNotExists([]byte(b.String()))
		if err != nil {
			return fmt.Errorf("bucket %v: %w", b, err)
		}
		name := b.String()
		switch old := t.Get(key); {
		case plainKey(name, key):
			err = t.Put(key, value)
		case value == nil:
			s.replace(name, old, nil)
			err = t.Delete(key)
		default:
			value = seal(name, key, value)
			s.replace(name, old, value)
			err = t.Put(key, value)
		}
		if err != nil {
			return fmt.Errorf("key of %d bytes in %v: %w", len(key), b, err)
		}
		return nil
	}
	for b, keys := range frozen {
		for _, k := range slices.Sorted(maps.Keys(keys)) { // in order: bbolt then touches each page once
			if err := set(b, []byte(k), keys[k].value); err != nil {
				return err
			}
		}
	}
	for _, m := range extra {
		if err := set(m.Bucket, m.Key, m.Value); err != nil {
			return err
		}
	}
	if err := s.recount(tx, damaged); err != nil {
		return err
	}
	return errors.Join(set(record.BucketMeta, sumsKey, s.append(nil)), set(record.BucketMeta, checkpointKey, cp.append(nil)))
}

// Check reads the whole file and returns what is wrong with it. It takes long on a large one.
func (d *DB) Check() error {
	return d.view(func(tx *bolt.Tx) error {
		var first error
		for err := range tx.Check() { // to the end: its goroutine waits for us
			if first == nil {
				first = &CorruptError{Path: d.path, Err: err}
			}
		}
		return first
	})
}

// Close closes the file. What was not saved is in the journal.
func (d *DB) Close() error {
	if d.bolt == nil || d.broken != nil {
		return nil // a broken bbolt may wait for its own lock for ever
	}
	return guard(d.path, d.bolt.Close)
}
