package session

// flight is a delivery that waits for its acknowledgement.
type flight struct {
	id     uint16 // packet id; 0 marks a free slot
	m      *membership
	seq    uint64 // names the item to its feed
	offset uint64
	size   int
}

// flightKey names a delivery across connections.
type flightKey struct {
	feed   string
	offset uint64
}

// resends remembers the packet ids of deliveries that an earlier connection left unacknowledged, until they
// are sent again under the same ids, or the feed has gone past them (they expired, or another consumer has them).
type resends struct {
	byKey map[flightKey]uint16
	ids   map[uint16]struct{}
	last  map[string]uint64 // by feed: the highest offset in byKey
}

func (r *resends) add(k flightKey, id uint16) {
	if r.byKey == nil {
		r.byKey, r.ids, r.last = map[flightKey]uint16{}, map[uint16]struct{}{}, map[string]uint64{}
	}
	r.byKey[k] = id
	r.ids[id] = struct{}{}
	r.last[k.feed] = max(r.last[k.feed], k.offset)
}

// take returns the id under which a delivery was sent before, if it was.
func (r *resends) take(k flightKey) (uint16, bool) {
	last, ok := r.last[k.feed]
	if !ok {
		return 0, false
	}
	if k.offset > last { // the rest will not come any more
		delete(r.last, k.feed)
		for o, id := range r.byKey {
			if o.feed == k.feed {
				delete(r.byKey, o)
				delete(r.ids, id)
			}
		}
		return 0, false
	}
	id, ok := r.byKey[k]
	delete(r.byKey, k)
	delete(r.ids, id)
	return id, ok
}

// reserved tells whether an id must not be given to another delivery.
func (r *resends) reserved(id uint16) bool {
	_, ok := r.ids[id]
	return ok
}

// flights finds deliveries by packet id. Ids are given out in turn, so a table of a power of two, indexed by
// the id's low bits, has few collisions; it grows when it meets one.
type flights struct {
	slots []flight
	n     int
	bytes int
}

// put files a flight under its id, unless its place is taken: then another id is to be tried.
func (t *flights) put(fl flight) bool {
	if 2*t.n >= len(t.slots) {
		t.grow()
	}
	s := &t.slots[int(fl.id)&(len(t.slots)-1)]
	if s.id != 0 {
		return false
	}
	*s = fl
	t.n++
	t.bytes += fl.size
	return true
}

func (t *flights) grow() {
	old := t.slots
	if len(old) >= 1<<16 {
		return // a place for every id there is
	}
	t.slots = make([]flight, max(16, 2*len(old)))
	for _, fl := range old { // ids that differ in fewer low bits differ in more as well
		if fl.id != 0 {
			t.slots[int(fl.id)&(len(t.slots)-1)] = fl
		}
	}
}

// take removes and returns the flight with the given id.
func (t *flights) take(id uint16) (flight, bool) {
	if t.n == 0 || id == 0 {
		return flight{}, false
	}
	s := &t.slots[int(id)&(len(t.slots)-1)]
	if s.id != id {
		return flight{}, false
	}
	fl := *s
	*s = flight{}
	t.n--
	t.bytes -= fl.size
	return fl, true
}

func (t *flights) clear() { *t = flights{} }
