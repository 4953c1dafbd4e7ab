package torture

import (
	"strings"
	"testing"
	"time"
)

// told builds a history: each method is something that happens.
type told struct {
	*History
	now  time.Time
	last map[string]int // delivery by reader and id
}

func (h *told) add(e Event) int {
	h.now = h.now.Add(time.Millisecond)
	e.At = h.now
	return h.Add(e)
}

func msg(n int, qos byte) *Message { return &Message{Source: "p", Topic: "t", N: n, QoS: qos} }

func (h *told) send(ms ...*Message) *told {
	for _, m := range ms {
		h.add(Event{Kind: Sending, By: m.Source, Msg: m})
	}
	return h
}

func (h *told) ack(ms ...*Message) *told {
	for _, m := range ms {
		h.add(Event{Kind: Acked, By: m.Source, Msg: m})
	}
	return h
}

func (h *told) publish(ms ...*Message) *told { return h.send(ms...).ack(ms...) }

func (h *told) subscribe(reader, filter string, qos byte) *told {
	h.add(Event{Kind: Subscribing, Reader: reader, Filter: filter, QoS: qos})
	h.add(Event{Kind: Subscribed, Reader: reader, Filter: filter})
	return h
}

func (h *told) subscribes(by, reader, filter string) *told {
	h.add(Event{Kind: Subscribing, By: by, Reader: reader, Filter: filter, QoS: 1})
	h.add(Event{Kind: Subscribed, By: by, Reader: reader, Filter: filter})
	return h
}

func (h *told) unsubscribe(reader, filter string) *told {
	h.add(Event{Kind: Unsubscribing, Reader: reader, Filter: filter})
	h.add(Event{Kind: Unsubscribed, Reader: reader, Filter: filter})
	return h
}

// deliver has a message come to a reader over the first connection of the client c.
func (h *told) deliver(reader string, ms ...*Message) *told {
	return h.deliverTo("c", 1, reader, ms...)
}

func (h *told) deliverTo(by string, conn int, reader string, ms ...*Message) *told {
	for _, m := range ms {
		h.last[reader+m.ID()] = h.add(Event{Kind: Delivered, By: by, Conn: conn, Reader: reader, Msg: m, QoS: min(m.QoS, 2)})
	}
	return h
}

func (h *told) settle(reader string, ms ...*Message) *told {
	for _, m := range ms {
		h.add(Event{Kind: Settling, By: "c", Of: h.last[reader+m.ID()]})
	}
	return h
}

func (h *told) refuse(reader string, m *Message) *told {
	h.add(Event{Kind: Refusing, By: "c", Of: h.last[reader+m.ID()]})
	return h
}

func (h *told) happens(k Kind) *told { h.add(Event{Kind: k, By: "c", Conn: 1, Of: h.Len()}); return h }

func (h *told) drain(reader string) *told  { h.add(Event{Kind: Drained, Reader: reader}); return h }
func (h *told) wait(d time.Duration) *told { h.now = h.now.Add(d); return h }
func (h *told) code(m *Message, code byte) *told {
	h.add(Event{Kind: Refused, Msg: m, Code: code})
	return h
}

func (h *told) connect(conn int, will *Message) *told {
	h.add(Event{Kind: Connecting, By: "w", Conn: conn, Msg: will})
	h.add(Event{Kind: Connected, By: "w", Conn: conn})
	return h
}

func (h *told) end(k Kind, conn int) *told {
	h.add(Event{Kind: k, By: "w", Conn: conn, Present: true})
	return h
}

func (h *told) session(present bool) *told {
	h.add(Event{Kind: Connected, By: "c", Conn: 1, QoS: 1, Present: present})
	return h
}

// look finds retained messages; meanwhile happens while it looks.
func (h *told) look(values map[string]*Message, meanwhile func()) *told {
	of := h.add(Event{Kind: Looking, By: "l", Filter: "r/#"})
	if meanwhile != nil {
		meanwhile()
	}
	h.add(Event{Kind: Looked, By: "l", Filter: "r/#", Of: of, Values: values})
	return h
}

