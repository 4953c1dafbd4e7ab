package packet

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
)

// maxString is the longest string or binary value MQTT can express. Encoders cut at it, since a length that
// does not fit would put the rest of the connection out of step.
const maxString = 65535

func malformed(rule, msg string) *Error { return &Error{CodeMalformed, rule, msg} }
func protocol(rule, msg string) *Error  { return &Error{CodeProtocol, rule, msg} }

var errShort = malformed("", "packet ends in the middle of a field")

// varint decodes a variable byte integer. n is the number of bytes it takes: 0 if b ends before it does,
// -1 if it is longer than four bytes.
func varint(b []byte) (v uint32, n int) {
	for i := range 4 {
		if i == len(b) {
			return 0, 0
		}
		v |= uint32(b[i]&0x7F) << (7 * i)
		if b[i] < 0x80 {
			return v, i + 1
		}
	}
	return 0, -1
}

// overlong reports whether a variable byte integer of n bytes could have been shorter [MQTT-1.5.5-1].
func overlong(v uint32, n int) bool { return n > varintSize(v) }

func varintSize(v uint32) int {
	switch {
	case v < 1<<7:
		return 1
	case v < 1<<14:
		return 2
	case v < 1<<21:
		return 3
	}
	return 4
}

func appendVarint(dst []byte, v uint32) []byte {
	for v >= 0x80 {
		dst = append(dst, byte(v)|0x80)
		v >>= 7
	}
	return append(dst, byte(v))
}

func appendUint16(dst []byte, v uint16) []byte { return binary.BigEndian.AppendUint16(dst, v) }
func appendUint32(dst []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(dst, v) }

func appendString[S string | []byte](dst []byte, s S) []byte {
	n := min(len(s), maxString)
	dst = appendUint16(dst, uint16(n))
	return append(dst, s[:n]...)
}

func stringSize[S string | []byte](s S) int { return 2 + min(len(s), maxString) }

// checkUTF8 holds a string against 1.5.4: well-formed UTF-8 (so no surrogates) without U+0000.
func checkUTF8(b []byte) *Error {
	if plain(b) {
		return nil
	}
	if !utf8.Valid(b) {
		return malformed("MQTT-1.5.4-1", "string is not UTF-8")
	}
	if bytes.IndexByte(b, 0) >= 0 {
		return malformed("MQTT-1.5.4-2", "string contains U+0000")
	}
	return nil
}

// plain reports whether b is ASCII without NUL, '+' and '#': nearly every topic and property, told at eight
// bytes a step. False means look closer.
func plain(b []byte) bool {
	if len(b) < 8 {
		for _, c := range b {
			if c == 0 || c >= 0x80 || c == '+' || c == '#' {
				return false
			}
		}
		return true
	}
	for i := 0; i+8 <= len(b); i += 8 {
		if suspect(binary.LittleEndian.Uint64(b[i:])) {
			return false
		}
	}
	return !suspect(binary.LittleEndian.Uint64(b[len(b)-8:]))
}

// suspect reports whether one of the eight bytes is NUL, '+', '#' or not ASCII: (x-ones)&^x has a high bit set
// if and only if some byte of x is zero.
func suspect(x uint64) bool {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	plus, hash := x^('+'*ones), x^('#'*ones)
	return (x|((x-ones)&^x)|((plus-ones)&^plus)|((hash-ones)&^hash))&highs != 0
}

// checkName holds a topic name against 1.5.4 and 4.7. A wildcard is CodeTopicInvalid.
func checkName(b []byte) *Error {
	if plain(b) {
		return nil
	}
	if err := checkUTF8(b); err != nil {
		return err
	}
	if bytes.IndexByte(b, '+') >= 0 || bytes.IndexByte(b, '#') >= 0 {
		return &Error{CodeTopicInvalid, "MQTT-3.3.2-2", "topic name contains a wildcard"}
	}
	return nil
}

// reader takes the fields of the rarer packets off a body. Its first error sticks and later reads return zeros.
type reader struct {
	b   []byte
	err *Error
}

func (r *reader) fail(err *Error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *reader) take(n int) []byte {
	if len(r.b) < n {
		r.fail(errShort)
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) byte() byte {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if v := r.take(2); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (r *reader) binary() []byte { return r.take(int(r.uint16())) }

func (r *reader) string() string {
	v := r.binary()
	if err := checkUTF8(v); err != nil {
		r.fail(err)
		return ""
	}
	return string(v)
}

// packetID reads a packet identifier, which is never zero [MQTT-2.2.1-3].
func (r *reader) packetID() uint16 {
	id := r.uint16()
	if id == 0 && r.err == nil {
		r.fail(protocol("MQTT-2.2.1-3", "packet identifier is 0"))
	}
	return id
}

// props takes a property block, length and all, and returns a scan of it.
func (r *reader) props(where mask) scan {
	n, k := varint(r.b)
	switch {
	case r.err != nil:
	case k == 0:
		r.fail(errShort)
	case k < 0 || overlong(n, k):
		r.fail(malformed("MQTT-1.5.5-1", "property length is not a valid variable byte integer"))
	default:
		r.b = r.b[k:]
		return scan{rest: r.take(int(n)), where: where}
	}
	return scan{}
}

// close hands the outcome of a scan back to the reader.
func (r *reader) close(s *scan) {
	if s.err != nil {
		r.fail(s.err)
	}
}

// end is the error of the whole: the first one met, or bytes that no field accounts for.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail(malformed("", "packet has bytes after its last field"))
	}
	if r.err != nil {
		return r.err
	}
	return nil
}
