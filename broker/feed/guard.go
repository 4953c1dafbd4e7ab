package feed

import (
	"sync"

	"github.com/edgemq/edgemq/broker/topic"
)

// guards knows the durable feeds by their filters, connected or not: of a topic that they want, the topic's limits drop nothing that
// one of them has yet to settle.
type guards struct {
	mu    sync.Mutex
	feeds topic.Index[*Feed, struct{}]
}

// on tells whether there are topics with limits at all.
func (g *guards) on(f *Feed) bool { return f.durable && f.hub.log.HasPolicies() }

// open adds a feed that is opened.
func (g *guards) open(f *Feed) {
	for flt := range f.filters.All() {
		g.add(f, flt.Filter)
	}
}

// add adds a filter, or notes that its feed has gone back to what it was done with.
func (g *guards) add(f *Feed, filter string) {
	if !g.on(f) {
		return
	}
	g.mu.Lock()
	g.feeds.Add(filter, f, struct{}{})
	g.mu.Unlock()
	f.hub.log.ProtectionChanged()
}

func (g *guards) remove(f *Feed, filter string) {
	if !g.on(f) {
		return
	}
	g.mu.Lock()
	g.feeds.Remove(filter, f)
	g.mu.Unlock()
}

// ProtectTopic returns the lowest offset that a durable feed still needs of a topic, Committed if none needs any.
func (h *Hub) ProtectTopic(name string) uint64 {
	low := h.log.Committed()
	var feeds []*Feed
	h.guards.mu.Lock()
	h.guards.feeds.Match(name, func(f *Feed, _ struct{}) { feeds = append(feeds, f) })
	h.guards.mu.Unlock()
	for _, f := range feeds {
		f.mu.Lock()
		if !f.closed {
			low = min(low, f.lowest())
		}
		f.mu.Unlock()
	}
	return low
}
