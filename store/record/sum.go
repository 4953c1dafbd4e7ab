package record

import (
	"encoding/binary"
	"hash/crc32"
	"sync/atomic"
)

// Sum returns the CRC-32C of what sum is of, followed by b.
func Sum(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }

// Concat returns the CRC-32C of a, followed by n bytes whose own is b, from the two.
func Concat(a, b uint32, n int) uint32 { return times(a, power(n)) ^ b }

// Extend returns the CRC-32C of what sum is of, followed by a whole record. It takes the word of the record's own checksum, and so does
// not look at a payload that may be large.
func Extend(sum uint32, rec []byte) uint32 {
	return Concat(Sum(sum, rec[:4]), binary.LittleEndian.Uint32(rec), len(rec)-4)
}

// A checksum is a polynomial over GF(2) modulo the one of Castagnoli, reflected: its top bit is the coefficient of x⁰. To append n bytes is to
// multiply with x to the power of 8n, and to add what the bytes have on their own.

// times multiplies two such polynomials.
func times(a, b uint32) uint32 {
	var p uint32
	for ; a != 0; a <<= 1 {
		if a>>31 != 0 {
			p ^= b
		}
		b = b>>1 ^ crc32.Castagnoli&-(b&1)
	}
	return p
}

// squares[i] is x to the power of 8·2ⁱ.
var squares = func() (s [32]uint32) {
	s[0] = 1 << (31 - 8)
	for i := 1; i < len(s); i++ {
		s[i] = times(s[i-1], s[i-1])
	}
	return s
}()

// lastPower is the newest length that power was asked for, and what came of it: as a rule the next one is the same.
var lastPower atomic.Uint64

// power returns x to the power of 8n.
func power(n int) uint32 {
	if last := lastPower.Load(); last>>32 == uint64(n) && n > 0 {
		return uint32(last)
	}
	p := uint32(1 << 31)
	for i, m := 0, n; m > 0; i, m = i+1, m>>1 {
		if m&1 != 0 {
			p = times(p, squares[i])
		}
	}
	lastPower.Store(uint64(n)<<32 | uint64(p))
	return p
}
