package topic

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/edgemq/edgemq/internal/wire"
)

// Kind says what a filter or name asks for.
type Kind byte

// The kinds. Plain, Share, QueueAttach, QueueBind, Replay and Exclusive are kinds of filters; Plain, Queue,
// QueueNack and Delayed kinds of names.
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

var kindNames = [...]string{"plain", "share", "queue attach", "queue bind", "replay", "exclusive", "queue", "queue nack", "delayed"}

// String names the kind for logs and tests.
func (k Kind) String() string { return kindNames[k] }

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

const (
	v5Prefix        = "$v5/"
	sharePrefix     = "$share/"
	replayPrefix    = "$s/"
	delayedPrefix   = "$delayed/"
	exclusivePrefix = "$exclusive/"
	nackSuffix      = wire.Nack

	// maxQueueName is the length of a queue's name.
	maxQueueName = 128

	queueNames   = "queue names are 1 to 128 of A-Z a-z 0-9 _ . -"
	filtersMay   = "filters of the broker's own are $share/<group>/<filter>, $queue/<name>[/<filter>], $s/<start>/<filter>, $exclusive/<filter>, $SYS/…, any of them or an ordinary filter after $v5/, and $edgemq/receipts"
	namesMay     = "names of the broker's own are $queue/<name>, $queue/<name>/$nack, $delayed/<seconds>/<topic>, and any of them or an ordinary topic after $v5/"
	innerFilters = "it takes an ordinary filter or one under $SYS/"
)

// Own tells whether a name or filter begins with a level that is the broker's own. All others that begin with $ are topics
// like any, but that no leading wildcard matches them. [MQTT-4.7.2-1]
func Own[S string | []byte](s S) bool {
	if len(s) == 0 || s[0] != '$' {
		return false
	}
	n := 1
	for n < len(s) && s[n] != '/' {
		n++
	}
	switch string(s[1:n]) {
	case "SYS", "share", "queue", "s", "delayed", "exclusive", "v5", "edgemq":
		return true
	}
	return false
}

// System tells whether a name or filter is one of the broker's statistics.
func System(s string) bool { return s == "$SYS" || strings.HasPrefix(s, "$SYS/") }

// ParseFilter takes a SUBSCRIBE's (or UNSUBSCRIBE's) topic filter apart and validates it. Errors are *Error with 0x8F.
func ParseFilter(s string, l Limits) (Filter, error) {
	f := Filter{Filter: s}
	if !Own(s) {
		if err := ValidFilter(s, l); err != nil {
			return Filter{}, err
		}
		return f, nil
	}
	if rest, ok := strings.CutPrefix(s, v5Prefix); ok {
		f.V5, f.Filter = true, rest
	}
	switch s = f.Filter; {
	case strings.HasPrefix(s, sharePrefix):
		f.Kind = Share
		f.Group, f.Filter, _ = strings.Cut(s[len(sharePrefix):], "/")
		if f.Group == "" || strings.ContainsAny(f.Group, "+#") { // [MQTT-4.8.2-1]
			return Filter{}, badFilter("share name is empty or has a wildcard; it is $share/<group>/<filter>")
		}
	case strings.HasPrefix(s, QueuePrefix):
		var more bool
		f.Kind = QueueAttach
		f.Queue, f.Filter, more = strings.Cut(s[len(QueuePrefix):], "/")
		if !ValidQueue(f.Queue) {
			return Filter{}, badFilter("%q is not a queue name: %s", clip(f.Queue), queueNames)
		}
		if !more {
			return f, nil
		}
		f.Kind = QueueBind
	case strings.HasPrefix(s, replayPrefix):
		var start string
		var err error
		f.Kind = Replay
		start, f.Filter, _ = strings.Cut(s[len(replayPrefix):], "/")
		if f.Start, err = ParseStart(start); err != nil {
			return Filter{}, err
		}
	case strings.HasPrefix(s, exclusivePrefix):
		f.Kind, f.Filter = Exclusive, s[len(exclusivePrefix):]
	case !Own(s), System(s):
	case strings.HasPrefix(s, delayedPrefix):
		return Filter{}, badFilter("$delayed/ is for publishing; subscribe to the topic itself")
	default:
		return Filter{}, badFilter("%q: %s", clip(s), filtersMay)
	}
	if err := f.validInner(l); err != nil {
		return Filter{}, err
	}
	return f, nil
}

// validInner checks the filter proper, which may not be special once more. The group's name is text too.
func (f *Filter) validInner(l Limits) error {
	if f.Kind != Plain {
		if f.Filter == "" {
			return badFilter("no topic filter after the %s prefix", f.Kind)
		}
		if f.Kind == QueueBind && (f.Filter == wire.Nack[1:] || f.Filter == wire.CaughtUp[1:] || f.Filter == wire.Gap[1:]) {
			return badFilter("%q is not to be subscribed to; it comes to those attached to the queue, or goes to it", clip(f.Filter))
		}
		if Own(f.Filter) && !System(f.Filter) {
			return badFilter("%q after the %s prefix: %s", clip(f.Filter), f.Kind, innerFilters)
		}
	}
	if f.Group != "" {
		if err := ValidFilter(f.Group, l); err != nil {
			return err
		}
	}
	return ValidFilter(f.Filter, l)
}

