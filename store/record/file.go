package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// FileHeaderSize is the size of the header that every file of the store begins with.
const FileHeaderSize = 64

// ErrVersion means that a file is sound but newer than this build. It is not corruption.
var ErrVersion = errors.New("unsupported format version, written by a newer edgemq")

// ErrMagic means that a file is none of the store's, or that its first bytes are damaged.
var ErrMagic = errors.New("not a file of this kind")

// CorruptError says where a file stopped making sense. It unwraps to Err.
type CorruptError struct {
	Path string
	Pos  int64 // byte position of what is bad
	Err  error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s: corrupt at byte %d: %v", e.Path, e.Pos, e.Err)
}

// Unwrap returns what was found wrong.
func (e *CorruptError) Unwrap() error { return e.Err }

// FileHeader is the start of a journal, segment or ledger file:
//
//	magic u32 | version u16 | header size u16 | fields of that kind of file [52]byte | crc u32
//
// crc is CRC-32C over the 60 bytes before it. It stays there in every version to come, so that a
// newer version can be told from a flipped bit.
type FileHeader struct {
	Magic      string // four letters
	Version    uint16
	HeaderSize uint16 // where the contents begin
	Fields     [52]byte
}

// Append encodes h at the end of dst.
func (h *FileHeader) Append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, h.Magic[:4]...)
	dst = binary.LittleEndian.AppendUint16(dst, h.Version)
	dst = binary.LittleEndian.AppendUint16(dst, h.HeaderSize)
	dst = append(dst, h.Fields[:]...)
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[at:], castagnoli))
}

// ParseFileHeader reads the header of a file of the given kind. It returns ErrVersion if the file
// is sound and newer than version, and another error if it is damaged.
func ParseFileHeader(b []byte, magic string, version, headerSize uint16) (FileHeader, error) {
	switch {
	case len(b) < FileHeaderSize:
		return FileHeader{}, ErrShort
	case string(b[:4]) != magic:
		return FileHeader{}, ErrMagic
	case binary.LittleEndian.Uint32(b[60:]) != crc32.Checksum(b[:60], castagnoli):
		return FileHeader{}, ErrChecksum
	}
	h := FileHeader{
		Magic:      magic,
		Version:    binary.LittleEndian.Uint16(b[4:]),
		HeaderSize: binary.LittleEndian.Uint16(b[6:]),
	}
	copy(h.Fields[:], b[8:60])
	switch {
	case h.Version > version:
		return FileHeader{}, fmt.Errorf("%w: version %d, this build knows %d", ErrVersion, h.Version, version)
	case h.Version == 0 || h.HeaderSize != headerSize:
		return FileHeader{}, ErrMalformed
	}
	return h, nil
}
