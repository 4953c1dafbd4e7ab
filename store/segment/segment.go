// Package segment reads and writes the files that hold one client's publishes.
//
// A segment is a header of 64 bytes and then records (package record), back to back. The header is
// a record.FileHeader "EMQS" with the fields
//
//	segment id u32 | client u32 | base offset u64 | created i64 (µs since 1970) | zeros
//
// A segment does not know its own length: the checkpoint does (Meta.Bytes), and what lies behind it
// is overwritten. docs/FORMAT.md has the full rules.
package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// HeaderSize is the pos of a segment's first record.
const HeaderSize = record.FileHeaderSize

// Shared is the client number of segments that clients share who have published next to nothing.
const Shared uint32 = 0xFFFFFFFF

// MaxBytes bounds a segment, since the ledger keeps a pos in 32 bits.
const MaxBytes = 1<<32 - 1

const (
	magic   = "EMQS"
	version = 1
)

// ErrVersion means that a segment is sound but newer than this build.
var ErrVersion = record.ErrVersion

// ErrTooLarge means that a segment would grow past MaxBytes.
var ErrTooLarge = errors.New("segment: too large")

// CorruptError says where a segment stopped making sense.
type CorruptError = record.CorruptError

// Header is what a segment says of itself.
type Header struct {
	ID, Client uint32 // ID is never 0
	Base       uint64 // no record has a lower offset
	Created    int64  // µs since 1970
}

// Dir returns the directory of a client's segments; for Shared the one of shared segments. Its name
// needs SyncDir of root, a new segment's name SyncDir of it.
func Dir(root string, client uint32) string {
	if client == Shared {
		return filepath.Join(root, "shared")
	}
	return filepath.Join(root, fmt.Sprintf("%08x", client))
}

// Path returns the path of a segment.
func Path(root string, client, id uint32) string {
	return filepath.Join(Dir(root, client), fmt.Sprintf("%08x.seg", id))
}

// append encodes h at the end of dst.
func (h Header) append(dst []byte) []byte {
	f := record.FileHeader{Magic: magic, Version: version, HeaderSize: HeaderSize}
	binary.LittleEndian.PutUint32(f.Fields[:], h.ID)
	binary.LittleEndian.PutUint32(f.Fields[4:], h.Client)
	binary.LittleEndian.PutUint64(f.Fields[8:], h.Base)
	binary.LittleEndian.PutUint64(f.Fields[16:], uint64(h.Created))
	return f.Append(dst)
}

// readHeader reads the header of an open segment.
func readHeader(f vfs.File, path string) (Header, error) {
	b := make([]byte, HeaderSize)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return Header{}, fmt.Errorf("read segment header: %w", err)
	}
	fh, err := record.ParseFileHeader(b[:n], magic, version, HeaderSize)
	switch {
	case errors.Is(err, ErrVersion):
		return Header{}, fmt.Errorf("segment %s: %w", path, err)
	case err != nil:
		return Header{}, &CorruptError{Path: path, Err: err}
	}
	return Header{
		ID:      binary.LittleEndian.Uint32(fh.Fields[:]),
		Client:  binary.LittleEndian.Uint32(fh.Fields[4:]),
		Base:    binary.LittleEndian.Uint64(fh.Fields[8:]),
		Created: int64(binary.LittleEndian.Uint64(fh.Fields[16:])),
	}, nil
}
