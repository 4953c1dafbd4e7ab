package session

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// What a member of a shared subscription was sent at QoS 2 is its own to the end, whether it leaves or loses its connection: the
// group has settled it, and the session finishes it without the group's feed. [MQTT-4.8.2-4] [MQTT-4.8.2-5] The same goes for
// what was on its way when the client unsubscribed. [MQTT-3.10.4-3]

// The feeds that deliveries belong to whose subscription is no more. One that had a feed to itself has apartKey or stampedKey and
// that feed's name.
const (
	apartKey   = "x/"
	stampedKey = "x/s" // with the properties of a replay
	keptKey    = "x/m" // their messages, which are in no log, are in the state
)

// isApart tells whether a feed is one of these.
func isApart(key string) bool { return strings.HasPrefix(key, apartKey) }

// apart is the source of such deliveries: nothing more comes from it.
type apart struct{}

func (apart) Take(dst []feed.Item, _, _ int) []feed.Item { return dst }
func (apart) Settle(...uint64)                           {}
func (apart) SetQoS(byte)                                {}
func (apart) Leave()                                     {}

// loose returns a membership for deliveries that are apart from their feed. It has the feed, if there still is one, so that
// the feed's cursor is saved, at the latest, with the end of each delivery.
func (m *Manager) loose(key string) *membership {
	return &membership{source: apart{}, key: key, f: m.shares.Find(key)}
}

// keepApart settles what the session is being sent at QoS 2 as a member of a group, before it leaves: nobody else is to have it. mu is held.
func (s *Session) keepApart(m *membership) {
	if m.f == nil || isApart(m.key) || !strings.HasPrefix(m.key, feed.SharePrefix) {
		return
	}
	var seqs []uint64
	var muts []store.Mutation
	for i := range s.flights.slots {
		if fl := &s.flights.slots[i]; fl.id != 0 && fl.m == m && fl.stage != sentQoS1 {
			seqs, muts = append(seqs, fl.seq), append(muts, s.saveFlight(m.key, fl))
		}
	}
	if len(seqs) == 0 {
		return
	}
	if s.durable { // first: the group's cursor must not be saved before that they are the session's
		if err := s.m.hub.Save(muts, nil); err != nil {
			s.m.logger.Warn("what a member of a group was sent goes to the others", "client", s.id, "err", err)
			return
		}
	}
	m.Settle(seqs...)
}

// goOn has a delivery that was sent go on though its subscription ends, and reports false if there would be no message to send again: mu
// is held.
func (s *Session) goOn(m *membership, fl *flight, c *change) bool {
	key := apartKey + m.key
	switch {
	case m.retained != nil:
		name, v, ok := m.retained.sent(fl.seq)
		if !ok {
			return false
		}
		if key, fl.offset = keptKey, 1<<63|uint64(fl.id); s.durable {
			c.muts = append(c.muts, record.Put(record.BucketInflight, keptID(s.id, fl.id), appendKept(nil, m.envelope, name, v)))
		}
	case !strings.HasPrefix(m.key, soloPrefix):
		return false
	case m.stamps:
		key = stampedKey + m.key
	}
	fl.m = &membership{source: apart{}, key: key}
	if s.durable && fl.stage == sentQoS2 {
		c.muts = append(c.muts, s.saveFlight(key, fl))
	}
	return true
}

// forgetKept appends that a kept message is not needed any more, if it is one.
func (s *Session) forgetKept(muts []store.Mutation, key string, id uint16) []store.Mutation {
	if key == keptKey && s.durable {
		muts = append(muts, record.Delete(record.BucketInflight, keptID(s.id, id)))
	}
	return muts
}

// setApart takes a delivery of QoS 2 from its source, which is no more; mu is held.
func (s *Session) setApart(muts []store.Mutation, fl *flight) []store.Mutation {
	fl.m, fl.offset = &membership{source: apart{}, key: apartKey}, ^uint64(fl.id) // there is no record to be found by it
	if s.durable {
		muts = append(muts, s.saveFlight(apartKey, fl))
	}
	return muts
}

