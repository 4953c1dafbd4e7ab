package journal

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

const groupMagic = "EMQG"

// maxSeq bounds file and group seqs, so that counting on from one cannot wrap.
const maxSeq = 1 << 62

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// life is what tells the groups of one life of a slot from those of another, and from a payload.
type life struct{ seq, salt uint64 }

// groupHeader is the header of a group, decoded.
type groupHeader struct {
	life
	crc                uint32
	group, synced      uint64
	base               uint64
	records, mutations uint32 // bytes
	count              uint32
}

// size is the length of the group without its padding. It does not overflow: both parts are below 2³².
func (h *groupHeader) size() int64 { return HeaderSize + int64(h.records) + int64(h.mutations) }

// padded is the distance to the next group.
func padded(size int64) int64 { return (size + BlockSize - 1) &^ (BlockSize - 1) }

// put encodes h into the first bytes of group and computes its checksum. sum is that of the first summed bytes of the records.
func (h *groupHeader) put(group []byte, sum uint32, summed int) {
	b := group[:HeaderSize]
	copy(b, groupMagic)
	binary.LittleEndian.PutUint64(b[8:], h.seq)
	binary.LittleEndian.PutUint64(b[16:], h.group)
	binary.LittleEndian.PutUint64(b[24:], h.synced)
	binary.LittleEndian.PutUint64(b[32:], h.base)
	binary.LittleEndian.PutUint32(b[40:], h.records)
	binary.LittleEndian.PutUint32(b[44:], h.mutations)
	binary.LittleEndian.PutUint32(b[48:], h.count)
	binary.LittleEndian.PutUint32(b[52:], 0)
	binary.LittleEndian.PutUint64(b[56:], h.salt)
	crc := record.Concat(crc32.Checksum(b[8:], castagnoli), sum, summed)
	binary.LittleEndian.PutUint32(b[4:], crc32.Update(crc, castagnoli, group[HeaderSize+summed:]))
}

// parseGroupHeader decodes b. What it returns is plausible, not verified: the checksum covers the
// contents too.
func parseGroupHeader(b []byte) (groupHeader, bool) {
	h := groupHeader{
		crc:       binary.LittleEndian.Uint32(b[4:]),
		life:      life{binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[56:])},
		group:     binary.LittleEndian.Uint64(b[16:]),
		synced:    binary.LittleEndian.Uint64(b[24:]),
		base:      binary.LittleEndian.Uint64(b[32:]),
		records:   binary.LittleEndian.Uint32(b[40:]),
		mutations: binary.LittleEndian.Uint32(b[44:]),
		count:     binary.LittleEndian.Uint32(b[48:]),
	}
	ok := string(b[:4]) == groupMagic && h.seq-1 < maxSeq && h.group-1 < maxSeq && h.synced < h.group &&
		uint64(h.count)*record.HeaderSize <= uint64(h.records)
	return h, ok
}

// scanner reads a slot's groups through a window, so that it needs little memory whatever a group's size.
type scanner struct {
	file vfs.File
	size int64
	buf  []byte // the window
	off  int64  // where it begins in the file
	n    int    // how much of it is filled
}

const windowSize = 1 << 20

func newScanner(f vfs.File, size int64, buf []byte) *scanner {
	return &scanner{file: f, size: size, buf: buf}
}

// bytes returns n bytes from pos on, valid until the next call. n is at most the window's size.
func (s *scanner) bytes(pos int64, n int) ([]byte, error) {
	if pos < s.off || pos+int64(n) > s.off+int64(s.n) {
		want := int(min(int64(len(s.buf)), s.size-pos))
		s.off, s.n = pos, 0
		got, err := s.file.ReadAt(s.buf[:want], pos)
		if got < want {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		s.n = got
	}
	at := int(pos - s.off)
	return s.buf[at : at+n], nil
}

// groupAt reads the group that begins at pos. sound means that its checksum is right; plausible that
// its header is at least one of this life. The zero life stands for any.
func (s *scanner) groupAt(pos int64, of life) (h groupHeader, plausible, sound bool, err error) {
	if s.size-pos < HeaderSize {
		return h, false, false, nil
	}
	b, err := s.bytes(pos, HeaderSize)
	if err != nil {
		return h, false, false, err
	}
	h, ok := parseGroupHeader(b)
	if !ok || (of != life{} && h.life != of) {
		return h, false, false, nil
	}
	if h.size() > s.size-pos {
		return h, true, false, nil
	}
	crc := crc32.Update(0, castagnoli, b[8:])
	for at, end := pos+HeaderSize, pos+h.size(); at < end; {
		n := int(min(end-at, int64(len(s.buf))))
		if b, err = s.bytes(at, n); err != nil {
			return h, true, false, err
		}
		crc = crc32.Update(crc, castagnoli, b)
		at += int64(n)
	}
	return h, true, crc == h.crc, nil
}

// groups calls fn with every sound group of a life, in the order of the file. Where there is none it
// looks on at the next block.
func (s *scanner) groups(of life, fn func(pos int64, h groupHeader)) error {
	for pos := int64(BlockSize); pos < s.size; {
		h, _, sound, err := s.groupAt(pos, of)
		switch {
		case err != nil:
			return err
		case sound:
			fn(pos, h)
			pos += padded(h.size())
		default:
			pos += BlockSize
		}
	}
	return nil
}
