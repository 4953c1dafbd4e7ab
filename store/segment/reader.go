package segment

import (
	"errors"
	"fmt"
	"os"

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
