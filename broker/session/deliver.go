package session

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// takeItems is how many items are taken from a feed at once.
const takeItems = 256

// outbox is a writer's scratch.
type outbox struct {
	items []feed.Item
	as    served // of the membership they come from
	ids   []uint16
	dups  []bool
	skip  []bool   // nothing is sent for the item
	void  []uint64 // items that go to nobody
	muts  []store.Mutation
	ended *feed.Feed // whose cursor must be saved with muts, as they end deliveries of it; nil for none
	props []byte
	now   int64
	holds uint64 // Link.holds when the round began
	origin

	sent      [3]int64 // by QoS, for the counters
	sentBytes int
}

// deliver appends what the session's feeds have for the client to buf, as far as its window is open. Only the
// link's writer calls it, so items leave in the order they were taken.
func (s *Session) deliver(l *Link, w *outbox, buf []byte) []byte {
	w.now = 0
	for start := 0; len(buf) < writeBytes; start++ {
		m, room, size := s.turn(l, w, start)
		if m == nil {
			break
		}
		w.items = m.Take(w.items[:0], min(takeItems, room), min(size, writeBytes))
		if m.queue {
			buf = appendGap(buf, l.Version, m)
		}
		if len(w.items) == 0 {
			if m.retained != nil && s.finishRetained(l) {
				start = -1 // a member is gone, so the count of those that were asked is off: ask all again
			}
			if mark := m.mark.Load(); mark > 0 && m.f.CaughtUp(mark, l) && m.mark.CompareAndSwap(mark, 0) {
				buf = appendMark(buf, l.Version, m.topic, mark)
			}
			continue
		}
		h, ok := s.register(l, m, w)
		if !ok {
			break // the session has moved on to another link, which will be sent these
		}
		at := len(buf)
		for i := range w.items {
			if !w.skip[i] {
				buf = s.encode(l, m, w, i, buf)
			}
		}
		if h != nil { // taken back: it is sent when the packet ids of its QoS 2 messages are on disk, and nothing overtakes it
			h.out = bytes.Clone(buf[at:])
			buf = buf[:at]
			h.half()
		}
		if len(w.muts) > 0 { // of those that are too large
			if err := s.m.hub.Save(w.muts, nil); err != nil {
				l.Kick(codeOf(err), err.Error())
			}
		}
		if len(w.void) > 0 {
			m.Settle(w.void...)
			w.void = w.void[:0]
		}
		clear(w.items)
		if m.retained != nil && m.retained.exhausted() {
			s.finishRetained(l)
		}
		start = -1 // there may be more where these came from
	}
	w.count(s.m)
	return buf
}

// count hands what was sent to the counters.
func (w *outbox) count(m *Manager) {
	for qos, n := range w.sent {
		if n > 0 {
			m.messagesOut[qos].Add(n)
		}
	}
	if w.sentBytes > 0 {
		m.payloadOut.Add(int64(w.sentBytes))
	}
	w.sent, w.sentBytes = [3]int64{}, 0
}

// turn returns the i-th member to be asked from the one whose turn it is, and the room in the client's window; nil if all
// were asked or there is no room.
func (s *Session) turn(l *Link, w *outbox, i int) (m *membership, room, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	room = s.window(l) - s.flights.n
	size = s.m.opt.WindowBytes - s.flights.bytes
	if s.link != l || i >= len(s.members) || room <= 0 || size <= 0 || l.holds.Load() != w.holds {
		return nil, 0, 0
	}
	for _, m := range s.members { // first, or an old value would follow a newer one
		if m.retained != nil && !m.retained.exhausted() {
			return m, room, size
		}
	}
	s.next++
	return s.members[s.next%len(s.members)], room, size
}

// window is how many deliveries may be unacknowledged. [MQTT-3.3.4-9]
func (s *Session) window(l *Link) int {
	if l.Version == packet.V5 {
		return min(int(l.Connect.ReceiveMaximum), s.m.opt.MaxWindow)
	}
	return s.m.opt.Window
}

// register gives the items packet ids and files them as in flight. If that changes the state, what is sent of them must be held until
// the change is on disk. It reports false if the session is not the link's any more.
func (s *Session) register(l *Link, m *membership, w *outbox) (h *held, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l {
		return nil, false
	}
	w.ids, w.dups, w.skip, w.muts, w.as, w.ended = w.ids[:0], w.dups[:0], w.skip[:0], w.muts[:0], m.served, nil
	for i := range w.items {
		it := &w.items[i]
		var id uint16
		var dup, skip bool
		if it.QoS > 0 {
			id, dup, skip = s.file(m, it, w)
		}
		w.ids, w.dups, w.skip = append(w.ids, id), append(w.dups, dup || it.Dup && it.QoS > 0), append(w.skip, skip)
	}
	if len(w.void) > 0 {
		// Settled while nobody else has the session, and saved with what ends the deliveries: a place in front of a
		// delivery that is over would have its message sent once more.
		m.Settle(w.void...)
		w.void = w.void[:0]
		w.ended, w.muts = m.f, s.retainedProgress(w.muts)
	}
	if len(w.muts) == 0 {
		return nil, true
	}
	// Here and not later: another link may have the session then, and have ended these deliveries. It may take a while, if the
	// store has no room, so from now on the link keeps nobody else's writer.
	l.slow.Store(true)
	h = &held{l: l, release: true}
	h.halves.Store(2)
	l.holds.Add(1)
	l.holding.Store(true)
	if err := s.m.hub.Save(w.muts, h, w.ended); err != nil {
		h.Committed(0, err)
	}
	w.muts = w.muts[:0]
	return h, true
}

