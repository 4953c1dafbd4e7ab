package packet

import (
	"encoding/binary"
	"iter"
)

// PropertyID is an MQTT 5 property identifier.
type PropertyID byte

// The properties of MQTT 5, table 2-4.
const (
	PropPayloadFormat       PropertyID = 0x01
	PropMessageExpiry       PropertyID = 0x02
	PropContentType         PropertyID = 0x03
	PropResponseTopic       PropertyID = 0x08
	PropCorrelationData     PropertyID = 0x09
	PropSubscriptionID      PropertyID = 0x0B
	PropSessionExpiry       PropertyID = 0x11
	PropAssignedClientID    PropertyID = 0x12
	PropServerKeepAlive     PropertyID = 0x13
	PropAuthMethod          PropertyID = 0x15
	PropAuthData            PropertyID = 0x16
	PropRequestProblemInfo  PropertyID = 0x17
	PropWillDelay           PropertyID = 0x18
	PropRequestResponseInfo PropertyID = 0x19
	PropResponseInfo        PropertyID = 0x1A
	PropServerReference     PropertyID = 0x1C
	PropReasonString        PropertyID = 0x1F
	PropReceiveMaximum      PropertyID = 0x21
	PropTopicAliasMaximum   PropertyID = 0x22
	PropTopicAlias          PropertyID = 0x23
	PropMaximumQoS          PropertyID = 0x24
	PropRetainAvailable     PropertyID = 0x25
	PropUser                PropertyID = 0x26
	PropMaximumPacketSize   PropertyID = 0x27
	PropWildcardAvailable   PropertyID = 0x28
	PropSubscriptionIDs     PropertyID = 0x29
	PropSharedAvailable     PropertyID = 0x2A
)

// Property is one property of a block. Name and Value alias the block.
type Property struct {
	ID    PropertyID
	Num   uint32 // bytes, two- and four-byte integers, variable byte integers
	Name  []byte // PropUser only
	Value []byte // strings and binary data
}

// format is how a property's value is encoded.
type format byte

const (
	fNone format = iota
	fByte
	fBool // a byte that is 0 or 1
	fUint16
	fUint32
	fVarint
	fString
	fBinary
	fPair
)

// mask is a set of places a property may stand in: bit 1<<type for the packet types, and the four below.
type mask uint32

const (
	inWill       mask = 1 << 0
	inDelivery   mask = 1 << 16 // a server's PUBLISH
	inEnvelope   mask = 1 << 17 // the block at the start of a $v5/ payload
	inServerDisc mask = 1 << 18 // a server's DISCONNECT
)

func in(ts ...Type) (m mask) {
	for _, t := range ts {
		m |= 1 << t
	}
	return m
}

type rule struct {
	format format
	where  mask
}

// rules is table 2-4 of MQTT 5.
var rules = func() (t [PropSharedAvailable + 1]rule) {
	message := in(TypePublish) | inWill | inDelivery | inEnvelope
	auth := in(TypeConnect, TypeConnack, TypeAuth)
	both := in(TypeConnect, TypeConnack)
	answers := in(TypeConnack, TypePuback, TypePubrec, TypePubrel, TypePubcomp, TypeSuback, TypeUnsuback, TypeDisconnect, TypeAuth) | inServerDisc
	t[PropPayloadFormat] = rule{fBool, message}
	t[PropMessageExpiry] = rule{fUint32, message}
	t[PropContentType] = rule{fString, message}
	t[PropResponseTopic] = rule{fString, message}
	t[PropCorrelationData] = rule{fBinary, message}
	t[PropSubscriptionID] = rule{fVarint, in(TypeSubscribe) | inDelivery}
	t[PropSessionExpiry] = rule{fUint32, both | in(TypeDisconnect)} // not in a server's [MQTT-3.14.2-2]
	t[PropAssignedClientID] = rule{fString, in(TypeConnack)}
	t[PropServerKeepAlive] = rule{fUint16, in(TypeConnack)}
	t[PropAuthMethod] = rule{fString, auth}
	t[PropAuthData] = rule{fBinary, auth}
	t[PropRequestProblemInfo] = rule{fBool, in(TypeConnect)}
	t[PropWillDelay] = rule{fUint32, inWill}
	t[PropRequestResponseInfo] = rule{fBool, in(TypeConnect)}
	t[PropResponseInfo] = rule{fString, in(TypeConnack)}
	t[PropServerReference] = rule{fString, in(TypeConnack, TypeDisconnect) | inServerDisc}
	t[PropReasonString] = rule{fString, answers}
	t[PropReceiveMaximum] = rule{fUint16, both}
	t[PropTopicAliasMaximum] = rule{fUint16, both}
	t[PropTopicAlias] = rule{fUint16, in(TypePublish) | inDelivery}
	t[PropMaximumQoS] = rule{fBool, in(TypeConnack)}
	t[PropRetainAvailable] = rule{fBool, in(TypeConnack)}
	t[PropUser] = rule{fPair, answers | message | in(TypeConnect, TypeSubscribe, TypeUnsubscribe)}
	t[PropMaximumPacketSize] = rule{fUint32, both}
	t[PropWildcardAvailable] = rule{fBool, in(TypeConnack)}
	t[PropSubscriptionIDs] = rule{fBool, in(TypeConnack)}
	t[PropSharedAvailable] = rule{fBool, in(TypeConnack)}
	return t
}()

