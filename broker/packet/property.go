package packet

import "iter"

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

// Properties walks a raw property block (no length in front) that has been validated; it stops at damage.
func Properties(raw []byte) iter.Seq[Property] { panic("todo") }

// FindUser returns the first user property of that name in a raw block.
func FindUser(raw []byte, name string) (value []byte, ok bool) { panic("todo") }

// AppendProperty appends one property to a raw block.
func AppendProperty(dst []byte, p Property) []byte { panic("todo") }

// AppendUser appends one user property to a raw block.
func AppendUser(dst []byte, name, value string) []byte { panic("todo") }
