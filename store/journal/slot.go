package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

const (
	fileMagic = "EMQJ"
	version   = 1

	// prepareStep bounds what one sync of a file being preallocated has to write, since a commit's
	// fdatasync may have to wait behind it.
	prepareStep = 8 << 20
)

// slot is one file of the journal.
type slot struct {
	life
	number int
	path   string
	file   vfs.File
	size   int64 // of the file, in whole blocks
	// written is up to where its blocks have been written; of a file that was there before this process, all, as far as is known. It is changed
	// by who prepares the slot, with mu held, then by who appends to it.
	written int64
	hurt    bool   // its header block did not make sense
	prev    uint64 // seq of the file in use when its life began, 0 if that is not known
	short   bool   // it ends before its header does, so it was never made ready, or was cut
	told    bool   // what its header tells of a file that is missing has been told, and is to go
	whole   int64  // the size that its header says, if the file is shorter: it was cut
}

// slotNumber reads a slot's number from its name.
func slotNumber(name string) (int, bool) {
	digits, ok := strings.CutSuffix(name, ".jrn")
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && n >= 0 && fmt.Sprintf("%03d", n) == digits
}

func (j *Journal) slotPath(n int) string {
	return filepath.Join(j.opts.Dir, fmt.Sprintf("%03d.jrn", n))
}

// openSlot opens an existing slot and reads its header.
func (j *Journal) openSlot(n int) (*slot, error) {
	flag := os.O_RDWR
	if j.opts.ReadOnly {
		flag = os.O_RDONLY
	}
	path := j.slotPath(n)
	f, err := j.opts.FS.OpenFile(path, flag, 0)
	if err != nil {
		return nil, fmt.Errorf("open journal file: %w", err)
	}
	s := &slot{number: n, path: path, file: f}
	if err := s.readHeader(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

// readHeader fills in the slot's life, or marks it hurt. It fails only where starting would be wrong.
func (s *slot) readHeader() error {
	size, err := s.file.Size()
	if err != nil {
		return fmt.Errorf("size of journal file: %w", err)
	}
	s.size = size &^ (BlockSize - 1)
	s.written = s.size
	b := make([]byte, record.FileHeaderSize)
	if n, err := s.file.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read header of journal file: %w", err)
	} else if n < len(b) {
		s.hurt, s.short = true, true
		return nil
	}
	h, err := record.ParseFileHeader(b, fileMagic, version, BlockSize)
	if errors.Is(err, ErrVersion) {
		return fmt.Errorf("journal file %s: %w", s.path, err)
	}
	s.life = life{binary.LittleEndian.Uint64(h.Fields[:]), binary.LittleEndian.Uint64(h.Fields[16:])}
	s.prev = binary.LittleEndian.Uint64(h.Fields[24:])
	s.hurt = err != nil || s.seq-1 >= maxSeq
	if whole := int64(binary.LittleEndian.Uint64(h.Fields[8:])); !s.hurt && whole > size {
		s.whole = whole
	}
	return nil
}

// writeHeader begins a life of the slot, durably: a checkpoint may name the file before any group in it has been
// synced, and replay takes it for damage if the file of the checkpoint is missing.
func (s *slot) writeHeader(of life, prev uint64) error {
	h := record.FileHeader{Magic: fileMagic, Version: version, HeaderSize: BlockSize}
	binary.LittleEndian.PutUint64(h.Fields[:], of.seq)
	binary.LittleEndian.PutUint64(h.Fields[8:], uint64(s.size))
	binary.LittleEndian.PutUint64(h.Fields[16:], of.salt)
	binary.LittleEndian.PutUint64(h.Fields[24:], prev)
	block := h.Append(make([]byte, 0, BlockSize))[:BlockSize]
	if _, err := s.file.WriteAt(block, 0); err != nil {
		return fmt.Errorf("write header of journal file: %w", err)
	}
	if err := s.file.Datasync(); err != nil {
		return fmt.Errorf("sync header of journal file: %w", err)
	}
	s.life, s.prev, s.hurt, s.short, s.told, s.whole = of, prev, false, false, false, 0
	return nil
}

// identify finds out which life a slot without a sound header was in, by its groups. It reports
// false if there are none.
func (s *slot) identify(buf []byte) (life, bool, error) {
	sc := newScanner(s.file, s.size, buf)
	// The first group's place is known, and nobody but Append writes there: no payload can pass for it.
	h, _, sound, err := sc.groupAt(BlockSize, life{})
	if err != nil || sound {
		return h.life, sound, err
	}
	var last life
	err = sc.groups(life{}, func(_ int64, h groupHeader) {
		if h.seq > last.seq {
			last = h.life
		}
	})
	return last, last.seq != 0, err
}

// create makes a new slot file with allocated blocks. On failure nothing is left of it.
func (j *Journal) create(n int) (_ *slot, err error) {
	fsys, path := j.opts.FS, j.slotPath(n)
	f, err := fsys.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return nil, fmt.Errorf("create journal file: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), fsys.Remove(path))
		}
	}()
	s := &slot{number: n, path: path, file: f, size: j.opts.FileBytes, hurt: true}
	if err := s.allocate(j.recent.Load() < largeAverage); err != nil {
		return nil, err
	}
	if err := fsys.SyncDir(j.opts.Dir); err != nil {
		return nil, fmt.Errorf("sync journal directory: %w", err)
	}
	return s, nil
}

// allocate makes a new slot's file as long as it is to be, of blocks that are its own; with fill they are written.
func (s *slot) allocate(fill bool) error {
	if !fill {
		err := vfs.Reserve(s.file, s.size)
		switch {
		case err == nil:
			s.written = BlockSize                 // the header will be
			if err := s.file.Sync(); err != nil { // its size is durable before its header is, see replay.cut
				return fmt.Errorf("sync new journal file: %w", err)
			}
			return nil
		case !errors.Is(err, errors.ErrUnsupported):
			return fmt.Errorf("reserve journal file: %w", err)
		}
	}
	for s.written < s.size {
		s.written = min(s.written+prepareStep, s.size)
		if err := s.file.Preallocate(s.written); err != nil {
			return fmt.Errorf("preallocate journal file: %w", err)
		}
		if err := s.file.Sync(); err != nil {
			return fmt.Errorf("sync new journal file: %w", err)
		}
	}
	return nil
}

// newSalt is a variable for the sake of golden files.
var newSalt = func() uint64 {
	var b [8]byte
	rand.Read(b[:]) //nolint:errcheck // it never fails
	return binary.LittleEndian.Uint64(b[:])
}
