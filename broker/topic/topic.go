// Package topic knows topic names and topic filters: what is valid, what matches, how to find the
// subscriptions of a topic (Index) and the topics of a filter (Names), and the special names a client sees
// ($queue/…, $share/…, $s/…, $delayed/…, $exclusive/…, $v5/…), which ParseFilter and ParseName take apart.
package topic

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

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

func badFilter(format string, args ...any) error {
	return &Error{CodeFilterInvalid, fmt.Sprintf(format, args...)}
}

func badName(format string, args ...any) error {
	return &Error{CodeNameInvalid, fmt.Sprintf(format, args...)}
}

// excess says which limit n bytes in so many levels break, "" if none.
func (l Limits) excess(n, levels int) string {
	maxBytes, maxLevels := l.MaxBytes, l.MaxLevels
	if maxBytes <= 0 || maxBytes > DefaultMaxBytes {
		maxBytes = DefaultMaxBytes
	}
	if maxLevels <= 0 {
		maxLevels = DefaultMaxLevels
	}
	switch {
	case n > maxBytes:
		return fmt.Sprintf("longer than %d bytes", maxBytes)
	case levels > maxLevels:
		return fmt.Sprintf("more than %d levels", maxLevels)
	}
	return ""
}

// ValidName checks a topic name as it stands in a PUBLISH: not empty, UTF-8, no NUL, no wildcards, within the
// limits (MQTT 5, 4.7). Special names are ParseName's concern.
func ValidName(b []byte, l Limits) error {
	if len(b) == 0 {
		return badName("topic name is empty") // [MQTT-4.7.3-1]
	}
	if why := l.excess(len(b), 1+bytes.Count(b, slash)); why != "" {
		return badName("topic name is %s", why)
	}
	if !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 { // [MQTT-1.5.4-1], [MQTT-4.7.3-2]
		return badName("topic name is not UTF-8 without U+0000")
	}
	if bytes.IndexByte(b, '+') >= 0 || bytes.IndexByte(b, '#') >= 0 { // [MQTT-3.3.2-2]
		return badName("topic name contains a wildcard; + and # are for filters")
	}
	return nil
}

var slash = []byte{'/'}

// ValidFilter checks a topic filter: not empty, UTF-8, no NUL, + and # alone in their level and # last, within
// the limits (MQTT 5, 4.7).
func ValidFilter(s string, l Limits) error {
	if s == "" {
		return badFilter("topic filter is empty") // [MQTT-4.7.3-1]
	}
	if why := l.excess(len(s), 1+strings.Count(s, "/")); why != "" {
		return badFilter("topic filter is %s", why)
	}
	if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 { // [MQTT-3.8.3-1], [MQTT-4.7.3-2]
		return badFilter("topic filter is not UTF-8 without U+0000")
	}
	if i := strings.IndexByte(s, '#'); i >= 0 && (i != len(s)-1 || i > 0 && s[i-1] != '/') { // [MQTT-4.7.1-1]
		return badFilter("# must be a level of its own and the last one")
	}
	for i := 0; i < len(s); i++ {
		n := strings.IndexByte(s[i:], '+')
		if n < 0 {
			break
		}
		i += n
		if i > 0 && s[i-1] != '/' || i+1 < len(s) && s[i+1] != '/' { // [MQTT-4.7.1-2]
			return badFilter("+ must be a level of its own")
		}
	}
	return nil
}

// Match reports whether a valid filter matches a valid topic name (MQTT 5, 4.7). A filter that starts with a
// wildcard never matches a topic that starts with $ [MQTT-4.7.2-1].
func Match(filter, topic string) bool {
	if topic != "" && topic[0] == '$' && filter != "" && (filter[0] == '+' || filter[0] == '#') {
		return false
	}
	for {
		if filter == "#" {
			return true
		}
		f, filterRest, filterMore := strings.Cut(filter, "/")
		t, topicRest, topicMore := strings.Cut(topic, "/")
		if f != "+" && f != t {
			return false
		}
		if !topicMore {
			return !filterMore || filterRest == "#" // a/# matches a as well (4.7.1.2)
		}
		if !filterMore {
			return false
		}
		filter, topic = filterRest, topicRest
	}
}
