package packet

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"
)

// Publish is a parsed PUBLISH. Topic, Props and Payload alias the frame.
type Publish struct {
	Dup, Retain bool
	QoS         byte
	PacketID    uint16 // 0 at QoS 0
	Topic       []byte // empty only if Alias is set
	Alias       uint16 // 0 means none
	HasExpiry   bool
	Expiry      uint32
	UTF8        bool   // payload format indicator is 1: see CheckPayload
	Props       []byte // the properties as received, without their length
	Cut         bool   // Props holds something that must not be stored; otherwise Props is the stored form
	Payload     []byte
}

// Outgoing is what AppendPublish encodes. Props are stored properties (Publish.AppendStoredProps); versions
// before 5 leave them and all other properties out, unless Envelope is set.
type Outgoing struct {
	Dup, Retain     bool
	QoS             byte
	PacketID        uint16
	Topic           string
	Alias           uint16 // 0 means none
	HasExpiry       bool
	Expiry          uint32 // seconds that remain
	SubscriptionIDs []uint32
	Props           []byte
	Extra           []UserProperty // added after Props
	Payload         []byte
	Envelope        bool // the property block (all but the alias) goes in front of the payload ($v5/)
}

// ParsePublish parses and validates a client's PUBLISH, given as a whole frame. If the error's code is
// CodeTopicInvalid (a wildcard in the topic) p is complete all the same, so that QoS 1 and 2 can be answered
// with a PUBACK or PUBREC instead of the end of the connection. Levels and special names are not its concern.
func ParsePublish(v Version, frame []byte, p *Publish) error {
	return parsePublish(v, frame, p, 1<<TypePublish)
}

// ParseDelivery is ParsePublish for the other direction: subscription identifiers are allowed.
func ParseDelivery(v Version, frame []byte, p *Publish) error {
	return parsePublish(v, frame, p, inDelivery)
}

func parsePublish(v Version, frame []byte, p *Publish, where mask) error {
	*p = Publish{}
	b, err := body(v, frame, TypePublish) // refuses QoS 3
	if err != nil {
		return err
	}
	p.Dup, p.QoS, p.Retain = frame[0]&8 != 0, frame[0]>>1&3, frame[0]&1 != 0
	if p.Dup && p.QoS == 0 {
		return malformed("MQTT-3.3.1-2", "PUBLISH with DUP at QoS 0")
	}
	if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
		return errShort
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	p.Topic, b = b[2:n:n], b[n:]
	nameErr := checkName(p.Topic)
	if nameErr != nil && nameErr.Code != CodeTopicInvalid {
		return nameErr
	}
	if p.QoS > 0 {
		if len(b) < 2 {
			return errShort
		}
		if p.PacketID, b = binary.BigEndian.Uint16(b), b[2:]; p.PacketID == 0 {
			return protocol("MQTT-2.2.1-3", "packet identifier is 0")
		}
	}
	if v == V5 {
		if b, err = p.parseProps(b, where); err != nil {
			return err
		}
	}
	p.Payload = b
	if len(p.Topic) == 0 && p.Alias == 0 {
		return protocol("MQTT-4.7.3-1", "topic name is empty")
	}
	if nameErr != nil {
		return nameErr
	}
	return nil
}

// PeekTopic returns the topic of the PUBLISH that b begins with, nil if b begins with another packet, and the length of the
// packet, 0 if b does not hold all of it. It checks nothing: it is for who prepares for what will be parsed.
func PeekTopic(b []byte) (topic []byte, size int) {
	if len(b) < 2 {
		return nil, 0
	}
	n, k := varint(b[1:])
	size = 1 + k + int(n)
	if k <= 0 || size > len(b) {
		return nil, 0
	}
	if TypeOf(b) != TypePublish || n < 2 {
		return nil, size
	}
	rest := b[1+k : size]
	end := 2 + int(binary.BigEndian.Uint16(rest))
	if end > len(rest) {
		return nil, size
	}
	return rest[2:end], size
}

// parseProps takes the property block off b and returns the rest.
func (p *Publish) parseProps(b []byte, where mask) ([]byte, *Error) {
	n, k := varint(b)
	switch {
	case k < 0 || k > 0 && overlong(n, k):
		return nil, malformed("MQTT-1.5.5-1", "property length is not a valid variable byte integer")
	case k == 0 || len(b)-k < int(n):
		return nil, errShort
	case n == 0:
		return b[k:], nil
	}
	end := k + int(n)
	p.Props = b[k:end:end]
	s := scan{rest: p.Props, where: where}
	for s.next() {
		switch s.ID {
		case PropTopicAlias:
			p.Alias, p.Cut = uint16(s.Num), true
		case PropMessageExpiry:
			p.HasExpiry, p.Expiry, p.Cut = true, s.Num, true
		case PropSubscriptionID:
			p.Cut = true
		case PropPayloadFormat:
			p.UTF8 = s.Num == 1
		}
	}
	return b[end:], s.err
}

// CheckPayload returns an error with CodePayloadFormat if the publisher declared the payload to be UTF-8 and
// it is not. A server may leave this to the receivers, hence apart from ParsePublish.
func (p *Publish) CheckPayload() error { return checkPayload(p.UTF8, p.Payload) }

