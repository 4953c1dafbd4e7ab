package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"

	"github.com/edgemq/edgemq/store/record"
)

// EntrySize is the size of an entry on the disk.
const EntrySize = 40

const (
	magic      = "EMQL"
	version    = 1
	headerSize = record.FileHeaderSize
)

// Entry says what a record is and where.
type Entry struct {
	Topic, Client uint32
	Segment       uint32 // 0: no bytes behind it (transient, or lost)
	Pos, Length   uint32 // of the whole record, in its segment
	Expiry        uint32
	PacketID      uint16
	Flags         record.Flags
	Time          int64
	Bad           bool // the entry on the disk was damaged or missing: everything else is zero
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is the CRC-32C of an entry at an offset.
func checksum(offset uint64, b []byte) uint32 {
	return crc32.Update(offsetSum(offset), castagnoli, b[4:EntrySize])
}

// offsetSum is the CRC-32C of an offset, eight bytes.
func offsetSum(offset uint64) uint32 {
	crc := sums.zero
	for i := 0; offset != 0; i++ {
		crc ^= sums.of[i][byte(offset)]
		offset >>= 8
	}
	return crc
}

// sums are the CRC-32C of eight zeros, and what each byte in each place changes in it.
var sums = func() (s struct {
	zero uint32
	of   [8][256]uint32
},
) {
	var b [8]byte
	s.zero = crc32.Checksum(b[:], castagnoli)
	for i := range b {
		for v := range s.of[i] {
			b[i] = byte(v)
			s.of[i][v] = crc32.Checksum(b[:], castagnoli) ^ s.zero
		}
		b[i] = 0
	}
	return s
}()

// appendEntry encodes e at the end of dst.
func appendEntry(dst []byte, offset uint64, e *Entry) []byte {
	at := len(dst)
	dst = slices.Grow(dst, EntrySize)[:at+EntrySize]
	b := dst[at : at+EntrySize]
	binary.LittleEndian.PutUint64(b[4:], uint64(e.Topic)|uint64(e.Client)<<32)
	binary.LittleEndian.PutUint64(b[12:], uint64(e.Segment)|uint64(e.Pos)<<32)
	binary.LittleEndian.PutUint64(b[20:], uint64(e.Length)|uint64(e.Expiry)<<32)
	binary.LittleEndian.PutUint64(b[28:], uint64(e.PacketID)|uint64(e.Flags)<<16|uint64(e.Time)<<32)
	binary.LittleEndian.PutUint32(b[36:], uint32(uint64(e.Time)>>32))
	binary.LittleEndian.PutUint32(b, checksum(offset, b))
	return dst
}

// parseEntry decodes b, of EntrySize bytes. What is damaged comes back as Bad and nothing else.
func parseEntry(b []byte, offset uint64) Entry {
	if binary.LittleEndian.Uint32(b) != checksum(offset, b) {
		return Entry{Bad: true}
	}
	return Entry{
		Topic:    binary.LittleEndian.Uint32(b[4:]),
		Client:   binary.LittleEndian.Uint32(b[8:]),
		Segment:  binary.LittleEndian.Uint32(b[12:]),
		Pos:      binary.LittleEndian.Uint32(b[16:]),
		Length:   binary.LittleEndian.Uint32(b[20:]),
		Expiry:   binary.LittleEndian.Uint32(b[24:]),
		PacketID: binary.LittleEndian.Uint16(b[28:]),
		Flags:    record.Flags(binary.LittleEndian.Uint16(b[30:])),
		Time:     int64(binary.LittleEndian.Uint64(b[32:])),
	}
}

// appendHeader encodes the header of file index at the end of dst.
func appendHeader(dst []byte, index, perFile uint64) []byte {
	h := record.FileHeader{Magic: magic, Version: version, HeaderSize: headerSize}
	binary.LittleEndian.PutUint32(h.Fields[:], EntrySize)
	binary.LittleEndian.PutUint32(h.Fields[4:], uint32(perFile))
	binary.LittleEndian.PutUint64(h.Fields[8:], index*perFile)
	return h.Append(dst)
}

// checkVersion refuses a file that is newer than this build.
func (l *Ledger) checkVersion(index uint64) (err error) {
	path := l.path(index)
	f, err := l.fsys.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("open ledger file: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b := make([]byte, headerSize)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read ledger header: %w", err)
	}
	if _, err := record.ParseFileHeader(b[:n], magic, version, headerSize); errors.Is(err, ErrVersion) {
		return fmt.Errorf("ledger file %s: %w", path, err)
	}
	return nil
}