var (
	errUnknownProperty = malformed("", "unknown property identifier")
	errPropertyCut     = malformed("", "property runs past the property length")
)

// readProperty decodes the property at the start of b, which is not empty, and returns the bytes after it.
func readProperty(b []byte) (p Property, rest []byte, err *Error) {
	p.ID = PropertyID(b[0])
	if int(p.ID) >= len(rules) || rules[p.ID].format == fNone {
		return p, nil, errUnknownProperty
	}
	b = b[1:]
	n := 0
	switch rules[p.ID].format {
	case fByte, fBool:
		if n = 1; len(b) >= n {
			p.Num = uint32(b[0])
		}
	case fUint16:
		if n = 2; len(b) >= n {
			p.Num = uint32(binary.BigEndian.Uint16(b))
		}
	case fUint32:
		if n = 4; len(b) >= n {
			p.Num = binary.BigEndian.Uint32(b)
		}
	case fVarint:
		var k int
		p.Num, k = varint(b)
		if k < 0 || k > 0 && overlong(p.Num, k) {
			return p, nil, malformed("MQTT-1.5.5-1", "property is not a valid variable byte integer")
		}
		if n = k; k == 0 {
			n = len(b) + 1
		}
	case fPair:
		if p.Name, b, err = readBinary(b); err != nil {
			return p, nil, err
		}
		fallthrough
	default:
		p.Value, rest, err = readBinary(b)
		return p, rest, err
	}
	if len(b) < n {
		return p, nil, errPropertyCut
	}
	return p, b[n:], nil
}

