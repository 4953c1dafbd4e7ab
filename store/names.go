package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// names is a copy of the names that records have numbers for, in a file of its own: without state.db the messages could be read, and nobody
// could say of which topic they are. Only Salvage reads it, and nothing is lost with it: what fails here is logged and tried again.
//
// The file is a record.FileHeader "EMQN" and then mutations, as the journal has them, of BucketTopics and BucketClients (numbers to names only).
// Each checkpoint that has new names appends them, and behind them a mutation of BucketMeta that says what the buckets had in state.db by then. A start that finds
// something else at the end, or anything damaged, writes the file anew.
//
// A name is in the journal at least until the checkpoint after the one that saved it, so it is never in none of the two.
type names struct {
	s       *Store
	file    vfs.File // nil: it is to be written anew
	size    int64
	entries uint64 // names in the file, those that are gone by now too
}

const (
	namesMagic   = "EMQN"
	namesVersion = 1
	namesMark    = 1       // version of the mark
	namesChunk   = 1 << 20 // what is written at a time
)

var namesKey = []byte("names")

// isName says whether a change is one of a name.
func isName(m Mutation) bool {
	return m.Bucket == record.BucketTopics && len(m.Key) == 4 || m.Bucket == record.BucketClients && len(m.Key) == 5 && m.Key[0] == 'i'
}

// mark is what the names in state.db are: version u8, and of topics and clients each the number of keys u64 and the sum of their checksums u64.
func (n *names) mark() Mutation {
	v := []byte{namesMark}
	for _, b := range []record.Bucket{record.BucketTopics, record.BucketClients} {
		keys, crcs := n.s.state.Mark(b)
		v = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(v, keys), crcs)
	}
	return record.Put(record.BucketMeta, namesKey, v)
}

// load looks whether the file goes with state.db. Afterwards file is nil if it does not.
func (n *names) load(s *Store) {
	n.s = s
	path := s.opt.path("names")
	last := Mutation{}
	r := namesReader{fn: func(m Mutation) {
		if last = m; isName(m) {
			n.entries++
		}
	}}
	if err := r.read(s.fs, path); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("names are damaged, writing them anew", "file", path, "err", err)
		}
		return
	}
	if m := n.mark(); r.damaged > 0 || !bytes.Equal(last.Key, m.Key) || !bytes.Equal(last.Value, m.Value) {
		return // the process was killed between the two, or state.db is of another time
	}
	f, err := s.fs.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		s.log.Warn("open names", "file", path, "err", err)
		return
	}
	n.file, n.size = f, r.size
}

// save makes names durable that a checkpoint has saved, before their journal may be recycled.
func (n *names) save(changes []Mutation) {
	if err := n.update(changes); err != nil {
		n.s.log.Warn("cannot save names beside state.db, trying again with the next checkpoint", "file", n.s.opt.path("names"), "err", err)
		n.close()
	}
}

func (n *names) update(changes []Mutation) error {
	topics, _ := n.s.state.Mark(record.BucketTopics)
	clients, _ := n.s.state.Mark(record.BucketClients)
	if n.file == nil || n.entries > 2*(topics+clients)+1024 {
		return n.rewrite()
	}
	var b []byte
	for _, m := range changes {
		if isName(m) {
			b = record.AppendMutation(b, m)
			n.entries++
		}
	}
	if len(b) == 0 {
		return nil
	}
	b = record.AppendMutation(b, n.mark())
	if _, err := n.file.WriteAt(b, n.size); err != nil {
		return err
	}
	n.size += int64(len(b))
	return n.file.Datasync()
}

// rewrite writes all names to a new file.
func (n *names) rewrite() (err error) {
	n.close()
	fsys, path := n.s.fs, n.s.opt.path("names")
	f, err := fsys.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	closed := false
	defer func() {
		if !closed {
			err = errors.Join(err, f.Close())
		}
	}()
	h := record.FileHeader{Magic: namesMagic, Version: namesVersion, HeaderSize: record.FileHeaderSize}
	b, size, entries := h.Append(nil), int64(0), uint64(0)
	write := func() error {
		_, err := f.WriteAt(b, size)
		size += int64(len(b))
		b = b[:0]
		return err
	}
	var failed error
	for _, of := range []struct {
		bucket record.Bucket
		prefix []byte
	}{{record.BucketTopics, nil}, {record.BucketClients, []byte{'i'}}} {
		err := n.s.state.Range(of.bucket, of.prefix, func(k, v []byte) bool {
			if m := record.Put(of.bucket, k, v); isName(m) {
				b = record.AppendMutation(b, m)
				entries++
			}
			if len(b) >= namesChunk {
				failed = write()
			}
			return failed == nil
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
	}
	b = record.AppendMutation(b, n.mark())
	if err := errors.Join(write(), f.Datasync()); err != nil {
		return err
	}
	closed = true // not every system renames what is open
	if err := errors.Join(f.Close(), fsys.Rename(path+".new", path), fsys.SyncDir(n.s.opt.Dir)); err != nil {
		return err
	}
	n.size, n.entries = size, entries
	n.file, err = fsys.OpenFile(path, os.O_RDWR, 0)
	return err
}

func (n *names) close() {
	if n.file != nil {
		n.file.Close() //nolint:errcheck // what counts was synced
	}
	*n = names{s: n.s}
}

// namesReader reads a file of names.
type namesReader struct {
	fn      func(m Mutation) // what it gets holds until it returns
	size    int64            // of the file
	damaged int64            // bytes that are no mutation
}

// read reads all that is sound. It fails if the file cannot be read, or is newer than this build.
func (r *namesReader) read(fsys vfs.FS, path string) (err error) {
	f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if r.size, err = f.Size(); err != nil {
		return err
	}
	if err := r.scan(f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (r *namesReader) scan(f io.ReaderAt) error {
	buf := make([]byte, min(r.size, namesChunk))
	for pos := int64(0); pos < r.size; {
		b := buf[:min(int64(len(buf)), r.size-pos)]
		if n, err := f.ReadAt(b, pos); n < len(b) {
			return cmp.Or(err, io.ErrUnexpectedEOF)
		}
		used := 0
		if pos == 0 {
			switch _, err := record.ParseFileHeader(b, namesMagic, namesVersion, record.FileHeaderSize); {
			case errors.Is(err, record.ErrVersion):
				return err
			case err != nil:
				r.damaged += record.FileHeaderSize
			}
			used = min(record.FileHeaderSize, len(b))
		}
		for last := pos+int64(len(b)) == r.size; used < len(b); {
			m, n, err := record.ParseMutation(b[used:])
			if err != nil {
				if !last && len(b)-used < namesLongest {
					break // it may only be cut off by the end of what was read
				}
				// Behind damage, whatever has the checksum of a mutation is one: names have no zero bytes, and so cannot imitate it.
				r.damaged++
				used++
				continue
			}
			r.fn(m)
			used += n
		}
		pos += int64(used)
	}
	return nil
}

// namesLongest is more than any mutation in the file takes: names are strings of MQTT.
const namesLongest = 1<<16 + 64

// readNames hands the names that a directory has beside state.db to fn, in the order in which they were written. damaged counts bytes that make no sense.
func readNames(o *Options, fsys vfs.FS, fn func(m Mutation)) (damaged int64, err error) {
	r := namesReader{fn: func(m Mutation) {
		if isName(m) {
			fn(Mutation{Bucket: m.Bucket, Key: bytes.Clone(m.Key), Value: bytes.Clone(m.Value)})
		}
	}}
	if err = r.read(fsys, o.path("names")); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return r.damaged, err
}