// release2 sends the PUBREL of a delivery whose message is gone, without waiting for a PUBREC; mu is held. One that the client was not
// sent is nothing to it. Like any PUBREL it waits for the disk: should the message be there after a crash all the same, the client, to which
// the id is free again, would take it for a new one.
func (s *Session) release2(muts []store.Mutation, id uint16) []store.Mutation {
	l := s.link
	if l == nil || !s.flights.place(flight{id: id, stage: released}) {
		return s.forgetFlight(muts, resend{id, released})
	}
	rel := packet.AppendAck(nil, l.Version, packet.TypePubrel, id, packet.CodeSuccess, "")
	if !l.live.Load() {
		l.resumed = append(l.resumed, rel...) // Start has it wait
		return s.setApart(muts, s.flights.get(id))
	}
	if muts := s.setApart(nil, s.flights.get(id)); len(muts) == 0 {
		l.Send(rel)
	} else if err := s.m.hub.Save(muts, &held{l: l, out: rel}); err != nil {
		l.Kick(codeOf(err), err.Error())
	}
	return muts
}

// orphans takes what is on its way and no subscription wants any more from the session's feed; mu is held.
func (s *Session) orphans(c *change) {
	seqs := s.own.Orphans()
	if len(seqs) == 0 {
		return
	}
	m := &membership{source: apart{}, key: apartKey, f: s.own}
	for i := range s.flights.slots {
		fl := &s.flights.slots[i]
		if fl.id == 0 || fl.m == nil || fl.m.f != s.own || isApart(fl.m.key) || !slices.Contains(seqs, fl.seq) {
			continue
		}
		if fl.m = m; s.durable && fl.stage != sentQoS1 {
			c.muts = append(c.muts, s.saveFlight(m.key, fl))
		}
	}
	if s.durable {
		c.muts = append(c.muts, s.saveUnacked())
	}
}

// saveUnacked is resends.mutation for a session that is connected: with what is apart.
func (s *Session) saveUnacked() store.Mutation {
	var all resends
	for k, to := range s.resend.byKey {
		all.add(k, to)
	}
	for _, fl := range s.flights.slots {
		if fl.id != 0 && fl.m != nil && isApart(fl.m.key) {
			all.add(flightKey{fl.m.key, fl.offset}, resend{fl.id, fl.stage})
		}
	}
	return all.mutation(s.id)
}

// resumeLoose goes on with the deliveries apart that earlier connections left unfinished; mu is held. [MQTT-4.4.0-1]
func (s *Session) resumeLoose(l *Link) {
	var keys []flightKey
	for k, to := range s.resend.byKey {
		if isApart(k.feed) || to.stage != sentQoS1 && strings.HasPrefix(k.feed, feed.SharePrefix) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b flightKey) int { return cmp.Compare(a.offset, b.offset) }) // [MQTT-4.6.0-1]
	members := map[string]*membership{}
	var muts []store.Mutation
	for _, k := range keys {
		to := s.resend.byKey[k]
		r, envelope, err := store.Record{}, false, error(nil)
		if to.stage != released {
			if r, envelope, err = s.again(k, to); err != nil && !errors.Is(err, errGone) {
				// It may be there, only not to be read now. To give it up would free its packet id at the client.
				l.Kick(codeOf(err), err.Error())
				break
			}
		}
		s.resend.take(k)
		m := members[k.feed]
		if m == nil {
			switch m = s.m.loose(k.feed); {
			case k.feed == apartKey:
				m.f = s.own
			case isApart(k.feed):
				m.f = nil
			}
			members[k.feed] = m
		}
		fl := flight{id: to.id, stage: to.stage, m: m, offset: k.offset}
		sent := to.stage == released
		if !sent {
			if err != nil {
				s.m.logger.Warn("a message that was being sent is gone", "client", s.id, "offset", k.offset)
			} else {
				fl.size, sent = s.sendAgain(l, k, to, r, envelope)
			}
		}
		switch {
		case !sent:
			muts = s.forgetKept(s.forgetFlights(muts, []resend{to}), k.feed, to.id)
		case !s.flights.place(fl):
			muts = s.forgetFlight(muts, to)
		case to.stage == released:
			l.resumed = packet.AppendAck(l.resumed, l.Version, packet.TypePubrel, to.id, packet.CodeSuccess, "")
		}
	}
	if len(muts) > 0 {
		if err := s.m.hub.Save(muts, nil); err != nil {
			s.m.logger.Error("forgetting deliveries failed", "client", s.id, "err", err)
		}
	}
}

