package feed

import (
	"iter"
	"maps"
	"slices"
)

// fewFilters is how many a list is made for.
const fewFilters = 8

// filterSet is a feed's filters, by name. Nearly every feed has one or a few: of a map of one, most is empty slots.
type filterSet struct {
	few  []*Filter
	many map[string]*Filter // once there are many
}

func (s *filterSet) at(name string) int {
	return slices.IndexFunc(s.few, func(f *Filter) bool { return f.Filter == name })
}

// get returns a filter, nil if there is none of that name.
func (s *filterSet) get(name string) *Filter {
	if s.many != nil {
		return s.many[name]
	}
	if i := s.at(name); i >= 0 {
		return s.few[i]
	}
	return nil
}

// set adds a filter or takes it for the one of the same name.
func (s *filterSet) set(flt *Filter) {
	if s.many == nil {
		if i := s.at(flt.Filter); i >= 0 {
			s.few[i] = flt
			return
		}
		if len(s.few) < fewFilters {
			s.few = append(s.few, flt)
			return
		}
		s.many = make(map[string]*Filter, 2*fewFilters)
		for _, f := range s.few {
			s.many[f.Filter] = f
		}
		s.few = nil
	}
	s.many[flt.Filter] = flt
}

func (s *filterSet) remove(name string) {
	if s.many != nil {
		delete(s.many, name)
		return
	}
	s.few = slices.DeleteFunc(s.few, func(f *Filter) bool { return f.Filter == name })
}

func (s *filterSet) len() int { return len(s.few) + len(s.many) }

// all goes through them in no particular order. What is replaced meanwhile may or may not be seen.
func (s *filterSet) all() iter.Seq[*Filter] {
	if s.many != nil {
		return maps.Values(s.many)
	}
	return slices.Values(s.few)
}