// TestCheck: each row is a history and the faults in it. What ends in drain has all a reader will ever be given.
func TestCheck(t *testing.T) {
	a, b, c := msg(1, 1), msg(2, 1), msg(3, 1)
	x, y := msg(1, 2), msg(2, 2)
	zero := msg(1, 0)
	kept := func(n int, empty bool) *Message {
		return &Message{Source: "p", Topic: "r/a", N: n, QoS: 1, Retain: true, Empty: empty}
	}
	r1, r2, r3 := kept(1, false), kept(2, false), kept(3, true)
	will := &Message{Source: "w", Topic: "t", N: 1, QoS: 1, Will: true}
	late := &Message{Source: "p", Topic: "t", N: 1, QoS: 1, Later: true, Delay: time.Second}
	direct := &Message{Source: "p", Topic: "$queue/q", N: 1, QoS: 1}
	for _, row := range []struct {
		name string
		do   func(h *told)
		want string // faults, as kinds
	}{
		// Must be there.
		{"all is well", func(h *told) { h.subscribe("s", "t", 1).publish(a, b).deliver("s", a, b).drain("s") }, ""},
		{"an acknowledged message is lost", func(h *told) { h.subscribe("s", "t", 1).publish(a, b).deliver("s", b).drain("s") }, "lost"},
		{"not before the reader had its time", func(h *told) { h.subscribe("s", "t", 1).publish(a, b).deliver("s", b) }, ""},
		{"lost by a crash", func(h *told) { h.subscribe("s", "t", 1).publish(a).happens(Crashed).drain("s") }, "lost"},
		{"shown to one, so it is there for all", func(h *told) {
			h.subscribe("s", "t", 1).subscribe("q", "t", 1).send(a).deliver("s", a).happens(Crashed).drain("q")
		}, "lost"},
		{"but not at QoS 0", func(h *told) {
			h.subscribe("s", "t", 1).subscribe("q", "t", 1).send(zero).deliver("s", zero).happens(Crashed).drain("q")
		}, ""},
		{"a queue has what was published before", func(h *told) { h.publish(a).subscribe("q", "t", 1).drain("q") }, "lost"},
		{"a session has not", func(h *told) { h.publish(a).subscribe("s", "t", 1).drain("s") }, ""},
		{"a subscription is forgotten", func(h *told) { h.subscribe("s", "t", 1).happens(Stopped).publish(a).drain("s") }, "lost"},
		{"QoS 0 subscriptions may miss some", func(h *told) { h.subscribe("s", "t", 0).publish(a).drain("s") }, ""},
		{"a message to a queue", func(h *told) { h.subscribe("q", "$queue/q", 1).publish(direct).drain("q") }, "lost"},
		// May be there.
		{"no answer, not there", func(h *told) { h.subscribe("s", "t", 1).send(a).happens(Crashed).drain("s") }, ""},
		{"no answer, there", func(h *told) { h.subscribe("s", "t", 1).send(a).happens(Crashed).deliver("s", a).drain("s") }, ""},
		{"sent again after no answer, there twice", func(h *told) {
			h.subscribe("s", "t", 1).send(a).happens(Crashed).publish(a).deliver("s", a, a).drain("s")
		}, ""},
		{"once at QoS 2", func(h *told) {
			h.subscribe("s", "t", 1).send(x).happens(Crashed).publish(x).deliver("s", x, x).drain("s")
		}, "twice"},
		{"published while a subscription was made", func(h *told) {
			h.send(a)
			h.subscribe("s", "t", 1).ack(a).deliver("s", a).drain("s")
		}, ""},
		{"published after its end", func(h *told) { h.subscribe("s", "t", 1).unsubscribe("s", "t").publish(a).drain("s") }, ""},
		{"retention took the oldest", func(h *told) { h.publish(a, b, c).subscribe("log", "#", 1).deliver("log", b, c).drain("log") }, ""},
		{"retention takes not all", func(h *told) { h.publish(a, b, c).subscribe("log", "#", 1).drain("log") }, "lost"},
		{"retention goes on while a log is read", func(h *told) {
			h.publish(a, b, c).subscribe("log", "#", 1).deliver("log", a, c).drain("log")
		}, ""},
		// Must not.
		{"nobody sent it", func(h *told) { h.subscribe("s", "t", 1).deliver("s", a) }, "invented"},
		{"nobody sent it yet", func(h *told) { h.subscribe("s", "t", 1).deliver("s", a).publish(a) }, "invented"},
		{"bytes changed", func(h *told) { h.add(Event{Kind: Damaged, Reader: "s", Note: "payload"}) }, "invented"},
		{"refused and delivered", func(h *told) { h.subscribe("s", "t", 1).send(a).code(a, 0x97).deliver("s", a) }, "unwelcome"},
		{"the disk failed, which proves nothing", func(h *told) {
			h.subscribe("s", "t", 1).send(a).code(a, 0x80).happens(Crashed).deliver("s", a)
		}, ""},
		{"another topic", func(h *told) { h.subscribe("s", "u", 1).publish(a).deliver("s", a) }, "unwanted"},
		{"from before the subscription", func(h *told) { h.publish(a).subscribe("s", "t", 1).deliver("s", a) }, "unwanted"},
		{"from after its end", func(h *told) { h.subscribe("s", "t", 1).unsubscribe("s", "t").publish(a).deliver("s", a) }, "unwanted"},
		{"a queue's message for others", func(h *told) { h.subscribe("log", "#", 1).publish(direct).deliver("log", direct) }, "unwanted"},
		// Order.
		{"swapped", func(h *told) { h.subscribe("s", "t", 1).publish(a, b).deliver("s", b, a).drain("s") }, "out of order, out of order"},
		{"swapped over a reconnection", func(h *told) {
			h.subscribe("s", "t", 1).publish(a, b).deliver("s", b).deliverTo("c", 2, "s", a).drain("s")
		}, "out of order"},
		{"again from where it was", func(h *told) {
			h.subscribe("s", "t", 1).publish(a, b, c).deliver("s", a, b).happens(Gone).deliverTo("c", 2, "s", a, b, c).drain("s")
		}, ""},
		{"again in another order", func(h *told) {
			h.subscribe("s", "t", 1).publish(a, b).deliver("s", a, b).happens(Gone).deliverTo("c", 2, "s", b, a).drain("s")
		}, "out of order"},
		{"the next one at another consumer", func(h *told) {
			h.subscribe("q", "t", 1).publish(a, b).deliverTo("d", 1, "q", b).deliver("q", a).drain("q")
		}, "out of order"},
		{"the next one at another consumer, which was quicker to read it", func(h *told) {
			h.subscribe("q", "t", 1).publish(zero, b).deliverTo("d", 1, "q", b).deliver("q", zero).drain("q")
		}, ""},
		{"at QoS 0 on one connection", func(h *told) {
			h.subscribe("q", "t", 1).publish(zero, b).deliver("q", b, zero).drain("q")
		}, "out of order"},
		{"a refused one out of turn", func(h *told) {
			h.subscribe("q", "t", 1).publish(a, b).deliver("q", a).refuse("q", a).deliver("q", b, a).drain("q")
		}, ""},
		// Again.
		{"twice on one connection", func(h *told) { h.subscribe("s", "t", 1).publish(a).deliver("s", a, a) }, "twice"},
		{"twice, since the connection broke", func(h *told) {
			h.subscribe("s", "t", 1).publish(a).deliver("s", a).happens(Gone).deliverTo("c", 2, "s", a)
		}, ""},
		{"three times, and it broke once", func(h *told) {
			h.subscribe("s", "t", 1).publish(a).deliver("s", a).happens(Gone).deliverTo("c", 2, "s", a, a)
		}, "twice"},
		{"the acknowledgement may have been on its way", func(h *told) {
			h.subscribe("s", "t", 1).publish(a).deliver("s", a).settle("s", a).happens(Gone).deliverTo("c", 2, "s", a)
		}, ""},
		{"the broker had it", func(h *told) {
			h.subscribe("s", "t", 1).publish(a).deliver("s", a).settle("s", a).happens(Seen).happens(Gone).deliverTo("c", 2, "s", a)
		}, "twice"},
		{"and lost it in a crash", func(h *told) {
			h.subscribe("s", "t", 1).publish(a).deliver("s", a).settle("s", a).happens(Seen).happens(Crashed).deliverTo("c", 2, "s", a)
		}, ""},
		{"the last cursor is dropped at a clean stop", func(h *told) {
			h.subscribe("s", "t", 1).publish(a).deliver("s", a).settle("s", a).happens(Seen).happens(Stopped).deliverTo("c", 2, "s", a)
		}, "twice"},
		{"a saved cursor is dropped in a crash", func(h *told) {
			h.subscribe("s", "t", 1).publish(a).deliver("s", a).settle("s", a).happens(Seen).happens(Saved).happens(Crashed).deliverTo("c", 2, "s", a)
		}, "twice"},
		{"settled after what is known to be saved", func(h *told) {
			h.subscribe("s", "t", 1).publish(a).deliver("s", a)
			of := h.Len()
			h.settle("s", a).happens(Seen).add(Event{Kind: Saved, Of: of})
			h.happens(Crashed).deliverTo("c", 2, "s", a)
		}, ""},
		{"QoS 0 is over with the sending", func(h *told) {
			h.subscribe("s", "t", 0).publish(zero).deliver("s", zero).happens(Gone).deliverTo("c", 2, "s", zero)
		}, "twice"},
		{"and may come again after a crash", func(h *told) {
			h.subscribe("s", "t", 0).publish(zero).deliver("s", zero).happens(Crashed).deliverTo("c", 2, "s", zero)
		}, ""},
		{"QoS 2 is for once, crash or not", func(h *told) {
			h.subscribe("s", "t", 2).publish(x, y).deliver("s", x).happens(Crashed).deliverTo("c", 2, "s", x)
		}, "twice"},
		{"another member has it, since its holder left", func(h *told) {
			h.subscribe("q", "t", 1).publish(a).deliver("q", a).deliverTo("d", 1, "q", a).happens(Gone)
		}, ""},
		{"another member has it, and its holder leaves only then", func(h *told) {
			h.subscribe("q", "t", 1).publish(a).deliver("q", a).deliverTo("d", 1, "q", a).happens(Ending).happens(Gone)
		}, "twice"},
		{"another member has it, and its former holder reads late", func(h *told) {
			h.subscribe("q", "t", 1).publish(a).happens(Ending).deliverTo("d", 1, "q", a).deliver("q", a).happens(Left)
		}, ""},
		{"another member has it, and its holder too", func(h *told) {
			h.subscribe("q", "t", 1).publish(a).deliver("q", a).deliverTo("d", 1, "q", a)
		}, "twice"},
		{"another member has it, and its holder stayed on", func(h *told) {
			h.subscribe("q", "t", 1).publish(a).deliver("q", a).deliverTo("d", 1, "q", a).wait(time.Minute).happens(Gone)
		}, "twice"},
		// Wills.
		{"a Will", func(h *told) { h.subscribe("s", "t", 1).connect(1, will).end(Gone, 1).deliver("s", will).drain("s") }, ""},
		{"a Will is lost", func(h *told) { h.subscribe("s", "t", 1).connect(1, will).end(Gone, 1).drain("s") }, "lost"},
		{"with the broker", func(h *told) { h.subscribe("s", "t", 1).connect(1, will).happens(Crashed).drain("s") }, "lost"},
		{"a Will comes twice", func(h *told) { h.subscribe("s", "t", 1).connect(1, will).end(Gone, 1).deliver("s", will, will) }, "twice"},
		{"a Will after a goodbye", func(h *told) { h.subscribe("s", "t", 1).connect(1, will).end(Left, 1).deliver("s", will).drain("s") }, "unjustified"},
		{"no Will after a goodbye", func(h *told) { h.subscribe("s", "t", 1).connect(1, will).end(Left, 1).drain("s") }, ""},
		{"a goodbye that may not have arrived, and a Will", func(h *told) {
			h.subscribe("s", "t", 1).connect(1, will).add(Event{Kind: Left, By: "w", Conn: 1})
			h.deliver("s", will).drain("s")
		}, ""},
		{"a goodbye that may not have arrived, and no Will", func(h *told) {
			h.subscribe("s", "t", 1).connect(1, will).add(Event{Kind: Left, By: "w", Conn: 1})
			h.drain("s")
		}, ""},
		{"a goodbye that a crash took back", func(h *told) {
			h.subscribe("s", "t", 1).connect(1, will).end(Left, 1).happens(Crashed).deliver("s", will).drain("s")
		}, ""},
		{"a goodbye that was saved", func(h *told) {
			h.subscribe("s", "t", 1).connect(1, will).end(Left, 1).happens(Saved).happens(Crashed).deliver("s", will).drain("s")
		}, "unjustified"},
		// Delayed messages.
		{"in time", func(h *told) { h.subscribe("s", "t", 1).publish(late).wait(time.Second).deliver("s", late).drain("s") }, ""},
		{"too early", func(h *told) { h.subscribe("s", "t", 1).publish(late).deliver("s", late).drain("s") }, "early"},
		{"never", func(h *told) { h.subscribe("s", "t", 1).publish(late).happens(Crashed).wait(time.Second).drain("s") }, "lost"},
		// Sessions.
		{"a session stays", func(h *told) { h.session(false).happens(Crashed).session(true) }, ""},
		{"a session is gone, and nothing with it", func(h *told) { h.session(false).happens(Crashed).session(false) }, ""},
		{"a new session is gone, and its first subscription", func(h *told) {
			h.session(false).subscribes("c", "s", "t").happens(Crashed).session(false).publish(a).drain("s")
		}, ""},
		{"a new session is gone, and comes back", func(h *told) {
			h.session(false).subscribes("c", "s", "t").happens(Crashed).session(false).subscribes("c", "s", "t").publish(a).drain("s")
		}, "lost"},
		{"a new session is gone, and not what came after it", func(h *told) {
			h.session(false).subscribes("c", "s", "t").publish(a).happens(Crashed).session(false)
		}, "forgotten"},
		{"a session is gone, and what was acknowledged", func(h *told) {
			h.session(false).subscribes("c", "s", "t").subscribes("c", "s", "u").happens(Crashed).session(false)
		}, "forgotten"},
		// Retained messages.
		{"retained", func(h *told) { h.publish(r1, r2).look(map[string]*Message{"r/a": r2}, nil) }, ""},
		{"a retained message is gone", func(h *told) { h.publish(r1).happens(Crashed).look(nil, nil) }, "lost"},
		{"an old one is back", func(h *told) { h.publish(r1, r2).happens(Crashed).look(map[string]*Message{"r/a": r1}, nil) }, "stale"},
		{"no answer: the old one or the new one", func(h *told) {
			h.publish(r1).send(r2).look(map[string]*Message{"r/a": r1}, nil).look(map[string]*Message{"r/a": r2}, nil)
		}, ""},
		{"changed meanwhile", func(h *told) { h.publish(r1).look(map[string]*Message{"r/a": r2}, func() { h.publish(r2) }) }, ""},
		{"deleted", func(h *told) { h.publish(r1, r2, r3).look(nil, nil) }, ""},
		{"a deleted one is back", func(h *told) { h.publish(r1, r2, r3).look(map[string]*Message{"r/a": r2}, nil) }, "stale"},
		{"invented", func(h *told) { h.look(map[string]*Message{"r/b": r1}, nil) }, "invented"},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := &told{
				History: NewHistory(Reader{Name: "s", Kind: Session}, Reader{Name: "q", Kind: Queue}, Reader{Name: "log", Kind: Log, Cut: true}),
				now:     time.Unix(1, 0), last: map[string]int{},
			}
			row.do(h)
			var kinds, all []string
			for _, f := range h.Check() {
				kinds, all = append(kinds, string(f.Kind)), append(all, f.String())
			}
			if got := strings.Join(kinds, ", "); got != row.want {
				t.Errorf("got %q, want %q:\n%s", got, row.want, strings.Join(all, "\n"))
			}
		})
	}
}

// TestMissing: what a reader still waits for shrinks to nothing.
func TestMissing(t *testing.T) {
	h := &told{History: NewHistory(Reader{Name: "s"}), last: map[string]int{}}
	a, b := msg(1, 1), msg(2, 1)
	h.subscribe("s", "t", 1).publish(a).send(b)
	if n := h.Missing("s"); n != 1 {
		t.Errorf("%d missing, want 1", n)
	}
	h.deliver("s", a)
	if n := h.Missing("s"); n != 0 {
		t.Errorf("%d missing, want 0", n)
	}
	f := Fault{Reader: "s", ID: a.ID()}
	if len(h.About(f)) != 5 || len(h.Tail(2)) != 2 {
		t.Errorf("%q %q", h.About(f), h.Tail(2))
	}
}
