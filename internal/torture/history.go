// Package torture decides whether a broker has kept its promises, and gives it a hard time while it looks.
//
// Clients (Client) speak MQTT over sockets, keep their side of the protocol and write what happens into a History: what was sent, what
// was acknowledged, what was delivered, when the broker died. History.Check compares that with what docs/RELIABILITY.md promises
// and names every fault. For each message and each reader there are three states:
//
//	must be there   acknowledged to its publisher, or delivered to anybody at QoS 1 or 2, and wanted by the reader all the time
//	may be there    sent and not acknowledged; or wanted for a part of the time
//	must not        never sent, refused, wanted by no filter, or there already
//
// Nothing in the checker knows how a broker works: a history of another broker can be judged as well.
package torture

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind is a kind of event.
type Kind uint8

// The kinds. Those in -ing are noted before the packet is sent, the others after one has come.
const (
	Sending    Kind = iota // By publishes Msg, again if it was sent before
	Acked                  // PUBACK, or PUBREC: the broker has Msg
	Refused                // it has not, says Code
	Connecting             // By sends CONNECT; Msg is its Will
	Connected              // CONNACK; Present says that the broker has the session
	Ending                 // By is about to end Conn, in whatever way
	Gone                   // the connection Conn has ended without a goodbye
	Left                   // Conn has ended after a DISCONNECT; Present says that the broker has taken that

	Subscribing // Reader gets Filter at QoS
	Subscribed
	Unsubscribing
	Unsubscribed
	Delivered // Msg came to Reader over By's connection Conn with packet id Of; Present is DUP
	Damaged   // something came that nobody can have sent; Note says what
	Settling  // By acknowledges the delivery Of
	Refusing  // By refuses the delivery Of
	Releasing // PUBREL has come for packet id Of
	Seen      // the broker has taken all that By sent on Conn up to event Of
	Drained   // Reader has had all the time it needs

	Looking // By is going to look at the retained messages of Filter
	Looked  // and found this for each topic; Of is the index of Looking

	Saved   // whatever the broker had taken by event Of it has saved by now
	Crashed // the broker is dead: kill -9, a power cut, or its disk failed
	Stopped // it has stopped cleanly
)

var kindNames = [...]string{
	"sending", "acked", "refused", "connecting", "connected", "ending", "gone", "left", "subscribing", "subscribed", "unsubscribing",
	"unsubscribed", "delivered", "damaged", "settling", "refusing", "releasing", "seen", "drained", "looking", "looked", "saved", "crashed", "stopped",
}

func (k Kind) String() string { return kindNames[k] }

// Message is one message an application wants to send. Its ID is in its payload.
type Message struct {
	Source string // who publishes
	Topic  string // where it is delivered; "$queue/<name>" goes to that queue alone
	N      int    // counts the messages of Source to Topic
	QoS    byte
	Retain bool
	Empty  bool          // no payload: deletes the retained message
	Later  bool          // it goes through $delayed
	Delay  time.Duration // and is published after this time
	Will   bool          // published when Source's connection breaks
	Size   int           // of the payload
}

// ID names the message.
func (m *Message) ID() string { return fmt.Sprintf("%s|%s|%d", m.Source, m.Topic, m.N) }

// stream is what has an order.
func (m *Message) stream() string { return m.Source + "|" + m.Topic }

// ordered says that its place in its stream is that of its number.
func (m *Message) ordered() bool { return !m.Later && !m.Will }

// Event is one thing that happened.
type Event struct {
	Kind    Kind
	At      time.Time
	By      string // client
	Conn    int    // its connections are numbered
	Reader  string // what a delivery is for
	Msg     *Message
	Filter  string
	QoS     byte
	Code    byte
	Of      int // index of an earlier event
	Present bool
	Values  map[string]*Message // by topic
	Note    string
}

func (e *Event) String() string {
	s := fmt.Sprintf("%s %s/%d", e.Kind, e.By, e.Conn)
	if e.Reader != "" {
		s += " for " + e.Reader
	}
	if e.Msg != nil {
		s += " " + e.Msg.ID()
	}
	return s + " " + e.Filter + e.Note
}

// ReaderKind says from when on a reader wants messages.
type ReaderKind uint8

