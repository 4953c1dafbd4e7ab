package session

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// answer is one acknowledgement from the client.
type answer struct {
	t      packet.Type
	id     uint16
	code   byte
	reason string // of a refusal
}

// Ack takes one PUBACK, PUBREC or PUBCOMP; FlushAcks carries out what was taken.
func (l *Link) Ack(t packet.Type, a *packet.Ack) {
	reason := ""
	if a.Code >= packet.CodeUnspecified {
		if reason = a.Reason(); reason == "" {
			reason = fmt.Sprintf("refused with 0x%02X", a.Code)
		}
	}
	l.answers = append(l.answers, answer{t, a.PacketID, a.Code, reason})
}

// FlushAcks carries out the acknowledgements that were taken since the last call.
func (l *Link) FlushAcks() {
	if len(l.answers) == 0 {
		return
	}
	if s := l.session.Load(); s != nil {
		s.acknowledge(l, l.answers)
	}
	if l.answers = l.answers[:0]; cap(l.answers) > 4096 {
		l.answers = nil
	}
}

// settling collects items of one feed after another, to settle each run with one call.
type settling struct {
	m     *membership
	seqs  []uint64
	feeds []*feed.Feed // whose cursors must be saved with the packet ids
	apart bool         // a QoS 1 delivery is over that has no feed any more
}

func (c *settling) add(m *membership, seq uint64) {
	if m != c.m {
		c.done()
		c.m = m
	}
	c.seqs = append(c.seqs, seq)
}

func (c *settling) done() {
	if len(c.seqs) > 0 {
		c.m.Settle(c.seqs...)
		c.seqs = c.seqs[:0]
	}
}

// acknowledge carries out what a client answered to its deliveries, in the order in which it came.
func (s *Session) acknowledge(l *Link, answers []answer) {
	s.mu.Lock()
	defer l.Wake() // the window may be open again
	defer s.mu.Unlock()
	if s.link != l {
		return
	}
	done := settling{seqs: l.seqs[:0]}
	var muts []store.Mutation
	var out []byte
	for _, a := range answers {
		fl := s.flights.get(a.id)
		if fl != nil && !fl.stage.takes(a.t) {
			// Left alone, the delivery would never be over. What the client answered before counts.
			defer l.Kick(packet.CodeProtocol, fmt.Sprintf("%v is not an answer to what packet %d was last", a.t, a.id))
			break
		}
		switch {
		case a.t == packet.TypePubrec:
			out = s.received2(fl, a, &done, &muts, out)
		case fl == nil: // answered already
		case a.t == packet.TypePuback:
			s.finish(fl, a, &done, &muts)
		case a.t == packet.TypePubcomp:
			s.finish(fl, answer{}, &done, &muts)
		}
	}
	done.done()
	l.seqs = done.seqs
	muts = s.retainedProgress(muts)
	if done.apart && s.durable {
		muts = append(muts, s.saveUnacked()) // no feed's cursor says that these are over
	}
	switch {
	case len(muts) > 0:
		// One append: that a delivery is over and the cursor that has gone past it stand or fall together, and a PUBREL goes out
		// only once a crash cannot make us send the PUBLISH again.
		if err := s.m.hub.Save(muts, &held{l: l, out: out}, done.feeds...); err != nil {
			l.Kick(codeOf(err), err.Error())
		}
	case len(out) > 0:
		// Asked for again. That the first PUBREC has come may still be on its way to the disk, and until it is there a crash would have us send the
		// PUBLISH again, under an id that this PUBREL would have freed. What is behind it in the journal comes after it.
		h := &held{l: l, out: out}
		if err := s.m.log.Append(nil, nil, false, h); err != nil {
			h.Committed(0, err)
		}
	}
}

// received2 carries out a PUBREC and appends the PUBREL that answers it to out.
func (s *Session) received2(fl *flight, a answer, done *settling, muts *[]store.Mutation, out []byte) []byte {
	l := s.link
	switch {
	case fl == nil:
		if a.code >= packet.CodeUnspecified {
			return out
		}
		return packet.AppendAck(out, l.Version, packet.TypePubrel, a.id, packet.CodePacketIDNotFound, "")
	case a.code >= packet.CodeUnspecified: // [MQTT-4.3.3-4] refused: there will be no PUBREL
		s.finish(fl, a, done, muts)
		return out
	case fl.stage == sentQoS2 && fl.m != nil:
		fl.stage = released
		if s.durable {
			*muts = append(*muts, s.saveFlight(fl.m.key, fl))
		}
	}
	return packet.AppendAck(out, l.Version, packet.TypePubrel, a.id, packet.CodeSuccess, "") // [MQTT-4.3.3-5]
}

// finish ends a flight: its record is settled, or refused if a queue's consumer says so, and its packet id free.
func (s *Session) finish(fl *flight, a answer, done *settling, muts *[]store.Mutation) {
	if fl.m == nil {
		s.resend.complete(fl.id) // what the state holds of it stays until the feed comes by the record
		s.flights.take(fl.id)
		return
	}
	m, ok := fl.m.source.(*feed.Member)
	switch {
	case fl.nacked:
	case ok && fl.m.queue && a.code >= packet.CodeUnspecified:
		done.done() // in the order in which the client answered
		m.Refuse(fl.seq, a.reason, feed.DefaultDelay)
	default:
		done.add(fl.m, fl.seq)
	}
	if s.durable && fl.stage != sentQoS1 {
		if fl.m.f != nil && !slices.Contains(done.feeds, fl.m.f) {
			done.feeds = append(done.feeds, fl.m.f)
		}
		*muts = append(*muts, record.Delete(record.BucketInflight, sentKey(s.id, fl.id)))
	}
	*muts = s.forgetKept(*muts, fl.m.key, fl.id)
	done.apart = done.apart || fl.stage == sentQoS1 && isApart(fl.m.key)
	s.flights.take(fl.id)
}

// held is what goes to a client once a commit has made it safe to send. It is a store.Completion.
type held struct {
	l   *Link
	out []byte
	// release ends the hold on the link's deliveries.
	release bool
	halves  atomic.Int32 // 2 if out is yet to be filled in, besides the commit
}

// Committed implements store.Completion.
func (h *held) Committed(_ uint64, err error) {
	if err != nil {
		h.l.Kick(codeOf(err), err.Error())
		return
	}
	h.half()
}

// half is called when out is there, and when it may be sent.
func (h *held) half() {
	if h.halves.Add(-1) > 0 {
		return
	}
	if len(h.out) > 0 {
		h.l.Send(h.out)
	}
	if h.release {
		h.l.holding.Store(false)
		h.l.Wake()
	}
}
