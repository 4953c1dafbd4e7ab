package segment

import (
	"errors"
	"fmt"
	"os"

	"github.com/edgemq/edgemq/store/vfs"
)

// Writer appends to a segment. It belongs to one goroutine.
type Writer struct {
	file vfs.File
	path string
	size int64
	sent int64 // up to here Writeback has begun
	err  error // of a failed sync: what is on the disk is not known any more
}

// Create makes a new segment, and its directory if need be. A file of that name is a leftover that
// no checkpoint knows of, and is overwritten. The names are not synced (Dir).
func Create(fsys vfs.FS, root string, h Header) (_ *Writer, err error) {
	if err := fsys.MkdirAll(Dir(root, h.Client), 0o750); err != nil {
		return nil, fmt.Errorf("make segment directory: %w", err)
	}
	path := Path(root, h.Client, h.ID)
	f, err := fsys.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	if _, err := f.WriteAt(h.append(nil), 0); err != nil {
		return nil, errors.Join(fmt.Errorf("write segment header: %w", err), f.Close())
	}
	return &Writer{file: f, path: path, size: HeaderSize}, nil
}

// OpenWrite opens a segment to append at length, its valid length as of the checkpoint.
func OpenWrite(fsys vfs.FS, root string, client, id uint32, length int64) (_ *Writer, err error) {
	path := Path(root, client, id)
	f, err := fsys.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open segment: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	h, err := readHeader(f, path)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	switch {
	case err != nil:
		return nil, fmt.Errorf("size of segment: %w", err)
	case h.ID != id || h.Client != client:
		return nil, &CorruptError{Path: path, Err: fmt.Errorf("header is of segment %d of client %d", h.ID, h.Client)}
	case length < HeaderSize || size < length:
		return nil, &CorruptError{Path: path, Pos: size, Err: fmt.Errorf("file ends before byte %d, its valid length", length)}
	}
	return &Writer{file: f, path: path, size: length, sent: length}, nil
}

// Append writes whole records with a single write, without a sync, and returns the pos of the first.
// After an error nothing counts as written, and the same Append may be tried again.
func (w *Writer) Append(b []byte) (pos int64, err error) {
	if w.err != nil {
		return 0, w.err
	}
	if w.size+int64(len(b)) > MaxBytes {
		return 0, fmt.Errorf("%w: %s with %d more bytes", ErrTooLarge, w.path, len(b))
	}
	if _, err := w.file.WriteAt(b, w.size); err != nil {
		return 0, fmt.Errorf("append to segment: %w", err)
	}
	pos = w.size
	w.size += int64(len(b))
	return pos, nil
}

// AppendV is Append of whole records that are in several buffers. It uses bufs up.
func (w *Writer) AppendV(bufs [][]byte) (pos int64, err error) {
	if w.err != nil {
		return 0, w.err
	}
	var size int64
	for _, b := range bufs {
		size += int64(len(b))
	}
	if w.size+size > MaxBytes {
		return 0, fmt.Errorf("%w: %s with %d more bytes", ErrTooLarge, w.path, size)
	}
	if err := vfs.WriteV(w.file, bufs, w.size); err != nil {
		return 0, fmt.Errorf("append to segment: %w", err)
	}
	pos = w.size
	w.size += size
	return pos, nil
}

// Writeback begins to write what was appended to the disk, so that Sync has less to wait for.
func (w *Writer) Writeback() { w.sent = vfs.Writeback(w.file, w.sent, w.size-w.sent) }

// Size is the length of the segment with all that was appended.
func (w *Writer) Size() int64 { return w.size }

// Path returns the segment's path.
func (w *Writer) Path() string { return w.path }

// Sync makes the segment's bytes durable, not its name. After an error the Writer takes nothing more.
func (w *Writer) Sync() error {
	if w.err != nil {
		return w.err
	}
	if err := w.file.Datasync(); err != nil {
		w.err = fmt.Errorf("sync segment: %w", err)
	}
	return w.err
}

// Close releases the file. It syncs nothing.
func (w *Writer) Close() error { return w.file.Close() }
