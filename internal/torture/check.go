package torture

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// checker goes through a history.
type checker struct {
	events   []Event
	messages map[string]*message
	readers  map[string]*reader
	units    map[conn]map[int]*unit // not done with, by index of the delivery
	conns    map[int]conn           // of a unit
	wills    map[conn]*will
	leaving  []*message // Wills whose clients have said goodbye, which may not be on disk yet
	newest   map[conn]map[string]int
	known    map[string]bool // clients with something on record: if their session is gone, so is that
	// granted has the clients whose session is new, and the event of its first SUBACK: it does not wait for the disk, and a crash may
	// take the session with all that is in it, but not what was asked for after it and is acknowledged.
	granted  map[string]int
	sessions map[string]*reader // by client
	durable  map[string]bool    // clients whose session is to stay
	writes   map[string]*register
	ending   map[conn]bool    // their clients are about to end them
	last     map[string]int   // by stream: the highest number that was acknowledged
	suspects map[conn][]Fault // what is a fault unless the connection turns out to have ended
	crashed  bool
	faults   []Fault
}

// Check returns the faults in what has happened so far.
func (h *History) Check() []Fault {
	c := h.run()
	c.complete()
	for _, fs := range c.suspects {
		c.faults = append(c.faults, fs...)
	}
	slices.SortStableFunc(c.faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return c.faults
}

// Missing counts what a reader must still be given.
func (h *History) Missing(name string) int {
	c := h.run()
	n := 0
	if r := c.readers[name]; r != nil {
		for _, m := range c.messages {
			if c.missing(r, m, len(c.events)) != "" {
				n++
			}
		}
	}
	return n
}

func (h *History) run() *checker {
	h.mu.Lock()
	events := h.events[:len(h.events):len(h.events)]
	c := &checker{
		events: events, messages: map[string]*message{}, readers: map[string]*reader{}, units: map[conn]map[int]*unit{}, conns: map[int]conn{},
		wills: map[conn]*will{}, newest: map[conn]map[string]int{}, known: map[string]bool{}, durable: map[string]bool{}, writes: map[string]*register{}, granted: map[string]int{}, sessions: map[string]*reader{}, suspects: map[conn][]Fault{}, ending: map[conn]bool{}, last: map[string]int{},
	}
	for _, r := range h.readers {
		c.readers[r.Name] = &reader{Reader: r, filters: map[string][]span{}, got: map[string]*receipt{}, newest: map[string]int{}, oldest: map[string]int{}, drained: -1}
	}
	h.mu.Unlock()
	for i := range events {
		c.step(i, &events[i])
	}
	return c
}

func (c *checker) fault(kind FaultKind, who, id string, at int, format string, args ...any) {
	c.faults = append(c.faults, Fault{kind, who, id, at, fmt.Sprintf(format, args...)})
}

func (c *checker) message(m *Message) *message {
	id := m.ID()
	x := c.messages[id]
	if x == nil {
		x = &message{Message: m, acked: -1, shown: -1, refused: -1, due: -1, revoked: -1}
		c.messages[id] = x
	}
	return x
}

func (c *checker) step(i int, e *Event) {
	switch e.Kind {
	case Sending:
		m := c.message(e.Msg)
		m.sent = append(m.sent, i)
		c.write(i, m)
	case Acked:
		if m := c.message(e.Msg); m.acked < 0 {
			m.acked = i
			c.last[m.stream()] = max(c.last[m.stream()], m.N)
			c.known[e.By] = c.durable[e.By]
			for client, first := range c.granted {
				c.known[client] = c.known[client] || m.sent[0] > first
			}
			c.written(i, m)
		}
	case Refused:
		// That the disk failed says nothing of what is on it.
		if m := c.message(e.Msg); e.Code != codeUnspecified && e.Code != codeImplementation {
			m.refused = i
		}
	case Connecting, Connected, Ending, Gone, Left:
		c.connection(i, e)
	case Subscribing, Subscribed, Unsubscribing, Unsubscribed:
		c.subscription(i, e)
	case Delivered:
		c.delivered(i, e)
	case Damaged:
		c.fault(Invented, cmp.Or(e.Reader, e.By), "", i, "%s", e.Note)
	case Settling, Refusing, Seen:
		c.settle(i, e)
	case Saved, Crashed, Stopped:
		c.boundary(i, e)
	case Drained:
		c.readers[e.Reader].drained = i
	case Looked:
		c.looked(i, e)
	}
}

// The codes with which a broker says that it could not, as opposed to would not.
const (
	codeUnspecified    = 0x80
	codeImplementation = 0x83
)

func (c *checker) connection(i int, e *Event) {
	k := conn{e.By, e.Conn}
	switch e.Kind {
	case Connecting:
		if e.Msg != nil {
			m := c.message(e.Msg)
			m.sent = append(m.sent, i)
			c.wills[k] = &will{m: m}
		}
	case Connected:
		if w := c.wills[k]; w != nil {
			w.connected = true
		}
		if c.known[e.By] && !e.Present {
			c.fault(Forgotten, e.By, "", i, "the broker has no session for it")
		}
		if first, ok := c.granted[e.By]; ok && !c.known[e.By] {
			switch {
			case !e.Present:
				c.gone(e.By)
			case first == math.MaxInt: // the crash has spared it
				c.known[e.By] = c.durable[e.By]
			}
		}
		c.durable[e.By] = e.QoS > 0
	case Ending:
		c.ending[k] = true
		c.reopenAll(k)
	case Gone, Left:
		if w := c.wills[k]; w != nil {
			switch {
			case e.Kind == Left && !e.Present:
			case e.Kind == Left:
				w.m.revoked = i
				c.leaving = append(c.leaving, w.m)
			case w.connected:
				w.m.due = i
			}
			delete(c.wills, k)
		}
		c.reopenAll(k)
		c.cleared(k, e.At)
	}
}

// grant notes what a SUBACK promises.
func (c *checker) grant(i int, client string, r *reader, asked int) {
	if first, ok := c.granted[client]; c.durable[client] && r.Kind == Session && (!ok || asked <= first) {
		if !ok {
			c.granted[client], c.sessions[client] = i, r
		}
		return
	}
	c.known[client] = c.durable[client]
}

// doubt is what a crash leaves of new sessions: what is published from now on says nothing about them. After a clean stop there is none.
func (c *checker) doubt(crashed bool) {
	for client := range c.granted {
		if c.granted[client] = math.MaxInt; !crashed {
			c.known[client] = c.durable[client]
		}
	}
}

// gone is the end of a session that nothing says must be there: its client subscribes anew.
func (c *checker) gone(client string) {
	delete(c.granted, client)
	for _, spans := range c.sessions[client].filters {
		if last := &spans[len(spans)-1]; last.ending < 0 {
			last.from = -1
		}
	}
}

// reopenAll notes that what the broker need not know to be acknowledged may come again.
func (c *checker) reopenAll(k conn) {
	for at, u := range c.units[k] {
		if u.seen < 0 {
			c.reopen(k, at, u)
		}
	}
}

func (c *checker) subscription(i int, e *Event) {
	r := c.readers[e.Reader]
	spans := r.filters[e.Filter]
	last := len(spans) - 1
	switch e.Kind {
	case Subscribing:
		if last >= 0 && spans[last].ending < 0 {
			return // again, which changes nothing
		}
		spans = append(spans, span{qos: e.QoS, asking: i, from: -1, ending: -1, to: -1})
	case Subscribed:
		if spans[last].from < 0 {
			spans[last].from = i
		}
		c.grant(i, e.By, r, spans[last].asking)
	case Unsubscribing:
		if last >= 0 && spans[last].ending < 0 {
			spans[last].ending = i
		}
	case Unsubscribed:
		if last >= 0 {
			spans[last].to = i
		}
	}
	r.filters[e.Filter] = spans
}

func (c *checker) delivered(i int, e *Event) {
	r, id := c.readers[e.Reader], e.Msg.ID()
	m := c.messages[id]
	if m == nil || len(m.sent) == 0 {
		c.fault(Invented, r.Name, id, i, "nobody has sent it")
		return
	}
	c.welcome(i, e, r, m)
	if e.QoS > 0 && m.shown < 0 {
		m.shown = i
	}
	got := r.got[id]
	if got == nil {
		got = &receipt{}
		r.got[id] = got
	}
	got.count++
	k := conn{e.By, e.Conn}
	if r.shared() && c.ending[k] && e.QoS < 2 {
		return // read from a socket that the broker had given up: by now it may be anybody's
	}
	switch {
	case got.open > 0:
		got.open--
	case got.fresh < m.copies():
		got.fresh++
	case c.handedOver(i, k, r, id):
	default:
		c.suspect(k, r, Fault{Twice, r.Name, id, i, fmt.Sprintf("sent %d times at QoS %d, it comes for the %d. time, and nothing explains that", len(m.sent), m.QoS, got.count)})
	}
	c.order(i, e, r, k, m, got)
	if c.units[k] == nil {
		c.units[k] = map[int]*unit{}
	}
	u := &unit{r: r, id: id, qos: e.QoS, settled: -1, seen: -1}
	if e.QoS == 0 {
		u.settled, u.seen = i, i // by having been sent
	}
	c.units[k][i] = u
	c.conns[i] = k
}

// suspect notes a fault. Where members share a reader, it is none if the connection turns out to have ended before, with the broker:
// then what came over it was only read late.
func (c *checker) suspect(k conn, r *reader, f Fault) {
	if r.shared() {
		c.suspects[k] = append(c.suspects[k], f)
	} else {
		c.faults = append(c.faults, f)
	}
}

// handedOver says whether a message can have come from another member, whose connection has ended with the broker though that one does
// not know it yet. That it does end is looked at later.
func (c *checker) handedOver(i int, to conn, r *reader, id string) bool {
	for k, units := range c.units {
		for at, u := range units {
			if r.shared() && k != to && u.r == r && u.id == id && u.seen < 0 {
				delete(units, at)
				c.suspects[k] = append(c.suspects[k], Fault{Twice, r.Name, id, i, fmt.Sprintf("%s has it, connected and well", k.client)})
				return true
			}
		}
	}
	return false
}

// cleared drops what is explained by the end of a connection that its client has not asked for.
func (c *checker) cleared(k conn, at time.Time) {
	for _, f := range c.suspects[k] {
		if c.ending[k] || at.Sub(c.events[f.At].At) > handover {
			c.faults = append(c.faults, f)
		}
	}
	delete(c.suspects, k)
}

// handover is how long a client may take to see that its connection has ended.
const handover = 2 * time.Second

// welcome says whether a delivery is one that may be.
func (c *checker) welcome(i int, e *Event, r *reader, m *message) {
	id := m.ID()
	if m.refused >= 0 && m.acked < 0 && len(m.sent) == 1 {
		c.fault(Unwelcome, r.Name, id, i, "it was refused at event %d", m.refused)
	}
	if m.revoked >= 0 {
		c.fault(Unjustified, r.Name, id, i, "its client had said goodbye at event %d", m.revoked)
	}
	if m.Delay > 0 {
		if early := c.events[m.sent[0]].At.Add(m.Delay).Sub(e.At); early > 2*time.Millisecond {
			c.fault(Early, r.Name, id, i, "%v before its time", early)
		}
	}
	if !r.mayWant(m, i) {
		c.fault(Unwanted, r.Name, id, i, "no filter asked for %s then", m.Topic)
	}
}

// order checks a delivery against those before it.
func (c *checker) order(i int, e *Event, r *reader, k conn, m *message, got *receipt) {
	if !m.ordered() || r.Scattered {
		return
	}
	stream := m.stream()
	if got.count == 1 {
		// What comes without an acknowledgement is over once it is written. So another consumer may have the next one sooner than its own has read it; and
		// it may have got lost the first time.
		loose := e.QoS == 0 && (c.crashed || r.shared())
		resent := len(m.sent) > 1 && (r.Kind == Session || r.Kind == Group || r.Cut) // it may have come too late for the first copy
		if n, ok := r.newest[stream]; ok && m.N < n && !resent && !loose {
			c.suspect(k, r, Fault{Disordered, r.Name, m.ID(), i, fmt.Sprintf("it comes after number %d", n)})
		}
		if n, ok := r.oldest[stream]; !ok || m.N < n {
			r.oldest[stream] = m.N
		}
	}
	r.newest[stream] = max(r.newest[stream], m.N)
	of := c.newest[k]
	if of == nil {
		of = map[string]int{}
		c.newest[k] = of
	}
	key := r.Name + "|" + stream
	if n := of[key]; m.N < n && len(m.sent) == 1 && !got.refused {
		c.suspect(k, r, Fault{Disordered, r.Name, m.ID(), i, fmt.Sprintf("on one connection it comes after number %d", n)})
	}
	of[key] = max(of[key], m.N)
}

// settle follows acknowledgements to the broker.
func (c *checker) settle(i int, e *Event) {
	if e.Kind == Seen {
		for _, u := range c.units[conn{e.By, e.Conn}] {
			if u.settled >= 0 && u.settled < e.Of && u.seen < 0 {
				u.seen = i
			}
		}
		return
	}
	k := c.conns[e.Of]
	u := c.units[k][e.Of]
	if u == nil {
		if d := &c.events[e.Of]; e.Kind == Refusing && d.Msg != nil {
			c.readers[d.Reader].got[d.Msg.ID()].refused = true // the broker may have taken that for an answer
		}
		return
	}
	if e.Kind == Refusing {
		got := u.r.got[u.id]
		got.refused = true
		got.open++
		delete(c.units[k], e.Of)
		return
	}
	u.settled = i
}

// reopen notes that a delivery may come again. Not at QoS 2: there the receiver has taken the message with the packet id.
func (c *checker) reopen(k conn, at int, u *unit) {
	if u.qos < 2 {
		u.r.got[u.id].open++
	}
	delete(c.units[k], at)
}

// boundary is what ends uncertainty, in one way or the other.
func (c *checker) boundary(i int, e *Event) {
	for k, units := range c.units {
		for at, u := range units {
			switch {
			case u.seen >= 0 && e.Kind != Crashed && (e.Kind == Stopped || u.seen < e.Of):
				delete(units, at)
			case e.Kind != Saved:
				c.reopen(k, at, u)
			}
		}
		if e.Kind != Saved {
			delete(c.newest, k)
		}
	}
	var leaving []*message
	for _, m := range c.leaving {
		switch {
		case e.Kind != Saved:
			m.revoked = -1 // perhaps its disk did not know yet, or it closed the connection because it was stopping
		case e.Kind == Saved && m.revoked >= e.Of:
			leaving = append(leaving, m)
		}
	}
	c.leaving = leaving
	if e.Kind == Saved {
		return
	}
	c.doubt(e.Kind == Crashed)
	c.crashed = c.crashed || e.Kind == Crashed
	for k := range c.suspects {
		c.cleared(k, e.At)
	}
	for k, w := range c.wills { // the broker has ended, and with it all connections
		if w.connected {
			w.m.due = i
		}
		delete(c.wills, k)
	}
}

// complete looks for what should have come.
func (c *checker) complete() {
	for _, r := range c.readers {
		if r.drained < 0 {
			continue
		}
		for id, m := range c.messages {
			if why := c.missing(r, m, r.drained); why != "" {
				c.fault(Lost, r.Name, id, r.drained, "%s", why)
			}
		}
	}
}

// missing says why a reader should have been given a message that it was not given by then.
func (c *checker) missing(r *reader, m *message, by int) string {
	if !m.stored() || m.QoS == 0 || m.Empty || !r.mustWant(m) {
		return ""
	}
	if got := r.got[m.ID()]; got != nil {
		return ""
	}
	for _, at := range []struct {
		what string
		at   int
	}{{"acknowledged", m.acked}, {"delivered to another", m.shown}, {"a Will whose connection ended", m.due}} {
		if at.at >= 0 && at.at < by {
			// Retention goes on while the reader reads, so only the newest is sure to be there. Queues and sessions, which it spares, see to the rest.
			if r.Cut && (!m.ordered() || m.N < c.last[m.stream()]) {
				return ""
			}
			return fmt.Sprintf("%s at event %d", at.what, at.at)
		}
	}
	return ""
}
