package segment

import (
	"errors"
	"fmt"
	"os"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// Reader reads a segment. It is safe for concurrent use, also beside a Writer of the same segment.
type Reader struct {
	file   vfs.File
	path   string
	header Header
}

// OpenRead opens a segment and checks its header.
func OpenRead(fsys vfs.FS, path string) (*Reader, error) {
	f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("open segment: %w", err)
	}
	h, err := readHeader(f, path)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Reader{file: f, path: path, header: h}, nil
}

// ReadAt reads from byte pos of the file on, as io.ReaderAt.
func (r *Reader) ReadAt(p []byte, pos int64) (int, error) { return r.file.ReadAt(p, pos) }

// Size is the length of the file, which may be more than its valid length.
func (r *Reader) Size() (int64, error) { return r.file.Size() }

// Header returns what the segment says of itself.
func (r *Reader) Header() Header { return r.header }

// Path returns the segment's path.
func (r *Reader) Path() string { return r.path }

// Close releases the file.
func (r *Reader) Close() error { return r.file.Close() }

// scanBytes is what Scan reads at a time, unless a record is larger.
const scanBytes = 256 << 10

// Scan calls fn with every record up to length (-1: the file's end) in order. r aliases a buffer that
// is reused. Where it finds something else than a record it returns a *CorruptError.
func Scan(fsys vfs.FS, path string, length int64, fn func(pos int64, r record.Record) error) error {
	r, err := OpenRead(fsys, path)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	size, err := r.Size()
	if err != nil {
		return fmt.Errorf("size of segment: %w", err)
	}
	if length < 0 {
		length = size
	}
	if length < HeaderSize || length > size {
		return &CorruptError{Path: path, Pos: size, Err: fmt.Errorf("file ends before byte %d, its valid length", length)}
	}
	var mem, buf []byte // buf is what of mem is not parsed yet
	for pos := int64(HeaderSize); pos < length; {
		rec, n, err := record.Parse(buf)
		if errors.Is(err, record.ErrShort) {
			// The next bytes are needed, or the record is cut short by length.
			want := int64(scanBytes)
			if n, err := record.Length(buf); err == nil {
				want = max(want, int64(n))
			}
			want = min(want, length-pos)
			if int64(len(buf)) == want {
				return &CorruptError{Path: path, Pos: pos, Err: record.ErrShort}
			}
			if int64(len(mem)) < want {
				mem = make([]byte, want)
			}
			buf = mem[:want]
			if n, err := r.ReadAt(buf, pos); n < len(buf) {
				return fmt.Errorf("read segment %s: %w", path, err)
			}
			continue
		}
		if err != nil {
			return &CorruptError{Path: path, Pos: pos, Err: err}
		}
		if err := fn(pos, rec); err != nil {
			return err
		}
		pos += int64(n)
		buf = buf[n:]
	}
	return nil
}
