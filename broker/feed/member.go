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
	before uint64 // what lies above was never sent to anybody when it joined
	qos    byte
	sent   int  // items taken and not settled; guarded by Feed.mu
	gap    Gap  // guarded by Feed.mu
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
	m := &Member{feed: f, w: w, qos: qos, serial: f.joined, before: f.sent}
	if f.closed {
		m.gone = true
		return m
	}
	if len(f.members) == 0 {
		f.manned = h.log.Next()
	}
	f.members = append(f.members, m)
	m.gap = f.gap
	if !f.indexed {
		f.index()
	}
	if !f.live && f.abreast() {
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
	f.members = slices.DeleteFunc(f.members, func(x *Member) bool { return x == m })
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

// Reserve settles a record ahead of the feed, which has just been opened: a session has been sent it at QoS 2, and will finish that
// without the feed. [MQTT-4.8.2-4] [MQTT-4.8.2-5]
func (f *Feed) Reserve(off uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if off >= f.pos {
		f.past = addPast(f.past, f.era, span{off, off})
	}
}

// rest is what a feed does without members: it keeps its cursor and what is settled beyond it, and
// nothing else. Hub.mu and f.mu are held.
func (f *Feed) rest() {
	cursor, done := f.progress()
	f.unindex()
	f.live = false
	f.past = done
	f.restart(cursor)
	f.epoch++
	f.win.clear()
	f.waiting, f.held, f.bytes = 0, 0, 0
	clear(f.keys)
	f.graves = nil
	f.disarm()
	f.touch()
}

// Take moves up to maxItems items, of at most maxBytes together (but at least one), from the feed to the member, in order, and appends them to
// dst. Items at QoS 0 are settled by it; the others wait for Settle.
func (m *Member) Take(dst []Item, maxItems, maxBytes int) []Item {
	f := m.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.gone || f.chosen.paused {
		return dst
	}
	if limit := f.policy.MaxInFlight; limit > 0 {
		maxItems = min(maxItems, limit-m.sent)
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
		s.Time = f.hub.log.Arrived(s.Offset, s.Time) // the clock may have been set right since it was read
		if s.Flags&record.FlagExpiry != 0 {
			if now == 0 {
				now = f.hub.log.Now().UnixMicro()
			}
			s.Expired = now >= s.Time+int64(s.Expiry)*1e6 && !f.hub.log.Doubtful()
			if s.Expired && (s.Offset > m.before || min(s.Flags.QoS(), s.Match.QoS, m.qos) < 2) { // [MQTT-3.3.2-5]
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
		s.Dup, s.Refused = s.Offset <= f.resent, 0
		if len(f.tries) > 0 {
			s.Refused = uint32(f.tries[s.Offset].n)
		}
		dst = append(dst, s.Item)
		f.stats.Sent++
		f.sent = max(f.sent, s.Offset)
		if s.QoS == 0 {
			f.settle(s)
			changed = true
			continue
		}
		s.state = sent
		m.sent++
		f.waiting--
		if f.policy.AckTimeout > 0 {
			s.sentAt = time.Since(f.hub.began)
		}
		if !f.shared { // no other member will need it; if this one goes, it is read again
			f.bytes -= size
			s.Props, s.Payload = nil, nil
		}
		if s.key != nil {
			s.key.sent++
			s.key.waiting--
		}
	}
	if changed {
		f.win.trim()
		f.touch()
	}
	f.resume()
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
	f.left(len(s.Props) + len(s.Payload))
	f.drop(s)
	if len(f.tries) > 0 {
		delete(f.tries, s.Offset)
	}
	if len(f.extra) > 0 {
		if i, ok := slices.BinarySearch(f.extra, s.Offset); ok {
			f.extra = slices.Delete(f.extra, i, i+1)
		}
	}
}

// drop takes a slot out of all counts and frees its record, but for the offset that the cursor needs.
func (f *Feed) drop(s *slot) {
	was, k, m := s.state, s.key, s.m
	if was == waiting {
		f.waiting--
	}
	f.held--
	f.bytes -= len(s.Props) + len(s.Payload)
	blocks := s.blocks
	s.state, s.key, s.m, s.Match, s.blocks = settled, nil, nil, nil, nil
	s.Props, s.Payload = nil, nil
	if was == sent {
		m.sent--
	}
	if blocks != nil {
		blocks.blocked--
		f.release(blocks)
	}
	if k == nil {
		return
	}
	switch {
	case was == sent:
		k.sent--
	case m != nil: // else it was held back
		k.waiting--
	}
	f.release(k)
}

// full tells whether the window takes no more; f.mu is held.
func (f *Feed) full() bool {
	return f.room() <= 0 || f.roomBytes() <= 0 || f.win.len() >= f.hub.max.span*f.shares()
}

// shares is the number of members whose windows the feed's own window must fill: one that holds what it has for long must
// not keep the others waiting.
func (f *Feed) shares() int { return max(1, len(f.members)) }

// room is how many records, and roomBytes how many bytes, the window takes; f.mu is held.
func (f *Feed) room() int      { return f.hub.max.records*f.shares() - f.held }
func (f *Feed) roomBytes() int { return f.hub.max.bytes*f.shares() - f.bytes }

// wake tells the members for whom there is something; f.mu is held.
func (f *Feed) wake() {
	for _, m := range f.members {
		if m.todo.len() > 0 {
			m.w.Wake()
		}
	}
}

// add puts a record into the window for whichever member is to have it; f.mu is held.
func (f *Feed) add(r *store.Record, m *Match) {
	s := f.win.push()
	s.Record, s.Match = *r, m
	f.held++
	f.bytes += len(r.Props) + len(r.Payload)
	if t, ok := f.tries[r.Offset]; ok && t.waits(f.hub.log.Now()) { // refused, before the feed rested
		s.state = refused
		if f.policy.Ordered {
			f.block(s)
		}
		f.arm(t.due)
		return
	}
	f.waiting++
	f.assign(s)
}

// block has a refused slot hold back its key; f.mu is held.
func (f *Feed) block(s *slot) {
	h := keyOf(s)
	k := f.keys[h]
	if k == nil {
		k = &key{hash: h, m: f.pick(h)}
		f.keys[h] = k
	}
	k.blocked++
	s.blocks = k
}

// push takes what a group of that size has for this feed. When the window is full the feed stops being live:
// the rest stays in the log, and a catch-up goroutine reads it once there is room. Hub.mu is held.
func (f *Feed) push(g *store.Group, batch []ref, size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.copies(g, batch, size)
	for _, r := range batch {
		off := g.Base + uint64(r.i)
		if f.tooLate(g.Entries[r.i].Flags, off) {
			continue
		}
		if f.full() {
			f.live = false
			f.pos = off
			break
		}
		rec := g.Record(r.i)
		if own != nil {
			own, rec.Props = grab(own, rec.Props)
			own, rec.Payload = grab(own, rec.Payload)
		}
		f.add(&rec, r.m)
	}
	if f.live { // the Hub's pos moves when all feeds have theirs: until then these would seem to be in the window and ahead of it
		f.pos = g.Base + uint64(len(g.Entries))
	}
	f.resume() // an early exit above with a window that emptied since would otherwise never be noticed
	f.wake()
}

// tooLate tells whether a record is for live subscribers only, and was published when the feed had no member: that it is still in memory is
// chance. f.mu is held.
func (f *Feed) tooLate(flags record.Flags, off uint64) bool {
	return flags.Has(record.FlagTransient) && off < f.manned
}

// copies returns memory for the records of a batch that is to be copied, nil if it is not: a record keeps its whole
// group in memory, which must not happen to many groups for the sake of a few records that nobody takes.
func (f *Feed) copies(g *store.Group, batch []ref, size int) []byte {
	if !f.shared && f.waiting < keepsUp {
		return nil
	}
	share := 0
	for _, r := range batch {
		share += g.Entries[r.i].Size()
	}
	if share > size/8 {
		return nil
	}
	return make([]byte, 0, share)
}

// grab copies b to the end of arena, which has room for it.
func grab(arena, b []byte) (_, own []byte) {
	if len(b) == 0 {
		return arena, b
	}
	at := len(arena)
	arena = append(arena, b...)
	return arena, arena[at:len(arena):len(arena)]
}

// CaughtUp tells whether everything below off that the feed chose has been sent to some member. If it has not been looked
// at yet, w is woken when it has.
func (f *Feed) CaughtUp(off uint64, w Waker) bool {
	if !f.hub.Reached(off, w) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.examined() < off {
		return false // catching up; the members are woken when the feed is live
	}
	for seq := f.win.head; f.waiting > 0 && seq < f.win.tail; seq++ {
		if s := f.win.at(seq); s.state == waiting && s.Offset < off {
			return false
		}
	}
	return true
}
