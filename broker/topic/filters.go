package topic

import (
	"iter"
	"maps"
	"slices"
)

// FewFilters is how many Filters keeps in a list.
const FewFilters = 8

// Filters is a set of what there is for filters, one for each. The zero value is empty. Most sessions and feeds have one or a few, for which a
// list takes a fraction of the memory of a map: of a map of one, several hundred bytes are empty slots.
type Filters[T Filtered] struct {
	few  []T
	many map[string]T // once there are more than a few
}

// Filtered is what is kept in Filters: Key is its filter, as text.
type Filtered interface{ Key() string }

func (s *Filters[T]) at(filter string) int {
	return slices.IndexFunc(s.few, func(x T) bool { return x.Key() == filter })
}

// Get returns what there is for a filter; false if there is nothing.
func (s *Filters[T]) Get(filter string) (x T, ok bool) {
	if s.many != nil {
		x, ok = s.many[filter]
		return x, ok
	}
	if i := s.at(filter); i >= 0 {
		return s.few[i], true
	}
	return x, false
}

// Set adds x, in place of what there was for its filter.
func (s *Filters[T]) Set(x T) {
	if s.many == nil {
		if i := s.at(x.Key()); i >= 0 {
			s.few[i] = x
			return
		}
		if len(s.few) < FewFilters {
			s.few = append(s.few, x)
			return
		}
		s.many = make(map[string]T, 2*FewFilters)
		for _, old := range s.few {
			s.many[old.Key()] = old
		}
		s.few = nil
	}
	s.many[x.Key()] = x
}

// Remove takes away what there is for a filter, if there is something.
func (s *Filters[T]) Remove(filter string) {
	if s.many != nil {
		delete(s.many, filter)
		return
	}
	s.few = slices.DeleteFunc(s.few, func(x T) bool { return x.Key() == filter })
}

// Len is for how many filters there is something.
func (s *Filters[T]) Len() int { return len(s.few) + len(s.many) }

// All goes through the set in no particular order. What is changed meanwhile may or may not be seen.
func (s *Filters[T]) All() iter.Seq[T] {
	if s.many != nil {
		return maps.Values(s.many)
	}
	return slices.Values(s.few)
}
