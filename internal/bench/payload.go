package bench

import (
	"encoding/binary"
	"hash/crc32"
	"time"
)

// A payload, all integers little-endian:
//
//	crc u32 | publisher u32 | topic u32 | number u32 | time i64 | filler
//
// crc is CRC-32C over the rest. Numbers count from 1 for each pair of publisher and topic. The low 48 bits of time are nanoseconds since
// the tool began: publisher and consumer are in one process, whose monotonic clock no adjustment of the time moves. The high 16 bits are the
// run's tag, since all runs have the same topics and there may be messages of an earlier one on their way.

// MinSize is the shortest payload that proves itself.
const MinSize = 24

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var began = time.Now()

// now is the time as payloads carry it.
func now() int64 { return int64(time.Since(began)) }

const timeBits = 48

// tagged is a time in a payload of the run with the tag.
func tagged(tag uint16, at int64) int64 {
	return int64(uint64(tag)<<timeBits | uint64(at)&(1<<timeBits-1))
}

// seal makes b, whose filler is in place, a payload.
func seal(b []byte, publisher, topic, number uint32, at int64) {
	binary.LittleEndian.PutUint32(b[4:], publisher)
	binary.LittleEndian.PutUint32(b[8:], topic)
	binary.LittleEndian.PutUint32(b[12:], number)
	binary.LittleEndian.PutUint64(b[16:], uint64(at))
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
}

// unseal takes a payload apart; ok is false if it is not as it was sealed.
func unseal(b []byte) (publisher, topic, number uint32, at int64, ok bool) {
	if len(b) < MinSize || crc32.Checksum(b[4:], castagnoli) != binary.LittleEndian.Uint32(b) {
		return 0, 0, 0, 0, false
	}
	return binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:]),
		int64(binary.LittleEndian.Uint64(b[16:])), true
}

// filler is what is in a payload behind its head: bytes that do not compress to nothing.
func filler(size int) []byte {
	b := make([]byte, size)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}
