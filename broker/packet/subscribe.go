package packet

// Subscription is one topic filter of a SUBSCRIBE with its options.
type Subscription struct {
	Filter            string
	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
	RetainHandling    byte // 0 send retained, 1 only if new, 2 never
}

// Subscribe is a parsed SUBSCRIBE. It owns its memory.
type Subscribe struct {
	PacketID       uint16
	SubscriptionID uint32 // 0 means none
	User           []UserProperty
	Filters        []Subscription
}

// ParseSubscribe parses and validates a SUBSCRIBE. Where wildcards stand is not its concern, see package topic.
func ParseSubscribe(v Version, frame []byte) (*Subscribe, error) { panic("todo") }

// AppendSubscribe appends the SUBSCRIBE for s.
func AppendSubscribe(dst []byte, v Version, s *Subscribe) []byte { panic("todo") }

// Unsubscribe is a parsed UNSUBSCRIBE. It owns its memory.
type Unsubscribe struct {
	PacketID uint16
	User     []UserProperty
	Filters  []string
}

// ParseUnsubscribe parses and validates an UNSUBSCRIBE.
func ParseUnsubscribe(v Version, frame []byte) (*Unsubscribe, error) { panic("todo") }

// AppendUnsubscribe appends the UNSUBSCRIBE for u.
func AppendUnsubscribe(dst []byte, v Version, u *Unsubscribe) []byte { panic("todo") }

// Suback is a SUBACK or UNSUBACK: one code for each filter, in the version's own terms.
type Suback struct {
	PacketID     uint16
	Codes        []byte // 3.1.1 UNSUBACK has none
	ReasonString string
	User         []UserProperty
}

// AppendSuback appends a SUBACK. Before version 5 every code from 0x80 up is sent as 0x80.
func AppendSuback(dst []byte, v Version, s *Suback) []byte { panic("todo") }

// AppendUnsuback appends an UNSUBACK. Before version 5 it has no codes.
func AppendUnsuback(dst []byte, v Version, s *Suback) []byte { panic("todo") }

// ParseSuback parses and validates a SUBACK.
func ParseSuback(v Version, frame []byte) (*Suback, error) { panic("todo") }

// ParseUnsuback parses and validates an UNSUBACK.
func ParseUnsuback(v Version, frame []byte) (*Suback, error) { panic("todo") }
