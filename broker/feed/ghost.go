package feed

import (
	"slices"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// ghost is a filter that was removed while the feed walks through what lies behind it: what the filter had chosen and the feed
// has done with must not come again, although another, newer filter wants it.
type ghost struct {
	Filter
	last uint32 // the era in which it was removed: later pasts do not concern it
}

// haunt leaves a ghost of a filter that is removed, if one is needed; f.mu is held.
func (f *Feed) haunt(old *Filter) {
	if len(f.past) == 0 || f.queues == nil {
		return
	}
	f.ghosts = append(slices.Clone(f.ghosts), &ghost{*old, f.era})
	f.era++ // what is done with from now on was not done with for this filter
}

// ghostOf returns the ghost of a filter, nil if it left none.
func (f *Feed) ghostOf(filter string) *ghost {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.ghosts {
		if g.Filter.Filter == filter {
			return g
		}
	}
	return nil
}

// mutations appends the changes of state that save the feed's cursor, and end what the walk that is over has left; f.mu is held.
func (f *Feed) mutations(muts []store.Mutation) []store.Mutation {
	muts = append(muts, f.mutation())
	if len(f.past) == 0 && len(f.ghosts) > 0 {
		for _, g := range f.ghosts {
			muts = append(muts, record.Delete(record.BucketBindings, bindingKey(f, g.Filter.Filter)))
		}
		f.ghosts = nil
	}
	return muts
}

// newer tells whether a filter that was bound after a ghost was removed wants off: to that one the ghost means nothing. What had been
// chosen and not sent was dropped when the ghost was removed, if no other filter wanted it by then.
func (t *target) newer(g *ghost, off uint64) bool {
	return slices.ContainsFunc(t.filters, func(flt *Filter) bool { return flt.Era > g.last && flt.From <= off })
}

// chose tells whether the filter had chosen off in an era.
func (g *ghost) chose(era uint32, off uint64) bool {
	return g.Era <= era && era <= g.last && g.From <= off
}