// file enters an item into flights and returns its packet id, whether it was sent under that id before, and whether it must
// not be sent as the client has it already.
func (s *Session) file(m *membership, it *feed.Item, w *outbox) (id uint16, dup, skip bool) {
	fl := flight{m: m, seq: it.Seq, offset: it.Offset, size: len(it.Props) + len(it.Payload) + 64}
	if it.QoS == 2 {
		fl.stage = sentQoS2
	}
	to, ok, past := s.resend.take(flightKey{m.key, it.Offset})
	w.muts = s.forgetFlights(w.muts, past)
	switch {
	case ok && to.stage == complete:
		w.void = append(w.void, it.Seq)
		if s.durable {
			w.muts = append(w.muts, record.Delete(record.BucketInflight, sentKey(s.id, to.id)))
		}
		return 0, false, true
	case ok && to.stage == released: // its PUBREL was sent again when the session was resumed
		if old := s.flights.get(to.id); old != nil {
			old.m, old.seq = m, it.Seq
			return to.id, false, true
		}
	case ok:
		if fl.id, fl.stage = to.id, to.stage; s.flights.place(fl) {
			it.QoS = 1 // as it was sent, whatever the subscription says by now
			if fl.stage == sentQoS2 {
				it.QoS = 2
			}
			return to.id, true, false // [MQTT-4.4.0-1] [MQTT-3.3.1-1]
		}
	}
	if it.Expired {
		w.void = append(w.void, it.Seq)
		return 0, false, true
	}
	if s.flights.n+len(s.resend.ids) >= math.MaxUint16 { // ids kept for what never came again have used up all others
		for _, to := range s.resend.clear() {
			w.muts = s.forgetFlight(w.muts, to)
		}
	}
	for {
		if s.lastID++; s.lastID == 0 { // [MQTT-2.2.1-3]
			continue
		}
		if fl.id = s.lastID; !s.resend.reserved(fl.id) && s.flights.put(fl) {
			break
		}
	}
	if s.durable && fl.stage == sentQoS2 {
		w.muts = append(w.muts, s.saveFlight(m.key, &fl))
	}
	return fl.id, false, false
}

// forgetFlights gives up deliveries whose messages will not come again, and appends what that changes to muts; mu is held. The client may
// have been sent one at QoS 2 and wait for the PUBREL: a new message under its id would be taken for that one and dropped.
func (s *Session) forgetFlights(muts []store.Mutation, gone []resend) []store.Mutation {
	for _, to := range gone {
		if to.stage == sentQoS2 {
			muts = s.release2(muts, to.id)
		} else {
			muts = s.forgetFlight(muts, to)
		}
	}
	return muts
}

// forgetFlight appends to muts that a delivery is gone.
func (s *Session) forgetFlight(muts []store.Mutation, to resend) []store.Mutation {
	if s.durable && to.stage != sentQoS1 {
		muts = append(muts, record.Delete(record.BucketInflight, sentKey(s.id, to.id)))
	}
	return muts
}

