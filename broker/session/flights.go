package session

import (
	"math"
	"strings"

	"github.com/edgemq/edgemq/broker/packet"
)

// stage is how far a delivery has come.
type stage byte

const (
	sentQoS1 stage = iota // PUBLISH sent, PUBACK awaited
	sentQoS2              // PUBLISH sent, PUBREC awaited
	released              // PUBREL sent, PUBCOMP awaited
	complete              // PUBCOMP came before the feed came by the record again, after a reconnect
)

// takes tells whether an acknowledgement of type t may answer a delivery at this stage. [MQTT-4.3.2-4] [MQTT-4.3.3-11]
func (s stage) takes(t packet.Type) bool {
	switch s {
	case sentQoS1:
		return t == packet.TypePuback
	case sentQoS2:
		return t == packet.TypePubrec
	case released: // a PUBREC is answered again
		return t == packet.TypePubcomp || t == packet.TypePubrec
	}
	return false
}

// flight is a delivery that waits for its acknowledgement.
type flight struct {
	id     uint16 // packet id; 0 marks a free slot
	stage  stage
	nacked bool        // refused by a publish to $nack: the answer that is yet to come only frees the packet id
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
	if old, ok := r.byKey[k]; ok {
		delete(r.ids, old.id)
	}
	// What the state has of QoS 1 is as of the end of a connection. After a crash an id may be in use for QoS 2 since, which
	// is added later and counts: under another id its message would be another message.
	if old, ok := r.ids[to.id]; ok {
		delete(r.byKey, old)
	}
	r.byKey[k] = to
	r.ids[to.id] = k
	if r.last[k.feed] = max(r.last[k.feed], k.offset); strings.HasPrefix(k.feed, retainedPrefix) {
		r.last[k.feed] = math.MaxUint64 // in the order of their topics, which says nothing about what has been passed
	}
}

// take returns how a delivery was sent before, if it was. past are those that will not come any more, now that
// the feed has come to k.
func (r *resends) take(k flightKey) (to resend, ok bool, past []resend) {
	last, ok := r.last[k.feed]
	if !ok {
		return resend{}, false, nil
	}
	if k.offset > last {
		return resend{}, false, r.drop(k.feed)
	}
	to, ok = r.byKey[k]
	if ok {
		delete(r.byKey, k)
		delete(r.ids, to.id)
	}
	return to, ok, nil
}

// drop forgets the deliveries of a feed and returns them.
func (r *resends) drop(feed string) (gone []resend) {
	if _, ok := r.last[feed]; !ok {
		return nil
	}
	delete(r.last, feed)
	for k, to := range r.byKey {
		if k.feed == feed {
			delete(r.byKey, k)
			delete(r.ids, to.id)
			gone = append(gone, to)
		}
	}
	return gone
}

// clear forgets all deliveries and returns them.
func (r *resends) clear() (gone []resend) {
	for _, to := range r.byKey {
		gone = append(gone, to)
	}
	*r = resends{}
	return gone
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
// the id's low bits, has few collisions: where there is one, another id is tried, or the table grows.
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

// place files a flight whose id is given: it was sent under it before. It reports false if the id is in use.
func (t *flights) place(fl flight) bool {
	for !t.put(fl) {
		if len(t.slots) >= 1<<16 || t.get(fl.id) != nil {
			return false
		}
		t.grow()
	}
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
