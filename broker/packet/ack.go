package packet

import "encoding/binary"

// Ack is a PUBACK, PUBREC, PUBREL or PUBCOMP. Props aliases the frame.
type Ack struct {
	Type     Type
	PacketID uint16
	Code     byte   // CodeSuccess if the packet had none
	Props    []byte // raw properties: reason string, user properties
}

// ParseAck parses and validates a PUBACK, PUBREC, PUBREL or PUBCOMP, given as a whole frame.
func ParseAck(v Version, frame []byte, a *Ack) error {
	*a = Ack{}
	if len(frame) == 0 {
		return errShort
	}
	a.Type = TypeOf(frame)
	if a.Type < TypePuback || a.Type > TypePubcomp {
		return malformed("", "packet is of another type")
	}
	b, err := body(v, frame, a.Type)
	if err != nil {
		return err
	}
	if len(b) < 2 {
		return errShort
	}
	if a.PacketID = binary.BigEndian.Uint16(b); a.PacketID == 0 {
		return protocol("MQTT-2.2.1-3", "packet identifier is 0")
	}
	b = b[2:]
	if len(b) == 0 {
		return nil
	}
	if v != V5 {
		return malformed("", "packet has bytes after its last field")
	}
	if a.Code = b[0]; !codeAllowed(a.Code, 1<<a.Type) {
		return protocol(ackRules[a.Type-TypePuback], "reason code is not one of this packet's")
	}
	if b = b[1:]; len(b) == 0 { // [MQTT-3.4.2.2.1]: no property length in a packet this short
		return nil
	}
	n, k := varint(b)
	switch {
	case k < 0 || k > 0 && overlong(n, k):
		return malformed("MQTT-1.5.5-1", "property length is not a valid variable byte integer")
	case k == 0 || len(b)-k < int(n):
		return errShort
	case len(b)-k > int(n):
		return malformed("", "packet has bytes after its last field")
	case n == 0:
		return nil
	}
	a.Props = b[k:]
	s := scan{rest: a.Props, where: 1 << a.Type}
	for s.next() {
	}
	if s.err != nil {
		return s.err
	}
	return nil
}

var ackRules = [4]string{"MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-3.6.2-1", "MQTT-3.7.2-1"}

// Reason is the reason string, "" if there is none.
func (a *Ack) Reason() string {
	p, _ := Find(a.Props, PropReasonString)
	return string(p.Value)
}

// AppendAck appends an acknowledgement in its shortest form. Before version 5 there is no code: only a
// positive answer can be sent, and code and reason are left out. A client that asked for no problem
// information, or whose maximum packet size the reason would exceed, is for the caller to know.
func AppendAck(dst []byte, v Version, t Type, id uint16, code byte, reason string) []byte {
	first := byte(t) << 4
	if t == TypePubrel {
		first |= 2 // [MQTT-3.6.1-1]
	}
	switch {
	case v != V5 || code == CodeSuccess && reason == "":
		return append(dst, first, 2, byte(id>>8), byte(id))
	case reason == "":
		return append(dst, first, 3, byte(id>>8), byte(id), code)
	}
	block := 1 + stringSize(reason)
	dst = appendVarint(append(dst, first), uint32(3+varintSize(uint32(block))+block))
	dst = append(dst, byte(id>>8), byte(id), code)
	dst = appendVarint(dst, uint32(block))
	return appendString(append(dst, byte(PropReasonString)), reason)
}
