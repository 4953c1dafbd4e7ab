package feed

import (
	"slices"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// Member takes a feed's items for one session. A Member is used once: a session that comes back joins anew.
type Member struct {
	feed   *Feed
	w      Waker
	serial uint64 // its number among all that ever joined
	qos    byte
	todo   seqs // waiting items that are this member's, in order; guarded by Feed.mu
	gone   bool // guarded by Feed.mu
}

// Join adds a member whose items are sent at qos at most. A feed that is not Shared has one member at a time: the
// caller sees to it that the last one has left. The feed starts, or goes on, from its cursor.
func (f *Feed) Join(w Waker, qos byte) *Member {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.joined++
	m := &Member{feed: f, w: w, qos: qos, serial: f.joined}
	if f.closed {
		m.gone = true
		return m
	}
	f.members = append(f.members, m)
	if !f.indexed {
		f.index()
	}
	if !f.live && f.pos >= h.pos.Load() {
		f.live = true
	}
	f.rebalance()
	f.resume()
	return m
}

// Feed returns the feed the member belongs to.
func (m *Member) Feed() *Feed { return m.feed }

// SetQoS changes the QoS at which the member's items are sent, from the next one on.
func (m *Member) SetQoS(qos byte) {
	m.feed.mu.Lock()
	defer m.feed.mu.Unlock()
	m.qos = qos
}

// Leave ends the membership. Items taken and not settled go to the other members, in order; the last member's wait
// for whoever joins next, and the feed rests.
func (m *Member) Leave() {
	f, h := m.feed, m.feed.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.gone {
		return
	}
	m.gone = true
	// A new slice: catchUp wakes the members of an old one without a lock.
	f.members = slices.DeleteFunc(slices.Clone(f.members), func(x *Member) bool { return x == m })
	if len(f.members) == 0 {
		f.rest()
		return
	}
	for seq := f.win.head; seq < f.win.tail; seq++ {
		if s := f.win.at(seq); s.state == sent && s.m == m {
			s.state, s.m = waiting, nil
			f.waiting++
			s.key.sent--
		}
	}
	f.rebalance()
}

// rest is what a feed does without members: it keeps its cursor and what is settled beyond it, and
// nothing else. Hub.mu and f.mu are held.
func (f *Feed) rest() {
	cursor, spans := f.progress()
	f.unindex()
	f.live = false
	f.pos, f.skip = cursor, spans
	f.epoch++
	f.win.clear()
	f.waiting, f.held, f.bytes = 0, 0, 0
	clear(f.keys)
	f.touch()
}

// Take moves up to maxItems items, of at most maxBytes together (but at least one), from the feed to the member, in order, and appends them to
// dst. Items at QoS 0 are settled by it; the others wait for Settle.
func (m *Member) Take(dst []Item, maxItems, maxBytes int) []Item {
	f := m.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.gone {
		return dst
	}
	var now int64
	n, changed := len(dst), false
	for len(dst)-n < maxItems && m.todo.len() > 0 {
		seq := m.todo.peek()
		if !f.win.has(seq) {
			m.todo.pop()
			continue
		}
		s := f.win.at(seq)
		if s.state != waiting || s.m != m { // settled meanwhile
			m.todo.pop()
			continue
		}
		if s.Flags&record.FlagExpiry != 0 {
			if now == 0 {
				now = time.Now().UnixMicro()
			}
			if now >= s.Time+int64(s.Expiry)*1e6 { // [MQTT-3.3.2-5]
				m.todo.pop()
				f.stats.Expired++
				f.settle(s)
				changed = true
				continue
			}
		}
		size := len(s.Props) + len(s.Payload)
		if len(dst) > n && size > maxBytes {
			break
		}
		m.todo.pop()
		maxBytes -= size
		s.QoS = min(s.Flags.QoS(), s.Match.QoS, m.qos)
		s.Dup = s.Offset <= f.resent
		dst = append(dst, s.Item)
		f.stats.Sent++
		f.sent = max(f.sent, s.Offset)
		if s.QoS == 0 {
			f.settle(s)
			changed = true
			continue
		}
		s.state = sent
		f.waiting--
		if s.key != nil {
			s.key.sent++
			s.key.waiting--
		}
	}
	if changed {
		f.win.trim()
		f.touch()
	}
	if f.waiting <= lowWater {
		f.resume()
	}
	return dst
}

// Settle says that the items are done with: acknowledged, or given up. Sequence numbers that are not
// with the member are ignored: the item may have gone to another.
func (m *Member) Settle(seqs ...uint64) {
	f := m.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.gone {
		return
	}
	for _, seq := range seqs {
		if !f.win.has(seq) {
			continue
		}
		if s := f.win.at(seq); s.state == sent && s.m == m {
			f.settle(s)
		}
	}
	f.win.trim()
	f.touch()
	f.resume()
}

// settle marks a slot done and frees what it holds; f.mu is held. The caller trims the window.
func (f *Feed) settle(s *slot) {
	f.stats.Settled++
	f.drop(s)
	if len(f.extra) > 0 {
		if i, ok := slices.BinarySearch(f.extra, s.Offset); ok {
			f.extra = slices.Delete(f.extra, i, i+1)
		}
	}
}

// drop takes a slot out of all counts and frees its record, but for the offset that the cursor needs.
func (f *Feed) drop(s *slot) {
	was, k := s.state, s.key
	if was == waiting {
		f.waiting--
	}
	f.held--
	f.bytes -= len(s.Props) + len(s.Payload)
	s.state, s.key, s.m, s.Match = settled, nil, nil, nil
	s.Props, s.Payload = nil, nil
	if k == nil {
		return
	}
	switch {
	case was == sent:
		k.sent--
	case k.moving:
		k.held--
	default:
		k.waiting--
	}
	f.release(k)
}

// full tells whether the window takes no more; f.mu is held.
func (f *Feed) full() bool {
	return f.held >= maxUnsettled || f.bytes >= maxBytes || f.win.len() >= maxSpan
}

// add puts a record into the window for whichever member is to have it; f.mu is held.
func (f *Feed) add(r store.Record, m *Match) {
	if len(f.skip) > 0 && in(f.skip, r.Offset) && !f.onlyFresh(r.Topic) {
		return // settled before the last rest
	}
	s := f.win.push()
	s.Record, s.Match = r, m
	f.waiting++
	f.held++
	f.bytes += len(r.Props) + len(r.Payload)
	f.assign(s)
}

// onlyFresh tells whether none of the filters that the settled spans speak for matches a topic.
func (f *Feed) onlyFresh(topicID uint32) bool {
	t := f.target(topicID)
	return t != nil && !slices.ContainsFunc(t.filters, func(flt *Filter) bool { return !flt.Fresh })
}

// push takes what a group has for this feed. When the window is full the feed stops being live:
// the rest stays in the log, and a catch-up goroutine reads it once there is room. Hub.mu is held.
func (f *Feed) push(g *store.Group, batch []ref) {
	f.mu.Lock()
	for _, r := range batch {
		if f.full() {
			f.live = false
			f.pos = g.Base + uint64(r.i)
			break
		}
		f.add(g.Record(r.i), r.m)
	}
	members := f.members
	f.resume() // an early exit above with a window that emptied since would otherwise never be noticed
	f.mu.Unlock()
	for _, m := range members {
		m.w.Wake()
	}
}
