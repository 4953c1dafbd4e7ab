// Package topic knows topic names and topic filters: what is valid, what matches, how to find the
// subscriptions of a topic (Index) and the topics of a filter (Names), and the special names a client sees
// ($queue/…, $share/…, $s/…, $delayed/…, $exclusive/…, $v5/…), which ParseFilter and ParseName take apart.
package topic

// Limits bounds names and filters. Zero values are the defaults.
type Limits struct {
	MaxLevels int // 0 means 128
	MaxBytes  int // 0 means 65535, MQTT's own limit
}

// The default limits.
const (
	DefaultMaxLevels = 128
	DefaultMaxBytes  = 65535
)

// The MQTT 5 reason codes of an Error.
const (
	CodeFilterInvalid byte = 0x8F
	CodeNameInvalid   byte = 0x90
)

// Error says why a name or filter is refused and what would be allowed.
type Error struct {
	Code byte // CodeFilterInvalid or CodeNameInvalid
	Msg  string
}

func (e *Error) Error() string { return "topic: " + e.Msg }

// ValidName checks a topic name as it stands in a PUBLISH: not empty, UTF-8, no NUL, no wildcards, within the limits.
// Special names are ParseName's concern.
func ValidName(b []byte, l Limits) error { panic("todo") }

// ValidFilter checks a topic filter: not empty, UTF-8, no NUL, + and # alone in their level and # last, within the limits.
func ValidFilter(s string, l Limits) error { panic("todo") }

// Match reports whether a valid filter matches a valid topic name (MQTT 5, 4.7). A filter that starts with a
// wildcard never matches a topic that starts with $.
func Match(filter, topic string) bool { panic("todo") }
