package topic

import "time"

// Kind says what a filter or name asks for.
type Kind byte

// The kinds. Plain, Share, QueueAttach, QueueBind, Replay and Exclusive are kinds of filters; Plain, Queue, QueueNack and Delayed kinds of names.
const (
	Plain       Kind = iota
	Share            // $share/<group>/<filter>
	QueueAttach      // SUBSCRIBE $queue/<name>
	QueueBind        // SUBSCRIBE $queue/<name>/<filter>
	Replay           // $s/<start>/<filter>
	Exclusive        // $exclusive/<filter>
	Queue            // PUBLISH $queue/<name>
	QueueNack        // PUBLISH $queue/<name>/$nack
	Delayed          // PUBLISH $delayed/<seconds>/<topic>
)

// StartKind says how a Start is given.
type StartKind byte

// The kinds of Start.
const (
	Latest   StartKind = iota // from now on
	Earliest                  // from the oldest record kept
	AtTime                    // Start.Time
	Back                      // Start.Back before now
	AtOffset                  // Start.Offset
)

// Start is where a replay begins.
type Start struct {
	Kind   StartKind
	Time   int64 // µs since 1970
	Back   time.Duration
	Offset uint64
}

// Filter is a SUBSCRIBE's topic filter taken apart.
type Filter struct {
	Kind   Kind
	V5     bool   // it began with $v5/: deliveries carry the MQTT 5 property envelope
	Group  string // Share
	Queue  string // QueueAttach, QueueBind
	Start  Start  // Replay
	Filter string // the topic filter proper; "" for QueueAttach
}

// Name is a PUBLISH's topic taken apart. Its slices alias the topic it was parsed from.
type Name struct {
	Kind  Kind
	V5    bool   // it began with $v5/: the payload begins with an MQTT 5 property block
	Topic []byte // the topic to store under: the plain topic, or $queue/<name> (of a Delayed: where it goes when due)
	Queue []byte // the queue's name for Queue, QueueNack, and a Delayed to a queue; else nil
	Delay uint32 // Delayed: seconds
}

// QueuePrefix is what the topic of every queue begins with: $queue/<name>, in the store as on the wire.
const QueuePrefix = "$queue/"

// ParseFilter takes a SUBSCRIBE's (or UNSUBSCRIBE's) topic filter apart and validates it. Errors are *Error with 0x8F.
func ParseFilter(s string, l Limits) (Filter, error) { panic("todo") }

// ParseStart reads the start of a replay: earliest, latest, a Unix time in µs, an RFC 3339 time, a duration back, offset:<n>.
func ParseStart(s string) (Start, error) { panic("todo") }

// ParseName takes a PUBLISH's topic apart and validates it. Errors are *Error with 0x90. A plain name costs no allocation.
func ParseName(topic []byte, l Limits) (Name, error) { panic("todo") }

// ValidQueue checks a queue's name: [A-Za-z0-9_.-]{1,128}.
func ValidQueue(name string) bool { panic("todo") }
