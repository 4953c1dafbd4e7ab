package feed

import "time"

// protectTime bounds how long Protect looks for feeds that need less than they seem to.
const protectTime = 200 * time.Millisecond

// Protect returns the lowest offset that a durable feed still needs, Committed if none needs any: retention keeps what lies above. A feed
// that rests does not walk, so it may be far behind although there is nothing for it: of those that hold
// up the others it is found out, and they are moved on.
func (h *Hub) Protect() uint64 {
	h.feedsMu.Lock()
	feeds := make([]*Feed, 0, len(h.feeds))
	for _, f := range h.feeds {
		feeds = append(feeds, f)
	}
	h.feedsMu.Unlock()
	for began := time.Now(); ; {
		low := h.log.Committed()
		var last *Feed
		for _, f := range feeds {
			f.mu.Lock()
			if f.durable {
				if at := f.lowest(); at < low {
					low, last = at, f
				}
			}
			f.mu.Unlock()
		}
		if last == nil || time.Since(began) > protectTime || !last.moveOn() {
			return low
		}
	}
}

// moveOn moves a feed without members up to the first record that there is for it, and reports whether it has moved.
func (f *Feed) moveOn() bool {
	h := f.hub
	f.mu.Lock()
	gen, epoch, pos := f.gen, f.epoch, f.pos
	rests := f.rests()
	f.mu.Unlock()
	if !rests {
		return false
	}
	to := h.log.Committed()
	b, err := f.Backlog()
	if err != nil {
		return false
	}
	if b.Messages > 0 {
		c := f.lastCount()
		c.mu.Lock()
		to = c.oldest
		c.mu.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if to <= pos || f.gen != gen || f.epoch != epoch || f.pos != pos || !f.rests() {
		return false
	}
	f.pos = to
	f.touch()
	return true
}

// rests tells whether the feed has no members and nothing in hand; f.mu is held.
func (f *Feed) rests() bool {
	return len(f.members) == 0 && !f.live && !f.closed && !f.reading && len(f.extra) == 0 && f.win.len() == 0
}
