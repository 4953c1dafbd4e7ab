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
// group has settled it, and the session finishes it without the group's feed. [MQTT-4.8.2-4] [MQTT-4.8.2-5]

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

// resumeLoose goes on with the deliveries of shared subscriptions that earlier connections left unfinished; mu is held. [MQTT-4.4.0-1]
func (s *Session) resumeLoose(l *Link) {
	var keys []flightKey
	for k, to := range s.resend.byKey {
		if to.stage != sentQoS1 && strings.HasPrefix(k.feed, feed.SharePrefix) {
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
			m = s.m.loose(k.feed)
			members[k.feed] = m
		}
		fl := flight{id: to.id, stage: to.stage, m: m, offset: k.offset}
		sent := to.stage == released
		if !sent {
			fl.size, sent = s.sendAgain(l, k, to.id)
		}
		switch {
		case !sent || !s.flights.place(fl):
			muts = s.forgetFlights(muts, []resend{to})
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
func (s *Session) sendAgain(l *Link, k flightKey, id uint16) (size int, ok bool) {
	recs, _, err := s.m.log.NewReader().Read(nil, k.offset, store.Limits{MaxRecords: 1, MaxScan: 1}, func(uint64, uint32) bool { return true })
	if err != nil || len(recs) == 0 || recs[0].Offset != k.offset {
		s.m.logger.Warn("a message that was being sent is gone", "client", s.id, "offset", k.offset, "err", err)
		return 0, false
	}
	r := &recs[0]
	o := packet.Outgoing{Dup: true, QoS: 2, PacketID: id, Topic: s.m.log.TopicName(r.Topic), Props: r.Props, Payload: r.Payload}
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
