package ledger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sort"
	"sync"

	"github.com/edgemq/edgemq/store/vfs"
)

// maxOpen bounds the files kept open for reading.
const maxOpen = 16

// handle is a file open for reading. It is closed when nobody reads it and it is not in Ledger.files.
type handle struct {
	file vfs.File
	refs int // readers, and 1 while it is in Ledger.files
	used uint64
}

// acquire opens a file, or returns one that is open. release it after use.
func (l *Ledger) acquire(index uint64) (*handle, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	if h := l.files[index]; h != nil {
		h.refs++
		h.used = l.clock
		return h, nil
	}
	f, err := l.fsys.OpenFile(l.path(index), os.O_RDONLY, 0)
	for vfs.Scarce(err) && len(l.files) > 0 {
		l.evict()
		f, err = l.fsys.OpenFile(l.path(index), os.O_RDONLY, 0)
	}
	if err != nil {
		return nil, err
	}
	if len(l.files) >= maxOpen {
		l.evict()
	}
	h := &handle{f, 2, l.clock}
	l.files[index] = h
	return h, nil
}

// evict closes the file that was not used for longest, once nobody reads it. l.mu is held, and there is one.
func (l *Ledger) evict() {
	oldest, found := uint64(0), (*handle)(nil)
	for i, h := range l.files {
		if found == nil || h.used < found.used {
			oldest, found = i, h
		}
	}
	delete(l.files, oldest)
	l.unref(found)
}

func (l *Ledger) release(h *handle) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unref(h)
}

// unref gives up one use of h. l.mu is held.
func (l *Ledger) unref(h *handle) {
	if h.refs--; h.refs == 0 {
		h.file.Close() //nolint:errcheck // it was only read
	}
}

// forget closes a file that is about to be removed, once its last reader is done.
func (l *Ledger) forget(index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.files[index]; h != nil {
		delete(l.files, index)
		l.unref(h)
	}
}

// readEntries is how many entries are read at a time.
const readEntries = 1024

var buffers = sync.Pool{New: func() any { return new([readEntries * EntrySize]byte) }}

// Read reads the entries from offset from on into dst and returns how many: fewer than len(dst) only
// at Next. It never fails for the sake of damaged entries: those have Bad set, and are counted.
// Below First it gives what is still there, and for the rest entries with Segment 0.
func (l *Ledger) Read(from uint64, dst []Entry) (n int, err error) {
	next := l.next.Load()
	if from >= next {
		return 0, nil
	}
	dst = dst[:min(uint64(len(dst)), next-from)]
	buf := buffers.Get().(*[readEntries * EntrySize]byte)
	defer buffers.Put(buf)
	bad := 0
	for n < len(dst) {
		offset := from + uint64(n)
		part := dst[n:][:min(uint64(len(dst)-n), l.perFile-offset%l.perFile, readEntries)]
		if err := l.readFile(buf[:len(part)*EntrySize], offset); err != nil {
			return n, err
		}
		for i := range part {
			part[i] = parseEntry(buf[i*EntrySize:(i+1)*EntrySize], offset+uint64(i))
			if part[i].Bad {
				bad++
			}
		}
		n += len(part)
	}
	if bad == 0 {
		return n, nil
	}
	// Read after the files, so that what DropBefore took from under us is not called damaged.
	for i := uint64(0); i < uint64(n) && from+i < l.first.Load(); i++ {
		if dst[i].Bad {
			dst[i] = Entry{}
			bad--
		}
	}
	l.damaged.Add(uint64(bad))
	return n, nil
}

// readFile reads entries of one file as bytes. What the file does not have reads as zeros, which are no entry.
func (l *Ledger) readFile(b []byte, offset uint64) error {
	index := offset / l.perFile
	h, err := l.acquire(index)
	if errors.Is(err, fs.ErrNotExist) {
		clear(b)
		return nil
	}
	if err != nil {
		return fmt.Errorf("open ledger file: %w", err)
	}
	defer l.release(h)
	n, err := h.file.ReadAt(b, headerSize+int64(offset%l.perFile)*EntrySize)
	if n < len(b) {
		if !errors.Is(err, io.EOF) {
			return fmt.Errorf("read ledger file %s: %w", l.path(index), err)
		}
		clear(b[n/EntrySize*EntrySize:])
	}
	return nil
}

// Search returns the lowest offset whose record has at least time (µs since 1970), or Next. Next to damaged
// entries it may return the offset of one of those, in front.
func (l *Ledger) Search(time int64, real func(offset uint64, time int64) int64) uint64 {
	first, next := l.first.Load(), l.next.Load()
	if first >= next {
		return next
	}
	// Blocks first, by their first sound entry; then within the block before the one that is late enough.
	var block [256]Entry
	blocks := int((next - first + uint64(len(block)) - 1) / uint64(len(block)))
	load := func(i int) []Entry {
		from := first + uint64(i*len(block))
		n, err := l.Read(from, block[:min(uint64(len(block)), next-from)])
		if err != nil {
			return nil
		}
		return block[:n]
	}
	late := func(i int) bool {
		for ; i < blocks; i++ {
			for k, e := range load(i) {
				if !e.Bad {
					return real(first+uint64(i*len(block)+k), e.Time) >= time
				}
			}
		}
		return true
	}
	i := sort.Search(blocks, late)
	if i > 0 {
		for k, e := range load(i - 1) {
			if !e.Bad && real(first+uint64((i-1)*len(block)+k), e.Time) >= time {
				return first + uint64((i-1)*len(block)+k)
			}
		}
	}
	return min(first+uint64(i*len(block)), next)
}
