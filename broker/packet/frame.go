package packet

// firstOK has a bit for each version that admits a first byte: 1<<0 before CONNECT, then 1<<3, 1<<4, 1<<5.
var firstOK = func() (t [256]byte) {
	const all = 1<<V31 | 1<<V311 | 1<<V5
	for flags := range byte(16) {
		if flags&6 != 6 { // [MQTT-3.3.1-4]
			t[byte(TypePublish)<<4|flags] = all
			t[byte(TypeConnect)<<4|flags] = 1<<0 | 1<<V31 // 3.1 does not use them; ParseConnect looks again when it knows the version
		}
	}
	t[TypeConnect<<4] = 1<<0 | all
	for _, ty := range []Type{TypeConnack, TypePuback, TypePubrec, TypePubcomp, TypeSuback, TypeUnsuback, TypePingreq, TypePingresp, TypeDisconnect} {
		t[ty<<4] = all
	}
	for _, ty := range []Type{TypePubrel, TypeSubscribe, TypeUnsubscribe} {
		t[ty<<4|2] = all
		t[ty<<4|0x0A] = 1 << V31
	}
	t[TypeAuth<<4] = 1 << V5
	return t
}()

// checkFirst holds the first byte of a frame against 2.1.2 and 2.1.3.
func checkFirst(b byte, v Version) *Error {
	if v <= V5 && firstOK[b]&(1<<v) != 0 {
		return nil
	}
	t := Type(b >> 4)
	switch {
	case v == 0 && t != TypeConnect:
		return protocol("MQTT-3.1.0-1", "first packet is not CONNECT")
	case t == 0 || t == TypeAuth && v < V5:
		return malformed("", "reserved packet type")
	case t == TypePublish:
		return malformed("MQTT-3.3.1-4", "PUBLISH with QoS 3")
	}
	return malformed("MQTT-2.1.3-1", "wrong flags in the fixed header")
}

var errRemaining = malformed("MQTT-1.5.5-1", "remaining length is not a valid variable byte integer")

// Split looks at the start of b, which may hold less or more than one frame. size is the length of the whole
// first frame, 0 if more bytes are needed to know it; header is the length of its fixed header. max bounds
// size (0 or less: no limit): a frame over it is ErrTooLarge as soon as its header is there. Version 0 admits
// nothing but CONNECT [MQTT-3.1.0-1].
//
// In version 3.1 SUBSCRIBE, UNSUBSCRIBE and PUBREL may carry DUP (flags 0x0A); later versions forbid it, and
// mochi refuses it in all: clear the bit before handing such a frame on.
func Split(b []byte, v Version, max int) (size, header int, err error) {
	if len(b) == 0 {
		return 0, 0, nil
	}
	if err := checkFirst(b[0], v); err != nil {
		return 0, 0, err
	}
	n, k := varint(b[1:])
	switch {
	case k == 0:
		return 0, 0, nil
	case k < 0 || v == V5 && overlong(n, k):
		return 0, 0, errRemaining
	}
	header = 1 + k
	size = header + int(n)
	if max > 0 && size > max {
		return 0, 0, ErrTooLarge
	}
	return size, header, nil
}

// body checks the fixed header of a whole frame, type included, and returns the rest.
func body(v Version, frame []byte, t Type) ([]byte, *Error) {
	if len(frame) == 0 {
		return nil, errShort
	}
	if err := checkFirst(frame[0], v); err != nil {
		return nil, err
	}
	if TypeOf(frame) != t {
		return nil, malformed("", "packet is of another type")
	}
	n, k := varint(frame[1:])
	if k <= 0 || v == V5 && overlong(n, k) {
		return nil, errRemaining
	}
	if len(frame)-1-k != int(n) {
		return nil, malformed("", "remaining length is not the length of the packet")
	}
	return frame[1+k:], nil
}

// appendFrame appends the fixed header and the body. Bodies are built apart by the rarer packets, whose
// length is known only then.
func appendFrame(dst []byte, t Type, flags byte, body []byte) []byte {
	dst = append(dst, byte(t)<<4|flags)
	dst = appendVarint(dst, uint32(len(body)))
	return append(dst, body...)
}

// Check validates a client's frame of any type completely. Version 0 admits nothing but CONNECT.
func Check(v Version, frame []byte) error {
	if len(frame) == 0 {
		return errShort
	}
	if err := checkFirst(frame[0], v); err != nil {
		return err
	}
	var err error
	switch t := TypeOf(frame); t {
	case TypeConnect:
		_, err = ParseConnect(frame)
	case TypePublish:
		var p Publish
		err = ParsePublish(v, frame, &p)
	case TypePuback, TypePubrec, TypePubrel, TypePubcomp:
		var a Ack
		err = ParseAck(v, frame, &a)
	case TypeSubscribe:
		_, err = ParseSubscribe(v, frame)
	case TypeUnsubscribe:
		_, err = ParseUnsubscribe(v, frame)
	case TypePingreq:
		b, e := body(v, frame, t)
		if e == nil && len(b) > 0 {
			e = malformed("", "packet has bytes after its last field")
		}
		if e != nil {
			return e
		}
	case TypeDisconnect:
		_, err = ParseDisconnect(v, frame)
	case TypeAuth:
		_, err = ParseAuth(frame)
	default:
		return protocol("", "a server's packet from a client")
	}
	return err
}
