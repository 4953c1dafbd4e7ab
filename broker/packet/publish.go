package packet

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
	Envelope        bool // the property block goes in front of the payload ($v5/)
}

// ParsePublish parses and validates a client's PUBLISH, given as a whole frame. If the error's code is
// CodeTopicInvalid (a wildcard in the topic) p is complete all the same, so that QoS 1 and 2 can be answered
// with a PUBACK or PUBREC instead of the end of the connection. Levels and special names are not its concern.
func ParsePublish(v Version, frame []byte, p *Publish) error { panic("todo") }

// ParseDelivery is ParsePublish for the other direction: subscription identifiers are allowed.
func ParseDelivery(v Version, frame []byte, p *Publish) error { panic("todo") }

// CheckPayload returns an error with CodePayloadFormat if the publisher declared the payload to be UTF-8 and it is not.
func (p *Publish) CheckPayload() error { panic("todo") }

// AppendStoredProps appends the properties that belong to the message: payload format, content type, response
// topic, correlation data, user properties, in their order. Alias, expiry and subscription ids are left out.
func (p *Publish) AppendStoredProps(dst []byte) []byte { panic("todo") }

// AppendPublish appends the PUBLISH packet for o.
func AppendPublish(dst []byte, v Version, o *Outgoing) []byte { panic("todo") }

// PublishSize is the number of bytes AppendPublish appends.
func PublishSize(v Version, o *Outgoing) int { panic("todo") }

// ParseEnvelope splits the payload of a publish to $v5/…: a property block (length, properties), then the body.
// It sets Props, Cut, HasExpiry, Expiry, UTF8 and Payload of p, which may be the publish the payload belongs to.
// An alias or a subscription identifier in it is an error.
func ParseEnvelope(payload []byte, p *Publish) error { panic("todo") }
