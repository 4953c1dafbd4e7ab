package topic

import "strings"

// Index finds the subscriptions whose filter matches a topic, in time linear in the topic's levels and the
// matches. K tells the subscribers of one filter apart. Filters must be valid, a key may hold any number of
// them, and a filter any number of keys. The zero value is ready to use.
//
// An Index is not locked: the owner locks. Match and Get may run beside each other but not beside Add or Remove.
type Index[K comparable, V any] struct {
	tree tree[set[K, V]]
	n    int
}

// Add subscribes key to filter, replacing what key had there; it reports whether the pair is new.
func (x *Index[K, V]) Add(filter string, key K, v V) (added bool) {
	n := x.tree.insert(filter)
	if n.payload == nil {
		n.payload = &set[K, V]{}
	}
	if added = n.payload.put(key, v); added {
		x.n++
	}
	return added
}

// Remove ends key's subscription to filter; it reports whether there was one.
func (x *Index[K, V]) Remove(filter string, key K) (removed bool) {
	n := x.tree.find(filter)
	if n == nil || n.payload == nil || !n.payload.remove(key) {
		return false
	}
	x.n--
	if len(n.payload.list) == 0 {
		n.payload = nil
		n.prune()
	}
	return true
}

// Get returns the value of key at filter.
func (x *Index[K, V]) Get(filter string, key K) (v V, ok bool) {
	n := x.tree.find(filter)
	if n == nil || n.payload == nil {
		return v, false
	}
	if i := n.payload.find(key); i >= 0 {
		return n.payload.list[i].value, true
	}
	return v, false
}

// Match calls fn for every subscription whose filter matches topic, once per filter and key (a key with
// several matching filters is seen several times), in no particular order. fn must not change the index.
func (x *Index[K, V]) Match(topic string, fn func(key K, v V)) {
	if topic == "" {
		return
	}
	root := &x.tree.root
	if topic[0] != '$' {
		match(root, topic, fn)
		return
	}
	level, rest, more := strings.Cut(topic, "/") // no leading wildcard here [MQTT-4.7.2-1]
	if c := root.child(level); c != nil {
		descend(c, rest, more, fn)
	}
}

func match[K comparable, V any](n *node[set[K, V]], topic string, fn func(K, V)) {
	emit(n.hash, fn)
	if n.plus == nil && n.children == nil {
		return
	}
	level, rest, more := strings.Cut(topic, "/")
	if c := n.child(level); c != nil {
		descend(c, rest, more, fn)
	}
	if n.plus != nil {
		descend(n.plus, rest, more, fn)
	}
}

func descend[K comparable, V any](n *node[set[K, V]], rest string, more bool, fn func(K, V)) {
	if more {
		match(n, rest, fn)
		return
	}
	emit(n, fn)
	emit(n.hash, fn) // a/# matches a (4.7.1.2)
}

func emit[K comparable, V any](n *node[set[K, V]], fn func(K, V)) {
	if n == nil || n.payload == nil {
		return
	}
	for i := range n.payload.list {
		fn(n.payload.list[i].key, n.payload.list[i].value)
	}
}

// Len is the number of subscriptions.
func (x *Index[K, V]) Len() int { return x.n }

// set is the subscribers of one filter: a slice to walk and, once it is long, a map to find a key in it. Most
// filters have one subscriber.
type set[K comparable, V any] struct {
	list  []member[K, V]
	place map[K]int
}

type member[K comparable, V any] struct {
	key   K
	value V
}

const manyMembers = 16

func (s *set[K, V]) find(key K) int {
	if s.place != nil {
		if i, ok := s.place[key]; ok {
			return i
		}
		return -1
	}
	for i := range s.list {
		if s.list[i].key == key {
			return i
		}
	}
	return -1
}

func (s *set[K, V]) put(key K, v V) (added bool) {
	if i := s.find(key); i >= 0 {
		s.list[i].value = v
		return false
	}
	s.list = append(s.list, member[K, V]{key, v})
	if s.place != nil {
		s.place[key] = len(s.list) - 1
	} else if len(s.list) > manyMembers {
		s.place = make(map[K]int, 2*manyMembers)
		for i := range s.list {
			s.place[s.list[i].key] = i
		}
	}
	return true
}

func (s *set[K, V]) remove(key K) bool {
	i := s.find(key)
	if i < 0 {
		return false
	}
	last := len(s.list) - 1
	s.list[i] = s.list[last]
	s.list[last] = member[K, V]{}
	s.list = s.list[:last]
	if s.place != nil {
		if i < last {
			s.place[s.list[i].key] = i
		}
		delete(s.place, key)
		if last <= manyMembers/2 {
			s.place = nil
		}
	}
	if cap(s.list) > 4*manyMembers && last < cap(s.list)/4 {
		s.list = append(make([]member[K, V], 0, 2*last), s.list...)
	}
	return true
}
