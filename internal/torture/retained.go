package torture

import (
	"slices"

	"github.com/edgemq/edgemq/broker/topic"
)

// register is a topic with a retained message. It has one publisher, so its values are written in the order of their numbers.
type register struct {
	writes []*message // in order of their first sending
	first  map[string]int
	acks   []ack
}

type ack struct{ at, n int }

func (c *checker) write(i int, m *message) {
	if !m.Retain || !m.ordered() {
		return
	}
	r := c.writes[m.Topic]
	if r == nil {
		r = &register{first: map[string]int{}}
		c.writes[m.Topic] = r
	}
	if len(m.sent) == 1 {
		r.writes = append(r.writes, m)
	}
}

func (c *checker) written(i int, m *message) {
	if r := c.writes[m.Topic]; r != nil && m.Retain {
		r.acks = append(r.acks, ack{i, m.N})
	}
}

// looked compares what somebody found with what could be there while he looked.
func (c *checker) looked(i int, e *Event) {
	for name, r := range c.writes {
		if !topic.Match(e.Filter, name) {
			continue
		}
		low := 0
		for _, a := range r.acks {
			if a.at < e.Of {
				low = max(low, a.n)
			}
		}
		var possible []*message
		for _, m := range r.writes {
			if m.N >= low && m.sent[0] < i {
				possible = append(possible, m)
			}
		}
		got := e.Values[name]
		switch {
		case got == nil:
			none := low == 0 || len(possible) != 1 || possible[0].Empty
			if !none {
				c.fault(Lost, e.By, possible[0].ID(), i, "it is the retained message, and was not found")
			}
		case !slices.ContainsFunc(possible, func(m *message) bool { return m.ID() == got.ID() }):
			c.fault(Stale, e.By, got.ID(), i, "the retained message is number %d or later", low)
		}
	}
	for name, m := range e.Values {
		if c.writes[name] == nil {
			c.fault(Invented, e.By, m.ID(), i, "nobody has published a retained message there")
		}
	}
}