// resumeReleased sends the PUBRELs again that earlier connections left without an answer; mu is held. [MQTT-4.4.0-1]
func (s *Session) resumeReleased(l *Link) {
	var ids []uint16
	for k, to := range s.resend.byKey {
		if to.stage == released && s.flights.place(flight{id: to.id, stage: released, offset: k.offset}) {
			ids = append(ids, to.id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		l.resumed = packet.AppendAck(l.resumed, l.Version, packet.TypePubrel, id, packet.CodeSuccess, "")
	}
}

// encode appends the PUBLISH for one item. One that is larger than the client accepts counts as sent. [MQTT-3.1.2-24] [MQTT-3.1.2-25]
func (s *Session) encode(l *Link, m *membership, w *outbox, i int, buf []byte) []byte {
	it := &w.items[i]
	o := packet.Outgoing{
		Dup:             w.dups[i],
		Retain:          it.Match.RetainAsPublished && it.Flags.Has(record.FlagRetain), // [MQTT-3.3.1-12] [MQTT-3.3.1-13]
		QoS:             it.QoS,
		PacketID:        w.ids[i],
		Topic:           s.m.log.TopicName(it.Topic),
		SubscriptionIDs: it.Match.IDs,
		Props:           it.Props,
		Payload:         it.Payload,
	}
	if w.as.alone {
		o.SubscriptionIDs, o.Retain = w.as.ids, w.as.rap && it.Flags.Has(record.FlagRetain)
	}
	if l.Version == packet.V5 || m.envelope {
		o.Envelope = m.envelope
		if it.Flags.Has(record.FlagExpiry) {
			if w.now == 0 {
				w.now = s.m.log.Now().UnixMicro()
			}
			o.HasExpiry, o.Expiry = true, remaining(it.Expiry, it.Time, w.now)
		}
		if m.stamps {
			w.props = appendStamps(append(w.props[:0], it.Props...), it, s.m.log.ClientName(it.Client), s.m.hosts.of(&it.Record, &w.origin))
			o.Props = w.props
		}
		if l.Version == packet.V5 && !l.fit(&o, it.Topic) {
			return s.discard(l, w, i, buf)
		}
	}
	w.sent[it.QoS]++
	w.sentBytes += len(it.Props) + len(it.Payload)
	return packet.AppendPublish(buf, l.Version, &o)
}

// maxAliases bounds what is remembered of a client's topics.
const maxAliases = 1024

// fit gives the PUBLISH its topic's alias, if the client takes any, and reports whether it is small enough for the client. The first
// topics that come get the aliases. Only the writer calls it, in the order in which it sends.
func (l *Link) fit(o *packet.Outgoing, topicID uint32) bool {
	limit := int(l.Connect.MaximumPacketSize)
	fits := func() bool { return limit == 0 || packet.PublishSize(l.Version, o) <= limit }
	most := min(int(l.Connect.TopicAliasMaximum), maxAliases) // [MQTT-3.1.2-26] [MQTT-3.1.2-27]
	if most == 0 || len(o.Topic) <= 3 {                       // an alias takes three bytes itself
		return fits()
	}
	if alias, ok := l.sentAliases[topicID]; ok {
		o.Topic, o.Alias = "", alias
		return fits()
	}
	if len(l.sentAliases) == most {
		return fits()
	}
	if o.Alias = uint16(len(l.sentAliases) + 1); !fits() {
		o.Alias = 0
		return fits()
	}
	if l.sentAliases == nil {
		l.sentAliases = map[uint32]uint16{}
	}
	l.sentAliases[topicID] = o.Alias
	return true
}

// discard settles an item that cannot be sent.
func (s *Session) discard(l *Link, w *outbox, i int, buf []byte) []byte {
	s.m.tooLarge.Add(1)
	if w.items[i].QoS == 0 {
		return buf
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l { // the id may be in use on the next link already
		return buf
	}
	if fl, ok := s.flights.take(w.ids[i]); ok && s.durable && fl.stage != sentQoS1 {
		w.muts = append(w.muts, record.Delete(record.BucketInflight, sentKey(s.id, fl.id)))
	}
	w.void = append(w.void, w.items[i].Seq)
	return buf
}

// remaining is what is left of an expiry interval, in whole seconds begun. [MQTT-3.3.2-6]
func remaining(expiry uint32, stored, now int64) uint32 {
	waited := max(0, (now-stored)/1e6)
	if waited >= int64(expiry) {
		return 0
	}
	return expiry - uint32(waited)
}

// appendStamps adds the user properties that deliveries of queues carry, unless the message has its own of the same name.
func appendStamps(props []byte, it *feed.Item, producer, host string) []byte {
	var num [20]byte
	props = appendUser(props, wire.Offset, strconv.AppendUint(num[:0], it.Offset, 10))
	props = appendUser(props, wire.StoreTimestamp, strconv.AppendInt(num[:0], it.Time/1000, 10))
	if _, own := packet.FindUser(it.Props, wire.Producer); !own {
		props = packet.AppendUser(props, wire.Producer, producer)
	}
	if it.Refused > 0 {
		props = appendUser(props, wire.Refused, strconv.AppendUint(num[:0], uint64(it.Refused), 10))
	}
	if host == "" {
		return props
	}
	if _, own := packet.FindUser(it.Props, wire.BornHost); !own {
		props = packet.AppendUser(props, wire.BornHost, host)
	}
	return props
}

func appendUser(dst []byte, name string, value []byte) []byte {
	dst = append(dst, byte(packet.PropUser), byte(len(name)>>8), byte(len(name)))
	dst = append(dst, name...)
	dst = append(dst, byte(len(value)>>8), byte(len(value)))
	return append(dst, value...)
}

// appendMark appends the message that tells a queue's consumer that it has been sent what was waiting when it attached.
func appendMark(buf []byte, v packet.Version, topic string, mark uint64) []byte {
	var num [20]byte
	o := packet.Outgoing{Topic: topic + wire.CaughtUp, Envelope: true}
	o.Props = appendUser(nil, wire.Offset, strconv.AppendUint(num[:0], mark, 10))
	return packet.AppendPublish(buf, v, &o)
}

// appendGap appends, at QoS 0, the message that tells a queue's consumer what was dropped, if anything was: to
// $queue/<name>/$gap, with the offsets and the number of messages as text.
func appendGap(buf []byte, v packet.Version, m *membership) []byte {
	member, ok := m.source.(*feed.Member)
	if !ok {
		return buf
	}
	g := member.Gap()
	if g.To == 0 {
		return buf
	}
	o := packet.Outgoing{Topic: m.topic + wire.Gap, Envelope: m.envelope, Payload: fmt.Appendf(nil, "%d %d %d", g.From, g.To, g.Records)}
	return packet.AppendPublish(buf, v, &o)
}
