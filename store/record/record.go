// Package record is the one encoding of a message and of a change of durable state: the journal
// and the segments hold the same bytes, so moving a record never means encoding it again.
//
// A record is a fixed header of 44 bytes, then the MQTT 5 properties, then the payload, all
// integers little-endian:
//
//	crc u32 | length u32 | offset u64 | time i64 | topic u32 | client u32 | expiry u32 |
//	packet id u16 | flags u16 | props length u32 | props | payload
//
// crc is CRC-32C over everything after it, length counts the whole record. A mutation is
//
//	crc u32 | bucket u8 | op u8 | key length u16 | value length u32 | key | value
//
// Eight zero bytes are neither, so a zeroed tail reads as the end. docs/FORMAT.md has the rules,
// and the ones every file of the store shares (FileHeader).
package record

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
)

// HeaderSize is the size of a record's fixed part.
const HeaderSize = 44

// MaxSize bounds a record. MQTT cannot carry a packet of more than 256 MiB, so a longer length is damage.
const MaxSize = 1<<28 + 1<<16

// What Parse and ParseMutation find wrong. They say nothing about the place: the caller knows it.
var (
	ErrShort     = errors.New("record: cut short")
	ErrChecksum  = errors.New("record: checksum mismatch")
	ErrEmpty     = errors.New("record: zeros, no record here")
	ErrMalformed = errors.New("record: sound checksum, impossible fields")
)

// Flags are a message's small facts.
type Flags uint16

// The bits of Flags. The two lowest are the QoS; those not named are reserved and zero.
const (
	FlagRetain    Flags = 1 << 2 // published with RETAIN
	FlagExpiry    Flags = 1 << 3 // Expiry counts, even if it is 0 s
	FlagTransient Flags = 1 << 4 // for live subscribers only: never moved to a segment
	FlagUTF8      Flags = 1 << 5 // payload format indicator 1
	FlagKeyed     Flags = 1 << 6 // the properties have keys by which it is found

	flagQoS      Flags = 3
	flagReserved       = ^(flagQoS | FlagRetain | FlagExpiry | FlagTransient | FlagUTF8 | FlagKeyed)
)

// QoS returns the quality of service the message was published with.
func (f Flags) QoS() byte { return byte(f & flagQoS) }

// WithQoS returns f with its QoS set.
func (f Flags) WithQoS(qos byte) Flags { return f&^flagQoS | Flags(qos)&flagQoS }

// Has reports whether all of bits are set.
func (f Flags) Has(bits Flags) bool { return f&bits == bits }

// Record is one message in the store.
type Record struct {
	Offset   uint64
	Time     int64 // µs since 1970, monotone with Offset but for steps of the clock, which the store knows
	Topic    uint32
	Client   uint32
	Expiry   uint32 // seconds from Time, if Flags has FlagExpiry
	PacketID uint16
	Flags    Flags
	Props    []byte // MQTT 5 properties as on the wire, without their length
	Payload  []byte
}

// Size returns the bytes that a record of such a message takes.
func Size(props, payload int) int { return HeaderSize + props + payload }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Append encodes r at the end of dst. It allocates only if dst is too small. The caller has seen to
// it that Size is at most MaxSize.
func Append(dst []byte, r *Record) []byte {
	size := Size(len(r.Props), len(r.Payload))
	at := len(dst)
	dst = slices.Grow(dst, size)[:at+HeaderSize]
	h := dst[at : at+HeaderSize]
	binary.LittleEndian.PutUint32(h[4:], uint32(size))
	binary.LittleEndian.PutUint64(h[8:], r.Offset)
	binary.LittleEndian.PutUint64(h[16:], uint64(r.Time))
	binary.LittleEndian.PutUint32(h[24:], r.Topic)
	binary.LittleEndian.PutUint32(h[28:], r.Client)
	binary.LittleEndian.PutUint32(h[32:], r.Expiry)
	binary.LittleEndian.PutUint16(h[36:], r.PacketID)
	binary.LittleEndian.PutUint16(h[38:], uint16(r.Flags))
	binary.LittleEndian.PutUint32(h[40:], uint32(len(r.Props)))
	dst = append(dst, r.Props...)
	dst = append(dst, r.Payload...)
	binary.LittleEndian.PutUint32(dst[at:], crc32.Checksum(dst[at+4:], castagnoli))
	return dst
}

// Parse decodes the record that b begins with and returns its length. Props and Payload alias b.
func Parse(b []byte) (r Record, n int, err error) {
	size, err := Length(b)
	if err != nil {
		return Record{}, 0, err
	}
	if len(b) < size {
		return Record{}, 0, ErrShort
	}
	b = b[:size:size]
	if binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) {
		return Record{}, 0, ErrChecksum
	}
	if r, err = decode(b); err != nil {
		return Record{}, 0, err
	}
	return r, size, nil
}

// Length returns the length of the record that b begins with, which need not hold more than its
// first eight bytes. The length is plausible, not verified.
func Length(b []byte) (int, error) {
	if len(b) < 8 {
		return 0, ErrShort
	}
	size := binary.LittleEndian.Uint32(b[4:])
	switch {
	case size == 0 && binary.LittleEndian.Uint32(b) == 0:
		return 0, ErrEmpty
	case size < HeaderSize || size > MaxSize:
		return 0, ErrChecksum
	}
	return int(size), nil
}

// Peek reads what a record says of itself at b, which has at least HeaderSize bytes, without its checksum. ok is false if no record has such fields.
func Peek(b []byte) (size int, offset uint64, client uint32, ok bool) {
	size, err := Length(b)
	flags := Flags(binary.LittleEndian.Uint16(b[38:]))
	if err != nil || flags&flagReserved != 0 || flags.QoS() == 3 || uint64(binary.LittleEndian.Uint32(b[40:])) > uint64(size-HeaderSize) {
		return 0, 0, 0, false
	}
	return size, binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint32(b[28:]), true
}

// decode reads the fields of b, one whole record whose checksum was right.
func decode(b []byte) (Record, error) {
	props := binary.LittleEndian.Uint32(b[40:])
	r := Record{
		Offset:   binary.LittleEndian.Uint64(b[8:]),
		Time:     int64(binary.LittleEndian.Uint64(b[16:])),
		Topic:    binary.LittleEndian.Uint32(b[24:]),
		Client:   binary.LittleEndian.Uint32(b[28:]),
		Expiry:   binary.LittleEndian.Uint32(b[32:]),
		PacketID: binary.LittleEndian.Uint16(b[36:]),
		Flags:    Flags(binary.LittleEndian.Uint16(b[38:])),
	}
	if uint64(props) > uint64(len(b)-HeaderSize) || r.Flags&flagReserved != 0 || r.Flags.QoS() == 3 {
		return Record{}, ErrMalformed
	}
	end := HeaderSize + int(props)
	r.Props, r.Payload = b[HeaderSize:end:end], b[end:]
	return r, nil
}
