package topic

import "strings"

// Names is the inverse of Index: topics are stored and a filter is asked for, at the cost of what matches and
// not of what exists. It serves retained messages and the topics of a binding. The zero value is ready to use.
//
// Like an Index it is not locked: the owner locks. Match and Get may run beside each other.
type Names[V any] struct {
	tree tree[name[V]]
	n    int
}

type name[V any] struct {
	topic string
	value V
}

// Set stores v under topic; it reports whether the topic is new.
func (s *Names[V]) Set(topic string, v V) (added bool) {
	n := s.tree.insert(topic)
	if n.payload != nil {
		n.payload.value = v
		return false
	}
	n.payload = &name[V]{topic, v}
	s.n++
	return true
}

// Get returns what is stored under topic.
func (s *Names[V]) Get(topic string) (v V, ok bool) {
	if n := s.tree.find(topic); n != nil && n.payload != nil {
		return n.payload.value, true
	}
	return v, false
}

// Delete removes topic; it reports whether it was there.
func (s *Names[V]) Delete(topic string) bool {
	n := s.tree.find(topic)
	if n == nil || n.payload == nil {
		return false
	}
	n.payload = nil
	n.prune()
	s.n--
	return true
}

// Match calls fn for every stored topic that filter matches until fn returns false. A topic comes before those
// below it; there is no other order. fn must not change s.
func (s *Names[V]) Match(filter string, fn func(topic string, v V) bool) {
	if filter != "" {
		matchNames(&s.tree.root, filter, fn)
	}
}

// matchNames walks what filter matches below n, and reports whether to go on.
func matchNames[V any](n *node[name[V]], filter string, fn func(string, V) bool) bool {
	level, rest, more := strings.Cut(filter, "/")
	if level != "+" && level != "#" {
		c := n.child(level)
		return c == nil || descendNames(c, rest, more, fn)
	}
	for _, c := range n.children {
		if n.parent == nil && c.level != "" && c.level[0] == '$' { // [MQTT-4.7.2-1]
			continue
		}
		if level == "#" && !allNames(c, fn) || level == "+" && !descendNames(c, rest, more, fn) {
			return false
		}
	}
	return true
}

func descendNames[V any](n *node[name[V]], rest string, more bool, fn func(string, V) bool) bool {
	switch {
	case !more:
		return emitName(n, fn)
	case rest == "#": // a/# matches a (4.7.1.2)
		return allNames(n, fn)
	}
	return matchNames(n, rest, fn)
}

func allNames[V any](n *node[name[V]], fn func(string, V) bool) bool {
	if !emitName(n, fn) {
		return false
	}
	for _, c := range n.children {
		if !allNames(c, fn) {
			return false
		}
	}
	return true
}

func emitName[V any](n *node[name[V]], fn func(string, V) bool) bool {
	return n.payload == nil || fn(n.payload.topic, n.payload.value)
}

// Len is the number of topics.
func (s *Names[V]) Len() int { return s.n }
