package packet

// Ack is a PUBACK, PUBREC, PUBREL or PUBCOMP. Props aliases the frame.
type Ack struct {
	Type     Type
	PacketID uint16
	Code     byte   // CodeSuccess if the packet had none
	Props    []byte // raw properties: reason string, user properties
}

// ParseAck parses and validates a PUBACK, PUBREC, PUBREL or PUBCOMP, given as a whole frame.
func ParseAck(v Version, frame []byte, a *Ack) error { panic("todo") }

// AppendAck appends an acknowledgement in its shortest form. Before version 5 there is no code: only a
// positive answer can be sent, and code and reason are left out.
func AppendAck(dst []byte, v Version, t Type, id uint16, code byte, reason string) []byte {
	panic("todo")
}
