package torture

import (
	"fmt"

	"github.com/edgemq/edgemq/broker/topic"
)

// FaultKind is a way to break a promise.
type FaultKind string

// The ways.
const (
	Lost        FaultKind = "lost"         // acknowledged, or shown to somebody, and gone
	Twice       FaultKind = "twice"        // delivered again without a reason
	Disordered  FaultKind = "out of order" // after a later one of its stream
	Invented    FaultKind = "invented"     // never sent, or not yet, or changed
	Unwelcome   FaultKind = "unwelcome"    // refused to its publisher and delivered all the same
	Unwanted    FaultKind = "unwanted"     // no filter of the reader asked for it
	Early       FaultKind = "early"        // a delayed message before its time
	Forgotten   FaultKind = "forgotten"    // a session that the broker does not know any more
	Stale       FaultKind = "stale"        // a retained message that is not the last one
	Unjustified FaultKind = "unjustified"  // a Will although its client said goodbye
)

// Fault is a broken promise.
type Fault struct {
	Kind   FaultKind
	Reader string // or client
	ID     string // of the message
	At     int    // index of the event at which it shows
	Why    string
}

func (f Fault) String() string {
	return fmt.Sprintf("%s: %s %s at event %d: %s", f.Reader, f.Kind, f.ID, f.At, f.Why)
}

// message is what is known of one message.
type message struct {
	*Message
	sent    []int // Sending, or Connecting of a Will
	acked   int   // first Acked, or -1
	shown   int   // first delivery at QoS 1 or 2, or -1
	refused int   // the broker said that it will not have it, or -1
	due     int   // of a Will: when its connection broke, or -1
	revoked int   // of a Will: when the client had said goodbye for good, or -1
}

// stored says whether the broker has vouched for the message.
func (m *message) stored() bool { return m.acked >= 0 || m.shown >= 0 || m.due >= 0 }

// copies is how often the message may be in the log: at QoS 1 each sending may have stored it.
func (m *message) copies() int {
	if m.QoS == 2 || m.Will {
		return 1
	}
	return len(m.sent)
}

// span is one life of a subscription; -1 is what has not happened.
type span struct {
	qos                      byte
	asking, from, ending, to int
}

// reader is what is known of one reader.
type reader struct {
	Reader
	filters map[string][]span
	got     map[string]*receipt
	newest  map[string]int // by stream: the highest number that came
	oldest  map[string]int // and the lowest
	drained int
}

// shared says whether its members hand over to each other.
func (r *reader) shared() bool { return r.Kind == Queue || r.Kind == Group }

// receipt is how a message came to a reader.
type receipt struct {
	count   int // deliveries
	fresh   int // of them those that are not explained by an earlier one
	open    int // earlier deliveries that may come again
	refused bool
}

// unit is one delivery.
type unit struct {
	r       *reader
	id      string
	qos     byte
	settled int // when the acknowledgement was sent, or -1
	seen    int // when the broker is known to have read it, or -1
}

type conn struct {
	client string
	n      int
}

// will is the Will of a connection.
type will struct {
	m         *message
	connected bool
}

// mayWant says whether a reader's filters explain a delivery.
func (r *reader) mayWant(m *message, at int) bool {
	for filter, spans := range r.filters {
		if !topic.Match(filter, m.Topic) {
			continue
		}
		for _, s := range spans {
			switch {
			case s.asking > at:
			case r.Kind == Queue || r.Kind == Log:
				return true
			case s.to >= 0 && m.sent[0] > s.to:
			case m.acked >= 0 && m.acked < s.asking && m.ordered() && m.sent[len(m.sent)-1] < s.asking:
			default:
				return true
			}
		}
	}
	return false
}

// mustWant says whether a reader must be given a message that is stored.
func (r *reader) mustWant(m *message) bool {
	for filter, spans := range r.filters {
		if !topic.Match(filter, m.Topic) {
			continue
		}
		for _, s := range spans {
			// Nobody but the broker knows when a connection has ended, so what counts for a Will is when it was left there.
			if s.from >= 0 && s.ending < 0 && s.qos > 0 && (r.Kind == Queue || r.Kind == Log || s.from < m.sent[0]) {
				return true
			}
		}
	}
	return false
}
