package session

import (
	"iter"
	"maps"
	"slices"
)

// fewSubscriptions is how many a list is made for.
const fewSubscriptions = 8

// subscriptions are a session's, by filter as the client wrote it. Most sessions have one or a few, for which a list takes a fraction
// of the memory of a map: of a map of one, 700 bytes are empty slots.
type subscriptions struct {
	few  []subscription
	many map[string]subscription // once there are many
}

func (s *subscriptions) at(filter string) int {
	return slices.IndexFunc(s.few, func(sub subscription) bool { return sub.Filter == filter })
}

// get returns a subscription; false if there is none.
func (s *subscriptions) get(filter string) (subscription, bool) {
	if s.many != nil {
		sub, ok := s.many[filter]
		return sub, ok
	}
	if i := s.at(filter); i >= 0 {
		return s.few[i], true
	}
	return subscription{}, false
}

// set adds a subscription or replaces the one to the same filter.
func (s *subscriptions) set(sub subscription) {
	if s.many == nil {
		if i := s.at(sub.Filter); i >= 0 {
			s.few[i] = sub
			return
		}
		if len(s.few) < fewSubscriptions {
			s.few = append(s.few, sub)
			return
		}
		s.many = make(map[string]subscription, 2*fewSubscriptions)
		for _, x := range s.few {
			s.many[x.Filter] = x
		}
		s.few = nil
	}
	s.many[sub.Filter] = sub
}

func (s *subscriptions) remove(filter string) {
	if s.many != nil {
		delete(s.many, filter)
		return
	}
	s.few = slices.DeleteFunc(s.few, func(sub subscription) bool { return sub.Filter == filter })
}

func (s *subscriptions) len() int { return len(s.few) + len(s.many) }

// all goes through them in no particular order. What is changed meanwhile may or may not be seen.
func (s *subscriptions) all() iter.Seq[subscription] {
	if s.many != nil {
		return maps.Values(s.many)
	}
	return slices.Values(s.few)
}