func readBinary(b []byte) (v, rest []byte, err *Error) {
	if len(b) < 2 {
		return nil, nil, errPropertyCut
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	if len(b) < n {
		return nil, nil, errPropertyCut
	}
	return b[2:n:n], b[n:], nil
}

// scan validates a property block while walking it:
//
//	for s.next() { switch s.ID … }
//	if s.err != nil …
type scan struct {
	Property
	rest  []byte
	where mask
	seen  uint64 // bit per identifier
	err   *Error
}

func (s *scan) next() bool {
	if len(s.rest) == 0 || s.err != nil {
		return false
	}
	s.Property, s.rest, s.err = readProperty(s.rest)
	if s.err == nil {
		s.err = s.check()
	}
	return s.err == nil
}

// check holds the property just read against the rules of its kind and place.
func (s *scan) check() *Error {
	r := rules[s.ID]
	if r.where&s.where == 0 {
		switch {
		case s.ID == PropSubscriptionID && s.where == in(TypePublish):
			return protocol("MQTT-3.3.4-6", "subscription identifier in a client's PUBLISH")
		case s.ID == PropSessionExpiry && s.where == inServerDisc:
			return protocol("MQTT-3.14.2-2", "session expiry interval in a server's DISCONNECT")
		}
		return malformed("", "property is not allowed in this packet")
	}
	bit := uint64(1) << s.ID
	if s.seen&bit != 0 && s.ID != PropUser && (s.ID != PropSubscriptionID || s.where != inDelivery) {
		return protocol("", "property appears more than once")
	}
	s.seen |= bit
	switch r.format {
	case fBool:
		if s.Num > 1 {
			return protocol("", "property is neither 0 nor 1")
		}
	case fPair:
		if err := checkUTF8(s.Name); err != nil {
			return err
		}
		return checkUTF8(s.Value)
	case fString:
		if err := checkUTF8(s.Value); err != nil {
			return err
		}
	}
	switch s.ID {
	case PropReceiveMaximum, PropMaximumPacketSize, PropSubscriptionID:
		if s.Num == 0 {
			return protocol("", "property is 0")
		}
	case PropTopicAlias:
		if s.Num == 0 {
			return &Error{CodeAliasInvalid, "MQTT-3.3.2-8", "topic alias is 0"}
		}
	case PropAuthMethod:
		if len(s.Value) == 0 {
			return protocol("", "authentication method is empty")
		}
	case PropResponseTopic:
		if len(s.Value) == 0 {
			return protocol("MQTT-4.7.3-1", "response topic is empty")
		}
		if checkName(s.Value) != nil {
			return protocol("MQTT-3.3.2-14", "response topic contains a wildcard")
		}
	}
	return nil
}

// stored reports whether a property belongs to the message and not to one hop of it.
func (id PropertyID) stored() bool {
	switch id {
	case PropPayloadFormat, PropContentType, PropResponseTopic, PropCorrelationData, PropUser:
		return true
	}
	return false
}

// appendStored copies the stored properties of a validated raw block, byte for byte and in order.
func appendStored(dst, raw []byte) []byte {
	for len(raw) > 0 {
		p, rest, err := readProperty(raw)
		if err != nil {
			break
		}
		if p.ID.stored() {
			dst = append(dst, raw[:len(raw)-len(rest)]...)
		}
		raw = rest
	}
	return dst
}

// Properties walks a raw property block (no length in front) that has been validated; it stops at damage.
func Properties(raw []byte) iter.Seq[Property] {
	return func(yield func(Property) bool) {
		for len(raw) > 0 {
			p, rest, err := readProperty(raw)
			if err != nil || !yield(p) {
				return
			}
			raw = rest
		}
	}
}

// FindUser returns the first user property of that name in a raw block.
func FindUser(raw []byte, name string) (value []byte, ok bool) {
	for len(raw) > 0 {
		p, rest, err := readProperty(raw)
		if err != nil {
			break
		}
		if p.ID == PropUser && string(p.Name) == name {
			return p.Value, true
		}
		raw = rest
	}
	return nil, false
}

// Find returns the first property with that identifier in a raw block.
func Find(raw []byte, id PropertyID) (p Property, ok bool) {
	for len(raw) > 0 {
		p, rest, err := readProperty(raw)
		if err != nil {
			break
		}
		if p.ID == id {
			return p, true
		}
		raw = rest
	}
	return Property{}, false
}

// CheckStored validates properties in stored form that come from somewhere else than a packet.
func CheckStored(raw []byte) error {
	s := scan{rest: raw, where: inEnvelope}
	for s.next() {
		if !s.ID.stored() {
			return malformed("", "property is not part of a stored message")
		}
	}
	if s.err != nil {
		return s.err
	}
	return nil
}

// AppendProperty appends one property to a raw block.
func AppendProperty(dst []byte, p Property) []byte {
	dst = append(dst, byte(p.ID))
	switch rules[p.ID].format {
	case fByte, fBool:
		return append(dst, byte(p.Num))
	case fUint16:
		return appendUint16(dst, uint16(p.Num))
	case fUint32:
		return appendUint32(dst, p.Num)
	case fVarint:
		return appendVarint(dst, p.Num)
	case fPair:
		dst = appendString(dst, p.Name)
	}
	return appendString(dst, p.Value)
}

// AppendUser appends one user property to a raw block.
func AppendUser(dst []byte, name, value string) []byte {
	dst = append(dst, byte(PropUser))
	dst = appendString(dst, name)
	return appendString(dst, value)
}

// The rest are the encoders of the rarer packets: each appends nothing for the value that means absent.

func appendNum(dst []byte, id PropertyID, v uint32, present bool) []byte {
	if !present {
		return dst
	}
	return AppendProperty(dst, Property{ID: id, Num: v})
}

func appendText(dst []byte, id PropertyID, s string) []byte {
	if s == "" {
		return dst
	}
	return appendString(append(dst, byte(id)), s)
}

func appendBytes(dst []byte, id PropertyID, b []byte) []byte {
	if b == nil {
		return dst
	}
	return appendString(append(dst, byte(id)), b)
}

func appendUsers(dst []byte, us []UserProperty) []byte {
	for _, u := range us {
		dst = AppendUser(dst, u.Name, u.Value)
	}
	return dst
}

// appendBlock appends a property block with its length.
func appendBlock(dst, raw []byte) []byte {
	dst = appendVarint(dst, uint32(len(raw)))
	return append(dst, raw...)
}

func (s *scan) saw(id PropertyID) bool { return s.seen&(1<<id) != 0 }

func (s *scan) user() UserProperty {
	return UserProperty{string(s.Name), string(s.Value)}
}

// bytes copies a binary value; an empty one is not nil, since present and absent differ.
func (s *scan) bytes() []byte { return append([]byte{}, s.Value...) }