const (
	// Session wants what is published after its subscription.
	Session ReaderKind = iota
	// Queue wants everything that is kept, from the oldest on, and its members share it.
	Queue
	// Group is a shared subscription: from now on, and its members share it.
	Group
	// Log reads everything from the oldest on.
	Log
)

// Reader is one walk over the messages: a session, a queue, …
type Reader struct {
	Name string
	Kind ReaderKind
	// Cut says that retention may have taken the oldest messages of every stream.
	Cut bool
	// Scattered says that no order is kept: what a member was sent at QoS 2 is its own
	// to the end, and comes when it is back. [MQTT-4.8.2-4] [MQTT-4.8.2-5]
	Scattered bool
}

// History is what happened, in order. It is safe for concurrent use.
type History struct {
	mu      sync.Mutex
	events  []Event
	readers map[string]Reader
	sent    map[string]*Message // by ID
	acked   map[string]bool
}

// NewHistory returns an empty history for these readers.
func NewHistory(readers ...Reader) *History {
	h := &History{readers: map[string]Reader{}, sent: map[string]*Message{}, acked: map[string]bool{}}
	for _, r := range readers {
		h.readers[r.Name] = r
	}
	return h
}

// AddReader makes a reader known.
func (h *History) AddReader(r Reader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readers[r.Name] = r
}

// Add appends an event and returns its index.
func (h *History) Add(e Event) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.At.IsZero() {
		e.At = time.Now()
	}
	if e.Msg != nil && (e.Kind == Sending || e.Kind == Connecting) {
		h.sent[e.Msg.ID()] = e.Msg
	}
	if e.Kind == Acked {
		h.acked[e.Msg.ID()] = true
	}
	h.events = append(h.events, e)
	return len(h.events) - 1
}

// Message finds a message that was sent.
func (h *History) Message(id string) *Message {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent[id]
}

// Acked says whether a message was ever acknowledged.
func (h *History) Acked(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.acked[id]
}

// Len is the number of events.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.events)
}

// Clone returns a history that goes its own way from here.
func (h *History) Clone() *History {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &History{events: slices.Clip(h.events), readers: maps.Clone(h.readers), sent: maps.Clone(h.sent), acked: maps.Clone(h.acked)}
	return c
}

// Tail describes the last n events.
func (h *History) Tail(n int) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for i := max(0, len(h.events)-n); i < len(h.events); i++ {
		out = append(out, fmt.Sprintf("%d %s", i, &h.events[i]))
	}
	return out
}

// Dump describes all events, one a line.
func (h *History) Dump() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	for i := range h.events {
		e := &h.events[i]
		fmt.Fprintf(&b, "%d %s %s qos%d code%x %v of %d\n", i, e.At.Format("05.000000"), e, e.QoS, e.Code, e.Present, e.Of)
	}
	return b.String()
}

// about is how far around a fault About looks, in events.
const about = 4000

// About describes the events that a fault is made of: those of its message, those of the same stream that came to its reader, the
// reader's subscriptions, and what ended connections of who had to do with it.
func (h *History) About(f Fault) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.sent[f.ID]
	by := map[string]bool{f.Reader: true}
	var out []string
	for i := range h.events {
		e := &h.events[i]
		of, reader := e.Msg, e.Reader
		if e.Kind == Settling || e.Kind == Refusing {
			of, reader = h.events[e.Of].Msg, h.events[e.Of].Reader
		}
		mine := of != nil && of.ID() == f.ID && (reader == "" || reader == f.Reader)
		stream := reader == f.Reader && of != nil && m != nil && of.stream() == m.stream()
		subscription := e.Kind >= Subscribing && e.Kind <= Unsubscribed && reader == f.Reader
		connection := (e.Kind == Ending || e.Kind == Releasing || e.Kind == Gone || e.Kind == Left || e.Kind == Connected || e.Kind == Connecting || e.Kind == Seen) && by[e.By]
		if mine || stream || subscription || connection || e.Kind >= Saved || i == f.At {
			by[e.By] = true
			if i < f.At-about && !mine || i > f.At+about/4 {
				continue
			}
			out = append(out, fmt.Sprintf("%d %s qos%d %v of %d %s", i, e, e.QoS, e.Present, e.Of, e.At.Format("05.000000")))
		}
	}
	return out
}
