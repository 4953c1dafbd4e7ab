package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/edgemq/edgemq/store/record"
)

// Meta is what the state keeps of a segment.
type Meta struct {
	ID, Client          uint32
	Bytes               int64 // valid length, header included
	Base, Last          uint64
	FirstTime, LastTime int64
	Records             uint64
	Sealed              bool
	Topics              []uint32 // distinct, ascending; for retention by topic
}

const (
	metaVersion = 1
	metaFixed   = 2 + 2*4 + 6*8 // without the topics and the checksum
	metaSealed  = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errMeta = errors.New("segment: malformed meta")

// AppendMeta encodes m at the end of dst:
//
//	version u8 | flags u8 (1 sealed) | id u32 | client u32 | bytes i64 | base u64 | last u64 |
//	first time i64 | last time i64 | records u64 | topics, each as uvarint of its distance to the one before | crc u32
func AppendMeta(dst []byte, m Meta) []byte {
	at := len(dst)
	flags := byte(0)
	if m.Sealed {
		flags = metaSealed
	}
	dst = append(dst, metaVersion, flags)
	dst = binary.LittleEndian.AppendUint32(dst, m.ID)
	dst = binary.LittleEndian.AppendUint32(dst, m.Client)
	for _, v := range [...]uint64{uint64(m.Bytes), m.Base, m.Last, uint64(m.FirstTime), uint64(m.LastTime), m.Records} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	last := uint32(0)
	for _, t := range m.Topics {
		dst = binary.AppendUvarint(dst, uint64(t-last))
		last = t
	}
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[at:], castagnoli))
}

// ParseMeta decodes what AppendMeta encoded. A newer encoding gives ErrVersion.
func ParseMeta(b []byte) (Meta, error) {
	if len(b) < 5 {
		return Meta{}, fmt.Errorf("%w: %w", errMeta, record.ErrShort)
	}
	body, crc := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc != crc32.Checksum(body, castagnoli) {
		return Meta{}, fmt.Errorf("%w: %w", errMeta, record.ErrChecksum)
	}
	if body[0] > metaVersion {
		return Meta{}, fmt.Errorf("segment meta: %w", ErrVersion)
	}
	if body[0] == 0 || len(body) < metaFixed || body[1]&^metaSealed != 0 {
		return Meta{}, errMeta
	}
	u64 := func(i int) uint64 { return binary.LittleEndian.Uint64(body[10+8*i:]) }
	m := Meta{
		ID: binary.LittleEndian.Uint32(body[2:]), Client: binary.LittleEndian.Uint32(body[6:]),
		Bytes: int64(u64(0)), Base: u64(1), Last: u64(2), FirstTime: int64(u64(3)), LastTime: int64(u64(4)), Records: u64(5),
		Sealed: body[1] == metaSealed,
	}
	last := uint64(0)
	for rest := body[metaFixed:]; len(rest) > 0; {
		d, n := binary.Uvarint(rest)
		// Ascending, and each in its shortest form: a Meta has one encoding.
		if n <= 0 || d > 1<<32-1 || last+d > 1<<32-1 || d == 0 && len(m.Topics) > 0 || n > 1 && rest[n-1] == 0 {
			return Meta{}, errMeta
		}
		last += d
		m.Topics = append(m.Topics, uint32(last))
		rest = rest[n:]
	}
	return m, nil
}
