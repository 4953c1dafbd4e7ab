package segment

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// scanBytes is what a scan reads at a time, unless a record is larger.
const scanBytes = 256 << 10

// Scan calls fn with every record up to length (-1: the file's end) in order. r aliases a buffer that
// is reused. Where it finds something else than a record it returns a *CorruptError.
func Scan(fsys vfs.FS, path string, length int64, fn func(pos int64, r record.Record) error) error {
	v := Surveyor{FS: fsys, Path: path, Length: length}
	s, size, err := v.open(nil)
	if err != nil {
		return err
	}
	defer s.r.Close() //nolint:errcheck // it was only read
	if s.length < HeaderSize || s.length > size {
		return &CorruptError{Path: path, Pos: size, Err: cutShort(length)}
	}
	for pos := int64(HeaderSize); pos < s.length; {
		rec, n, err := s.record(pos)
		if err != nil {
			if _, ok := errors.AsType[*readError](err); ok {
				return fmt.Errorf("read segment %s: %w", path, err)
			}
			return &CorruptError{Path: path, Pos: pos, Err: err}
		}
		if err := fn(pos, rec); err != nil {
			return err
		}
		pos += n
	}
	return nil
}

// Survey is a Surveyor's Run.
func Survey(fsys vfs.FS, path string, length int64, likely func(offset uint64, client uint32) bool,
	fn func(pos int64, r record.Record), bad func(pos, length int64, err error),
) error {
	v := Surveyor{FS: fsys, Path: path, Length: length, Likely: likely}
	return v.Run(func(pos int64, r record.Record) bool { fn(pos, r); return true }, bad)
}

// Surveyor is Scan for somebody who wants all of what a damaged segment still has: fn is called with every record, and bad with every
// stretch of bytes that is none, in order. Behind damage it goes on with the next bytes that have a record's checksum, and for which
// Likely says that such a record may stand there; what a record holds may look like one.
type Surveyor struct {
	FS     vfs.FS
	Path   string
	Length int64 // -1: the file's end
	Likely func(offset uint64, client uint32) bool

	Headless bool  // go on if the header is damaged, which is told as the others are
	Chunk    int64 // what is read at a time, unless a record is larger; 0 is what is quick
	Closed   bool  // the file is open only while it is read from: there are very many of them at work
}

// brief is a file that is open only while it is read from.
type brief struct {
	vfs.File // nil: nothing else is asked of it
	fsys     vfs.FS
	path     string
}

// ReadAt implements io.ReaderAt.
func (b brief) ReadAt(p []byte, pos int64) (int, error) {
	f, err := b.fsys.OpenFile(b.path, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	n, err := f.ReadAt(p, pos)
	return n, errors.Join(err, f.Close())
}

// Close implements io.Closer.
func (brief) Close() error { return nil }

// open opens the segment and looks at its header.
func (v *Surveyor) open(bad func(pos, length int64, err error)) (_ *scanner, size int64, err error) {
	f, err := v.FS.OpenFile(v.Path, os.O_RDONLY, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open segment: %w", err)
	}
	defer func() {
		if err != nil || v.Closed {
			err = errors.Join(err, f.Close())
		}
	}()
	if _, err := readHeader(f, v.Path); err != nil {
		corrupt, ok := errors.AsType[*CorruptError](err)
		if !ok || !v.Headless {
			return nil, 0, err
		}
		bad(0, HeaderSize, corrupt.Err)
	}
	if size, err = f.Size(); err != nil {
		return nil, 0, fmt.Errorf("size of segment: %w", err)
	}
	s := &scanner{r: f, length: v.Length, chunk: v.Chunk}
	if v.Closed {
		s.r = brief{fsys: v.FS, path: v.Path}
	}
	if s.length < 0 {
		s.length = size
	}
	return s, size, nil
}

// Run surveys the segment, until fn returns false. Its error means that nothing could be read.
func (v *Surveyor) Run(fn func(pos int64, r record.Record) bool, bad func(pos, length int64, err error)) error {
	s, size, err := v.open(bad)
	if err != nil {
		return err
	}
	defer s.r.Close() //nolint:errcheck // it was only read
	end := s.length
	s.length = min(end, size)
	whole := int64(HeaderSize) // up to here all has been told
	for whole < s.length {
		rec, n, err := s.record(whole)
		if err == nil {
			if !fn(whole, rec) {
				return nil
			}
			whole += n
			continue
		}
		next := s.resume(whole, v.Likely)
		if next == s.length && end > size {
			break // the record that the file ends in
		}
		bad(whole, next-whole, err)
		whole = next
	}
	if end > size {
		bad(whole, end-whole, cutShort(end))
	}
	return nil
}

func cutShort(length int64) error {
	return fmt.Errorf("file ends before byte %d, its valid length", length)
}

// scanner reads a segment from its beginning to its end.
type scanner struct {
	r      vfs.File
	length int64  // there is nothing behind it
	chunk  int64  // as Surveyor.Chunk
	mem    []byte // what was read last
	from   int64  // its place
}

// readError is an error of the disk, which says nothing about what is there.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// at returns at least want bytes from pos on, fewer if the segment has no more. They hold until the next call.
func (s *scanner) at(pos, want int64) ([]byte, error) {
	want = min(want, s.length-pos)
	if pos < s.from || pos+want > s.from+int64(len(s.mem)) {
		n := min(max(want, cmp.Or(s.chunk, scanBytes)), s.length-pos)
		if int64(cap(s.mem)) < n {
			s.mem = make([]byte, n)
		}
		s.mem, s.from = s.mem[:n], pos
		got, err := s.r.ReadAt(s.mem, pos)
		s.mem = s.mem[:got]
		if int64(got) < want {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return s.mem, &readError{err}
		}
	}
	return s.mem[pos-s.from:], nil
}

// record reads the record at pos.
func (s *scanner) record(pos int64) (r record.Record, n int64, err error) {
	b, err := s.at(pos, record.HeaderSize)
	if err != nil {
		return r, 0, err
	}
	size, err := record.Length(b)
	if err != nil {
		return r, 0, err
	}
	if b, err = s.at(pos, int64(size)); err != nil {
		return r, 0, err
	}
	r, size, err = record.Parse(b)
	return r, int64(size), err
}

// resume finds the next record behind pos, where there is none; the segment's end if none follows.
func (s *scanner) resume(pos int64, likely func(offset uint64, client uint32) bool) int64 {
	sound := func(at int64) bool {
		if at == s.length {
			return true
		}
		r, _, err := s.record(at)
		return err == nil && likely(r.Offset, r.Client)
	}
	// Most often it is what a record holds that is damaged, and not its length.
	if b, err := s.at(pos, record.HeaderSize); err == nil {
		if size, err := record.Length(b); err == nil && int64(size) <= s.length-pos && sound(pos+int64(size)) {
			return pos + int64(size)
		}
	}
	for pos++; pos < s.length; {
		b, err := s.at(pos, record.HeaderSize)
		if err != nil { // as from a bad sector
			pos = min(s.length, (pos+int64(len(b)))/unreadable*unreadable+unreadable)
			continue
		}
		for ; len(b) >= record.HeaderSize; b = b[1:] {
			size, offset, client, ok := record.Peek(b)
			if ok && int64(size) <= s.length-pos && likely(offset, client) && sound(pos) {
				return pos
			}
			pos++
			if ok { // sound may have read something else into b
				break
			}
		}
		if s.length-pos < record.HeaderSize {
			return s.length
		}
	}
	return s.length
}

// unreadable is how much is passed over where the disk cannot read.
const unreadable = 4096
