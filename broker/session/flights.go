package session

// stage is how far a delivery has come.
type stage byte

const (
	sentQoS1 stage = iota // PUBLISH sent, PUBACK awaited
	sentQoS2              // PUBLISH sent, PUBREC awaited
	released              // PUBREL sent, PUBCOMP awaited
	complete              // PUBCOMP came before the feed came by the record again, after a reconnect
)

// flight is a delivery that waits for its acknowledgement.
type flight struct {
	id     uint16 // packet id; 0 marks a free slot
	stage  stage
	m      *membership // nil: the feed has not come by the record since the reconnect
	seq    uint64      // names the item to its feed
	offset uint64
	size   int
}

// flightKey names a delivery across connections.
type flightKey struct {
	feed   string
	offset uint64
}

// resend is a delivery that an earlier connection left unfinished.
type resend struct {
	id    uint16
	stage stage
}

// resends remembers the packet ids of deliveries that an earlier connection left unfinished, until they are
// sent again under the same ids, or the feed has gone past them (they expired, or another consumer has them).
type resends struct {
	byKey map[flightKey]resend
	ids   map[uint16]flightKey
	last  map[string]uint64 // by feed: the highest offset in byKey
}

func (r *resends) add(k flightKey, to resend) {
	if r.byKey == nil {
		r.byKey, r.ids, r.last = map[flightKey]resend{}, map[uint16]flightKey{}, map[string]uint64{}
	}
	r.byKey[k] = to
	r.ids[to.id] = k
	r.last[k.feed] = max(r.last[k.feed], k.offset)
}

// take returns how a delivery was sent before, if it was. past are those that will not come any more, now that
// the feed has come to k.
func (r *resends) take(k flightKey) (to resend, ok bool, past []resend) {
	last, ok := r.last[k.feed]
	if !ok {
		return resend{}, false, nil
	}
	if k.offset > last {
		delete(r.last, k.feed)
		for o, to := range r.byKey {
			if o.feed == k.feed {
				delete(r.byKey, o)
				delete(r.ids, to.id)
				past = append(past, to)
			}
		}
		return resend{}, false, past
	}
	to, ok = r.byKey[k]
	if ok {
		delete(r.byKey, k)
		delete(r.ids, to.id)
	}
	return to, ok, nil
}

// reserved tells whether an id must not be given to another delivery.
func (r *resends) reserved(id uint16) bool {
	_, ok := r.ids[id]
	return ok
}

// complete notes that a released delivery was answered although the feed has not come by it.
func (r *resends) complete(id uint16) {
	if k, ok := r.ids[id]; ok {
		r.byKey[k] = resend{id, complete}
	}
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

// get returns the flight with the given id, nil if there is none.
func (t *flights) get(id uint16) *flight {
	if t.n == 0 || id == 0 {
		return nil
	}
	if s := &t.slots[int(id)&(len(t.slots)-1)]; s.id == id {
		return s
	}
	return nil
}

func (t *flights) clear() { *t = flights{} }
