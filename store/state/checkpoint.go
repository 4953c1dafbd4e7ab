package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/edgemq/edgemq/store/record"
)

// Checkpoint is what the files of the store hold for certain.
type Checkpoint struct {
	JournalFile, JournalGroup uint64 // where replay begins (journal.Position)
	First                     uint64 // lowest offset kept
	Next                      uint64 // all offsets below are in the ledger and the segments
	Time                      int64  // µs since 1970, of the last record below Next
	Saved                     int64  // µs since 1970, when it was made
}

const (
	checkpointVersion = 1
	checkpointSize    = 1 + 6*8 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errCheckpoint = errors.New("state: malformed checkpoint")

// append encodes c: version u8 | the six fields in their order | crc u32.
func (c Checkpoint) append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, checkpointVersion)
	for _, v := range [...]uint64{c.JournalFile, c.JournalGroup, c.First, c.Next, uint64(c.Time), uint64(c.Saved)} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[at:], castagnoli))
}

func parseCheckpoint(b []byte) (Checkpoint, error) {
	if len(b) < 5 {
		return Checkpoint{}, fmt.Errorf("%w: %w", errCheckpoint, record.ErrShort)
	}
	n := len(b) - 4
	if binary.LittleEndian.Uint32(b[n:]) != crc32.Checksum(b[:n], castagnoli) {
		return Checkpoint{}, fmt.Errorf("%w: %w", errCheckpoint, record.ErrChecksum)
	}
	if b[0] > checkpointVersion {
		return Checkpoint{}, fmt.Errorf("checkpoint: %w", ErrVersion)
	}
	if b[0] == 0 || len(b) != checkpointSize {
		return Checkpoint{}, errCheckpoint
	}
	u64 := func(i int) uint64 { return binary.LittleEndian.Uint64(b[1+8*i:]) }
	return Checkpoint{u64(0), u64(1), u64(2), u64(3), int64(u64(4)), int64(u64(5))}, nil
}