func checkPayload(declared bool, payload []byte) error {
	if declared && !utf8.Valid(payload) {
		return &Error{CodePayloadFormat, "", "payload is not the UTF-8 its format indicator promises"}
	}
	return nil
}

// SubscriptionIDs appends the subscription identifiers of a delivery.
func (p *Publish) SubscriptionIDs(dst []uint32) []uint32 {
	for q := range Properties(p.Props) {
		if q.ID == PropSubscriptionID {
			dst = append(dst, q.Num)
		}
	}
	return dst
}

// AppendStoredProps appends the properties that belong to the message: payload format, content type, response
// topic, correlation data, user properties, in their order. Alias, expiry and subscription ids are left out.
func (p *Publish) AppendStoredProps(dst []byte) []byte {
	if !p.Cut {
		return append(dst, p.Props...)
	}
	return appendStored(dst, p.Props)
}

// blockSize is the length of the property block, the alias apart.
func (o *Outgoing) blockSize() int {
	n := len(o.Props)
	if o.HasExpiry {
		n += 5
	}
	for _, id := range o.SubscriptionIDs {
		n += 1 + varintSize(id)
	}
	for i := range o.Extra {
		n += 1 + stringSize(o.Extra[i].Name) + stringSize(o.Extra[i].Value)
	}
	return n
}

func (o *Outgoing) appendBlock(dst []byte) []byte {
	if o.HasExpiry {
		dst = appendUint32(append(dst, byte(PropMessageExpiry)), o.Expiry)
	}
	for _, id := range o.SubscriptionIDs {
		dst = appendVarint(append(dst, byte(PropSubscriptionID)), id)
	}
	dst = append(dst, o.Props...)
	for i := range o.Extra {
		dst = AppendUser(dst, o.Extra[i].Name, o.Extra[i].Value)
	}
	return dst
}

// sizes are the lengths of the property block, of the whole property section with the alias and without its
// own length (-1: the version has none), and of everything after the fixed header.
func (o *Outgoing) sizes(v Version) (block, section, remaining int) {
	remaining = stringSize(o.Topic) + len(o.Payload)
	if o.QoS > 0 {
		remaining += 2
	}
	if v == V5 || o.Envelope {
		block = o.blockSize()
	}
	if o.Envelope {
		remaining += varintSize(uint32(block)) + block
	}
	if v != V5 {
		return block, -1, remaining
	}
	if !o.Envelope {
		section = block
	}
	if o.Alias != 0 {
		section += 3
	}
	return block, section, remaining + varintSize(uint32(section)) + section
}

// PublishSize is the number of bytes AppendPublish appends.
func PublishSize(v Version, o *Outgoing) int {
	_, _, n := o.sizes(v)
	return 1 + varintSize(uint32(n)) + n
}

// AppendPublish appends the PUBLISH packet for o. That the whole is not over the receiver's maximum packet
// size (and MaxRemaining) is for the caller to see to, with PublishSize.
func AppendPublish(dst []byte, v Version, o *Outgoing) []byte {
	block, section, n := o.sizes(v)
	dst = slices.Grow(dst, 5+n)
	first := byte(TypePublish)<<4 | o.QoS<<1
	if o.Dup {
		first |= 8
	}
	if o.Retain {
		first |= 1
	}
	dst = appendVarint(append(dst, first), uint32(n))
	dst = appendString(dst, o.Topic)
	if o.QoS > 0 {
		dst = appendUint16(dst, o.PacketID)
	}
	if section >= 0 {
		dst = appendVarint(dst, uint32(section))
		if o.Alias != 0 {
			dst = appendUint16(append(dst, byte(PropTopicAlias)), o.Alias)
		}
		if !o.Envelope {
			dst = o.appendBlock(dst)
		}
	}
	if o.Envelope {
		dst = o.appendBlock(appendVarint(dst, uint32(block)))
	}
	return append(dst, o.Payload...)
}

// ParseEnvelope splits the payload of a publish to $v5/…: a property block (length, properties), then the body.
// It sets Props, Cut, HasExpiry, Expiry, UTF8 and Payload of p, which may be the publish the payload belongs
// to; what p had there before is replaced. An alias or a subscription identifier in the block is an error. Errors have CodePayloadFormat: they
// concern one message and not the connection.
func ParseEnvelope(payload []byte, p *Publish) error {
	q := Publish{}
	body, err := q.parseProps(payload, inEnvelope)
	if err != nil {
		return &Error{CodePayloadFormat, err.Rule, "property block in front of a $v5/ payload: " + err.Msg}
	}
	p.HasExpiry, p.Expiry, p.UTF8, p.Props, p.Cut, p.Payload = q.HasExpiry, q.Expiry, q.UTF8, q.Props, q.Cut, body
	return nil
}

// AppendEnvelope appends a $v5/ payload: the property block of o (all but the alias), then o.Payload.
func AppendEnvelope(dst []byte, o *Outgoing) []byte {
	dst = appendVarint(dst, uint32(o.blockSize()))
	return append(o.appendBlock(dst), o.Payload...)
}
