package session

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// What a member of a shared subscription was sent at QoS 2 is its own to the end, whether it leaves or loses its connection: the
// group has settled it, and the session finishes it without the group's feed. [MQTT-4.8.2-4] [MQTT-4.8.2-5] The same goes for
// what was on its way when the client unsubscribed. [MQTT-3.10.4-3]

// apartKey stands for the feed of deliveries whose subscription is no more.
const apartKey = "x/"

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
	if m.f == nil || m.key == apartKey || !strings.HasPrefix(m.key, feed.SharePrefix) {
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

// setApart takes a delivery of QoS 2 from its source, which is no more; mu is held.
func (s *Session) setApart(muts []store.Mutation, fl *flight) []store.Mutation {
	fl.m, fl.offset = &membership{source: apart{}, key: apartKey}, ^uint64(fl.id) // there is no record to be found by it
	if s.durable {
		muts = append(muts, s.saveFlight(apartKey, fl))
	}
	return muts
}

// release2 sends the PUBREL of a delivery whose message is gone, without waiting for a PUBREC; mu is held. One that the client was not
// sent is nothing to it.
func (s *Session) release2(muts []store.Mutation, id uint16) []store.Mutation {
	l := s.link
	if l == nil || !s.flights.place(flight{id: id, stage: released}) {
		return s.forgetFlight(muts, resend{id, released})
	}
	if rel := packet.AppendAck(nil, l.Version, packet.TypePubrel, id, packet.CodeSuccess, ""); l.live.Load() {
		l.Send(rel)
	} else {
		l.resumed = append(l.resumed, rel...)
	}
	return s.setApart(muts, s.flights.get(id))
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
		if fl.id == 0 || fl.m == nil || fl.m.f != s.own || fl.m.key == apartKey || !slices.Contains(seqs, fl.seq) {
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
		if fl.id != 0 && fl.m != nil && fl.m.key == apartKey {
			all.add(flightKey{apartKey, fl.offset}, resend{fl.id, fl.stage})
		}
	}
	return all.mutation(s.id)
}

// resumeLoose goes on with the deliveries apart that earlier connections left unfinished; mu is held. [MQTT-4.4.0-1]
func (s *Session) resumeLoose(l *Link) {
	var keys []flightKey
	for k, to := range s.resend.byKey {
		if k.feed == apartKey || to.stage != sentQoS1 && strings.HasPrefix(k.feed, feed.SharePrefix) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b flightKey) int { return cmp.Compare(a.offset, b.offset) }) // [MQTT-4.6.0-1]
	members := map[string]*membership{}
	var muts []store.Mutation
	for _, k := range keys {
		to, _, _ := s.resend.take(k)
		m := members[k.feed]
		if m == nil {
			if m = s.m.loose(k.feed); k.feed == apartKey {
				m.f = s.own
			}
			members[k.feed] = m
		}
		fl := flight{id: to.id, stage: to.stage, m: m, offset: k.offset}
		sent := to.stage == released
		if !sent {
			fl.size, sent = s.sendAgain(l, k, to)
		}
		switch {
		case !sent:
			muts = s.forgetFlights(muts, []resend{to})
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

// sendAgain appends the PUBLISH of a record to what is sent first, and reports false if there is nothing to send: retention has
// deleted the record, or the client takes no packet as large.
func (s *Session) sendAgain(l *Link, k flightKey, to resend) (size int, ok bool) {
	recs, _, err := s.m.log.NewReader().Read(nil, k.offset, store.Limits{MaxRecords: 1, MaxScan: 1}, func(uint64, uint32) bool { return true })
	if err != nil || len(recs) == 0 || recs[0].Offset != k.offset {
		s.m.logger.Warn("a message that was being sent is gone", "client", s.id, "offset", k.offset, "err", err)
		return 0, false
	}
	r := &recs[0]
	if name := s.m.log.TopicName(r.Topic); !l.access.Subscribe(name) {
		s.m.logger.Warn("a message that was being sent is not allowed any more", "client", s.id, "topic", name)
		return 0, false
	}
	o := packet.Outgoing{Dup: true, QoS: 1, PacketID: to.id, Topic: s.m.log.TopicName(r.Topic), Props: r.Props, Payload: r.Payload}
	if to.stage == sentQoS2 {
		o.QoS = 2
	}
	for filter, f := range s.shares {
		if sub := s.subs[filter]; f.ID() == k.feed {
			if o.Retain = sub.RetainAsPublished && r.Flags.Has(record.FlagRetain); sub.ID != 0 {
				o.SubscriptionIDs = []uint32{sub.ID}
			}
		}
	}
	if l.Version == packet.V5 {
		if r.Flags.Has(record.FlagExpiry) {
			o.HasExpiry, o.Expiry = true, remaining(r.Expiry, r.Time, time.Now().UnixMicro())
		}
		if !l.fit(&o, r.Topic) {
			return 0, false
		}
	}
	l.resumed = packet.AppendPublish(l.resumed, l.Version, &o)
	return len(r.Props) + len(r.Payload) + 64, true
}
