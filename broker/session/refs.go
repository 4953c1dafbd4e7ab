package session

import "sync"

// refs has what links know of plain topics, once for all links: it is the same for all, and never changes. A thousand links that
// publish to the same hundred topics would otherwise have a hundred thousand.
type refs struct {
	mu     sync.RWMutex
	byName map[string]*topicRef
}

// maxShared bounds their number. Beyond it they are found out again.
const maxShared = 1 << 17

// get returns what is known of a topic, nil if nothing is. It does not allocate.
func (r *refs) get(name []byte) *topicRef {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byName[string(name)]
}

// share returns the one for all links.
func (r *refs) share(ref *topicRef) *topicRef {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first := r.byName[ref.wire]; first != nil {
		return first
	}
	if r.byName == nil || len(r.byName) >= maxShared {
		r.byName = make(map[string]*topicRef)
	}
	r.byName[ref.wire] = ref
	return ref
}
