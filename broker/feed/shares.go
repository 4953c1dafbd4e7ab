package feed

import (
	"sync"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// Shares are the feeds of shared subscriptions. One lives while some session holds it: a session that subscribed, whether it is connected or not.
type Shares struct {
	hub *Hub

	mu    sync.Mutex
	holds map[*Feed]int
	byID  map[string]*Feed
}

// NewShares returns the empty set; the sessions that are loaded bring back what they hold.
func NewShares(h *Hub) *Shares {
	return &Shares{hub: h, holds: map[*Feed]int{}, byID: map[string]*Feed{}}
}

// SharePrefix begins the ids of these feeds.
const SharePrefix = "g/"

// Hold returns the feed of a group's filter, for one session more. The first opens it: from now on, or where it was if the
// session is loaded from the state. durable: the session outlives its connection, so the feed's cursor is saved.
func (s *Shares) Hold(group, filter string, durable, loaded bool) (*Feed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := SharePrefix + group + "/" + filter // a group has no slash [MQTT-4.8.2-1]
	f := s.byID[id]
	if f == nil {
		flt := Filter{Filter: filter, QoS: 2}
		var err error
		if f, err = s.hub.Open(id, Options{Durable: durable, Shared: true, Start: Now, Fresh: !loaded}, flt); err != nil {
			return nil, err
		}
		s.byID[id] = f
	}
	if durable {
		f.setDurable()
	}
	s.holds[f]++
	return f, nil
}

// Find returns the feed with the given id, nil if nobody holds it.
func (s *Shares) Find(id string) *Feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

// Drop takes one hold away. With the last one the feed ends, and its cursor is deleted.
func (s *Shares) Drop(f *Feed) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds[f]--; s.holds[f] > 0 {
		return nil
	}
	delete(s.holds, f)
	delete(s.byID, f.id)
	f.Close()
	f.mu.Lock()
	durable := f.durable
	f.mu.Unlock()
	if !durable {
		return nil
	}
	// Before anybody can hold it again: what that one saves must come after.
	return s.hub.Save([]store.Mutation{record.Delete(record.BucketCursors, CursorKey(f.id))}, nil)
}

// setDurable has the cursor saved from now on.
func (f *Feed) setDurable() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.durable = true
}