// ParseName takes a PUBLISH's topic apart and validates it. Errors are *Error with 0x90. A name that is sound
// costs no allocation.
func ParseName(topic []byte, l Limits) (Name, error) {
	if err := ValidName(topic, l); err != nil {
		return Name{}, err
	}
	n := Name{Topic: topic}
	if !Own(topic) {
		return n, nil
	}
	if rest, ok := bytes.CutPrefix(topic, []byte(v5Prefix)); ok {
		n.V5, n.Topic = true, rest
	}
	if rest, ok := bytes.CutPrefix(n.Topic, []byte(delayedPrefix)); ok {
		digits, rest, more := bytes.Cut(rest, slash)
		n.Kind, n.Topic = Delayed, rest
		if n.Delay, ok = seconds(digits); !ok || !more {
			return Name{}, badName("%q is not $delayed/<seconds>/<topic> with seconds from 0 to %d", clip(string(topic)), uint32(math.MaxUint32))
		}
	}
	if len(n.Topic) == 0 {
		return Name{}, badName("no topic after the prefix of %q", clip(string(topic)))
	}
	if !Own(n.Topic) {
		return n, nil
	}
	rest, ok := bytes.CutPrefix(n.Topic, []byte(QueuePrefix))
	if !ok {
		return Name{}, badName("%q may not be published to: %s", clip(string(topic)), namesMay)
	}
	kind := Queue
	if rest, ok = bytes.CutSuffix(rest, []byte(nackSuffix)); ok {
		kind = QueueNack
		n.Topic = n.Topic[:len(n.Topic)-len(nackSuffix)]
	}
	switch n.Queue = rest; {
	case !ValidQueue(rest):
		return Name{}, badName("%q is not a queue name: %s", clip(string(rest)), queueNames)
	case n.Kind != Delayed:
		n.Kind = kind
	case kind == QueueNack:
		return Name{}, badName("a refusal cannot be delayed: publish it to %s", clip(string(n.Topic)+nackSuffix))
	}
	return n, nil
}

// seconds reads a uint32 without allocating.
func seconds(b []byte) (uint32, bool) {
	if len(b) == 0 || len(b) > 10 {
		return 0, false
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return uint32(n), n <= math.MaxUint32
}

// ValidQueue checks a queue's name: [A-Za-z0-9_.-]{1,128}.
func ValidQueue[S string | []byte](name S) bool {
	if len(name) == 0 || len(name) > maxQueueName {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '.', c == '-':
		default:
			return false
		}
	}
	return true
}

// QueueOf returns the queue whose topic this is.
func QueueOf(topic string) (name string, ok bool) {
	name, ok = strings.CutPrefix(topic, QueuePrefix)
	return name, ok && ValidQueue(name)
}

// clip keeps a client's text in an error message short and valid.
func clip(s string) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

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

// ParseStart reads the start of a replay: earliest, latest, a Unix time in µs, an RFC 3339 time, a duration
// back (1h30m; days are 7d or 7d12h), offset:<n>. Errors are *Error with 0x8F.
func ParseStart(s string) (Start, error) {
	switch s {
	case "latest":
		return Start{Kind: Latest}, nil
	case "earliest":
		return Start{Kind: Earliest}, nil
	}
	if n, ok := strings.CutPrefix(s, "offset:"); ok {
		if v, err := strconv.ParseUint(n, 10, 64); err == nil {
			return Start{Kind: AtOffset, Offset: v}, nil
		}
	} else if v, err := strconv.ParseUint(s, 10, 63); err == nil {
		return Start{Kind: AtTime, Time: int64(v)}, nil
	} else if t, err := time.Parse(time.RFC3339, s); err == nil {
		return Start{Kind: AtTime, Time: t.UnixMicro()}, nil
	} else if d, ok := parseBack(s); ok {
		return Start{Kind: Back, Back: d}, nil
	}
	return Start{}, badFilter("%q is not a start: it is earliest, latest, a Unix time in µs, an RFC 3339 time as in 2026-11-30T08:00:00Z, a duration back like 1h30m, or offset:<n>", clip(s))
}

// parseBack reads a duration of Go's form, with days in front if wanted.
func parseBack(s string) (time.Duration, bool) {
	var days uint64
	if d, rest, ok := strings.Cut(s, "d"); ok {
		var err error
		if days, err = strconv.ParseUint(d, 10, 16); err != nil {
			return 0, false
		}
		if s = rest; s == "" {
			s = "0s"
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || strings.HasPrefix(s, "+") {
		return 0, false
	}
	day := 24 * time.Hour
	if total := time.Duration(days)*day + d; total >= d {
		return total, true
	}
	return 0, false
}