// sendAgain appends the PUBLISH of a message, r, to what is sent first, and reports false if there is nothing to send: the client takes
// no packet as large, or it may not have it any more.
func (s *Session) sendAgain(l *Link, k flightKey, to resend, r store.Record, envelope bool) (size int, ok bool) {
	o := packet.Outgoing{
		Dup: true, QoS: 1, PacketID: to.id, Topic: s.m.log.TopicName(r.Topic), Props: r.Props, Payload: r.Payload, Envelope: envelope,
		Retain: k.feed == keptKey,
	}
	if !l.access.Subscribe(o.Topic) {
		s.m.logger.Warn("a message that was being sent is not allowed any more", "client", s.id, "topic", o.Topic)
		return 0, false
	}
	if to.stage == sentQoS2 {
		o.QoS = 2
	}
	for filter, f := range s.shares {
		if sub, _ := s.subs.Get(filter); f.ID() == k.feed {
			if o.Retain = sub.RetainAsPublished && r.Flags.Has(record.FlagRetain); sub.ID != 0 {
				o.SubscriptionIDs = []uint32{sub.ID}
			}
		}
	}
	if l.Version == packet.V5 || envelope {
		if r.Flags.Has(record.FlagExpiry) {
			o.HasExpiry, o.Expiry = true, remaining(r.Expiry, r.Time, s.m.log.Now().UnixMicro())
		}
		if strings.HasPrefix(k.feed, stampedKey) {
			var last origin
			o.Props = appendStamps(slices.Clone(o.Props), &feed.Item{Record: r}, s.m.log.ClientName(r.Client), s.m.hosts.of(&r, &last))
		}
		if l.Version == packet.V5 && !l.fit(&o, r.Topic) {
			return 0, false
		}
	}
	l.resumed = packet.AppendPublish(l.resumed, l.Version, &o)
	return len(r.Props) + len(r.Payload) + 64, true
}

var errGone = errors.New("it is kept no longer")

// again finds the message of a delivery, and tells whether its properties go into the payload. The error is errGone if there is none: retention
// has deleted it, or it is damaged.
func (s *Session) again(k flightKey, to resend) (r store.Record, envelope bool, err error) {
	if k.feed == keptKey {
		v, ok, err := s.m.log.Get(record.BucketInflight, keptID(s.id, to.id))
		if err != nil || !ok {
			return r, false, cmp.Or(err, errGone)
		}
		name, r, envelope, err := parseKept(v)
		if err != nil {
			return r, false, fmt.Errorf("%w: %w", errGone, err)
		}
		r.Topic, err = s.m.log.TopicID(name)
		return r, envelope, err
	}
	recs, _, err := s.m.log.NewReader().Read(nil, k.offset, store.Limits{MaxRecords: 1, MaxScan: 1}, func(uint64, uint32) bool { return true })
	if err != nil || len(recs) == 0 || recs[0].Offset != k.offset {
		return r, false, cmp.Or(err, errGone)
	}
	_, filter, _ := strings.Cut(k.feed, "\x00")
	return recs[0], strings.HasPrefix(filter, "$v5/"), nil
}

const keptVersion = 1

// keptID is the key of a kept message.
func keptID(client string, id uint16) []byte {
	return append([]byte(client+"\x00m"), byte(id>>8), byte(id))
}

// appendKept encodes: version u8, flags u8 (1: properties go into the payload), length of topic uvarint, topic, then as in the retained messages.
func appendKept(dst []byte, envelope bool, name string, v []byte) []byte {
	flags := byte(0)
	if envelope {
		flags = 1
	}
	dst = append(dst, keptVersion, flags)
	dst = binary.AppendUvarint(dst, uint64(len(name)))
	dst = append(dst, name...)
	return append(dst, v...)
}

func parseKept(b []byte) (name string, r store.Record, envelope bool, err error) {
	if b, err = checkVersion(b, keptVersion); err != nil {
		return "", r, false, err
	}
	if len(b) == 0 {
		return "", r, false, errDamaged
	}
	envelope = b[0]&1 != 0
	n, k := binary.Uvarint(b[1:])
	if k <= 0 || n > uint64(len(b)-1-k) {
		return "", r, false, errDamaged
	}
	b = b[1+k:]
	name = string(b[:n])
	r, err = parseRetained(b[n:])
	return name, r, envelope, err
}
