// Package packet is edgemq's own strict codec for MQTT 3.1, 3.1.1 and 5.0.
//
// Whatever a client sends goes through it before anything else looks at the bytes: a frame that Check
// accepts is well-formed down to the last property, so the code behind it (mochi included) never meets a
// truncated, padded or contradictory packet. An *Error names the MQTT 5 reason code to answer with and the
// rule that was broken; ConnackCode and the version say what a 3.1.1 client can be told of it.
//
// PUBLISH and its acks are parsed and encoded without allocation; what ParsePublish and ParseAck return
// aliases the frame. The rarer packets are parsed into structs that own their memory.
//
// Two things are left to others because the answer to them is not the end of the connection: where
// wildcards may stand in a topic filter (package topic; the answer is a SUBACK with 0x8F), and everything
// that needs the state of a session (packet ids in use, alias maps, quotas).
package packet

// Version is the protocol level of a connection, as CONNECT carries it.
type Version byte

// The versions spoken here. Zero is a connection that has not sent CONNECT yet.
const (
	V31  Version = 3 // MQIsdp
	V311 Version = 4
	V5   Version = 5
)

// Type is a control packet type, the upper half of the first byte.
type Type byte

// The control packet types.
const (
	TypeConnect     Type = 1
	TypeConnack     Type = 2
	TypePublish     Type = 3
	TypePuback      Type = 4
	TypePubrec      Type = 5
	TypePubrel      Type = 6
	TypePubcomp     Type = 7
	TypeSubscribe   Type = 8
	TypeSuback      Type = 9
	TypeUnsubscribe Type = 10
	TypeUnsuback    Type = 11
	TypePingreq     Type = 12
	TypePingresp    Type = 13
	TypeDisconnect  Type = 14
	TypeAuth        Type = 15
)

var typeNames = [16]string{
	"RESERVED", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
	"SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
}

// String is the name the standard gives the type.
func (t Type) String() string { return typeNames[t&15] }

// TypeOf is the type of a frame or of its first byte. The frame must not be empty.
func TypeOf(frame []byte) Type { return Type(frame[0] >> 4) }

// UserProperty is one name and value; names may repeat and their order counts.
type UserProperty struct{ Name, Value string }

// MaxRemaining is the largest remaining length (and variable byte integer) MQTT can express.
const MaxRemaining = 268_435_455
