package feed

import (
	"slices"
	"strings"
)

// maxCached bounds the memory of routes: a thousand feeds that want everything, times a million topics, would
// be a thousand million targets.
const maxCached = 1 << 20

// route says which feeds get the records of one topic. Routes and targets lie where they are looked for, since with very many topics every
// pointer on the way to them is a wait for memory.
type route struct { // half a line of the processor's cache
	targets []target
	gen     uint32
	key     uint32 // topic number + 1; 0: free
}

// routes are found by topic number. Numbers are given in turn, so those in use lie side by side mostly, and a table of a power of two that is indexed
// by their low bits has few that are in each other's way.
type routes struct {
	slots []route
	n     int
}

// find returns the route of a topic, or the free place where it would be.
func (rs *routes) find(id uint32) *route {
	mask := uint32(len(rs.slots) - 1)
	for at := id; ; at++ {
		if rt := &rs.slots[at&mask]; rt.key == id+1 || rt.key == 0 {
			return rt
		}
	}
}

// target is a feed's interest in one topic.
type target struct {
	feed    *Feed
	from    uint64 // all filters hold from here on
	all     *Match // under all filters
	noLocal bool   // some filter excludes the member's own messages
	filters []*Filter
	ghosts  []*ghost
}

// route returns who gets a topic's records, from the cache if nothing that matters has changed. It is valid until the next call.
func (h *Hub) route(id uint32) *route {
	if h.routes.slots == nil {
		h.grow()
	}
	rt := h.routes.find(id)
	if rt.key != 0 && rt.gen == h.gen {
		return rt
	}
	h.cached -= len(rt.targets)
	if rt.targets = nil; h.cached >= maxCached {
		h.routes, h.cached = routes{}, 0
	}
	if rt.key == 0 || h.routes.slots == nil {
		if 2*h.routes.n >= len(h.routes.slots) {
			h.grow()
		}
		rt = h.routes.find(id)
		rt.key = id + 1
		h.routes.n++
	}
	rt.gen = h.gen
	byFeed := map[*Feed]int{}
	h.index.Match(h.log.TopicName(id), func(f *Feed, flt *Filter) {
		i, ok := byFeed[f]
		if !ok {
			i = len(rt.targets)
			byFeed[f] = i
			rt.targets = append(rt.targets, target{feed: f})
		}
		rt.targets[i].filters = append(rt.targets[i].filters, flt)
	})
	for i := range rt.targets {
		rt.targets[i].finish()
	}
	h.cached += len(rt.targets)
	return rt
}

// grow makes room for more routes, or finds it: of topics whose number is given up there are none.
func (h *Hub) grow() {
	old, n := h.routes.slots, 0
	keep := func(rt *route) bool { return rt.gen == h.gen && h.log.TopicName(rt.key-1) != "" }
	for i := range old {
		if keep(&old[i]) {
			n++
		}
	}
	size := 256
	for size < 4*n {
		size *= 2
	}
	h.routes, h.cached = routes{slots: make([]route, size), n: n}, 0
	for i := range old {
		if keep(&old[i]) {
			*h.routes.find(old[i].key - 1) = old[i]
			h.cached += len(old[i].targets)
		}
	}
}

// invalidate forgets the routes that a change of filter touches; mu is held. A filter without wildcards touches one topic.
func (h *Hub) invalidate(filter string) {
	if strings.ContainsAny(filter, "+#") {
		h.reroute()
		return
	}
	if id, ok := h.log.LookupTopic([]byte(filter)); ok && h.routes.slots != nil {
		if rt := h.routes.find(id); rt.key != 0 {
			h.cached -= len(rt.targets)
			rt.gen, rt.targets = 0, nil
		}
	}
}

// reroute has all routes made anew; mu is held.
func (h *Hub) reroute() {
	if h.gen++; h.gen == 0 { // all the way round
		h.routes, h.cached, h.gen = routes{}, 0, 1
	}
}

// finish computes what a target's filters have in common.
func (t *target) finish() {
	for _, flt := range t.filters {
		t.from = max(t.from, flt.From)
		t.noLocal = t.noLocal || flt.NoLocal
	}
	t.all = t.merge(func(*Filter) bool { return true })
}

// at returns under which filters a record at off is delivered, nil for none. local: the feed's own member published it.
func (t *target) at(off uint64, local bool) *Match {
	if t == nil {
		return nil
	}
	if off >= t.from && !(local && t.noLocal) {
		return t.all
	}
	return t.merge(func(flt *Filter) bool {
		return flt.From <= off && !(local && flt.NoLocal) // [MQTT-3.8.3-3]
	})
}

// holds tells whether some filter holds at off.
func (t *target) holds(off uint64) bool {
	return t != nil && (off >= t.from || slices.ContainsFunc(t.filters, func(flt *Filter) bool { return flt.From <= off }))
}

// done tells whether a record is one that the feed has done with, under some filter that chose it.
func (t *target) done(ps []past, off uint64) bool {
	for _, p := range ps {
		if t == nil || !in(p.spans, off) {
			continue
		}
		if slices.ContainsFunc(t.filters, func(flt *Filter) bool { return flt.Era <= p.era && flt.From <= off }) ||
			slices.ContainsFunc(t.ghosts, func(g *ghost) bool { return g.chose(p.era, off) && !t.newer(g, off) }) {
			return true
		}
	}
	return false
}

// merge combines the filters that hold: one copy is sent, at the highest QoS granted, with every
// Subscription Identifier. [MQTT-3.3.4-2] [MQTT-3.3.4-3]
func (t *target) merge(holds func(*Filter) bool) *Match {
	var m *Match
	for _, flt := range t.filters {
		if !holds(flt) {
			continue
		}
		if m == nil {
			m = &Match{}
		}
		m.QoS = max(m.QoS, flt.QoS)
		m.RetainAsPublished = m.RetainAsPublished || flt.RetainAsPublished
		if flt.ID != 0 {
			m.IDs = append(m.IDs, flt.ID)
		}
	}
	return m
}
