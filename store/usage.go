package store

// usage is what the flusher remembers of a client to choose between a shared segment and its own.
type usage struct {
	bytes int64 // written to shared segments
	own   bool
}

// usages is a bounded memory of clients: when young is full it becomes old, and who is not asked for until the next
// turn is forgotten. That costs a client that writes rarely a longer stay in shared segments, nothing else.
type usages struct {
	young, old map[uint32]*usage
}

func (us *usages) get(client uint32, s *Store) *usage {
	if u := us.young[client]; u != nil {
		return u
	}
	u := us.old[client]
	if u == nil {
		u = &usage{own: s.flusher.own[client] != nil || s.clients.persistent(s, client)}
	}
	if us.young == nil || len(us.young) >= usageBound {
		us.young, us.old = make(map[uint32]*usage), us.young
	}
	us.young[client] = u
	return u
}
