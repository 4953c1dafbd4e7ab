package session

import (
	"errors"
	"slices"
	"strings"

	"github.com/edgemq/edgemq/broker/auth"
	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// codeOf returns the reason code that tells a client of an error of ours.
func codeOf(err error) byte {
	var te *topic.Error
	var pe *packet.Error
	switch {
	case errors.As(err, &te):
		return te.Code
	case errors.As(err, &pe):
		return pe.Code
	case errors.Is(err, store.ErrFull):
		return packet.CodeQuotaExceeded
	case errors.Is(err, feed.ErrNoQueue):
		return packet.CodeNotAuthorized
	}
	return packet.CodeUnspecified
}

// reasonOf is what an error says to a client. Of an error that has a code it is the sentence alone: the code goes beside it.
func reasonOf(err error) string {
	var pe *packet.Error
	if errors.As(err, &pe) {
		return pe.Msg
	}
	return err.Error()
}

// change collects what a SUBSCRIBE or UNSUBSCRIBE changes in the state.
type change struct {
	muts  []store.Mutation
	feeds []*feed.Feed // whose cursors must be saved with muts
	wait  *waiter      // told of what is saved on its own
}

// streamOffset returns where the subscriptions of a SUBSCRIBE begin if its user property stream-offset says so: any start of
// $s/<start>/.
func streamOffset(p *packet.Subscribe) (*topic.Start, error) {
	for _, u := range p.User {
		if u.Name == "stream-offset" {
			start, err := topic.ParseStart(u.Value)
			return &start, err
		}
	}
	return nil, nil
}

// subscribe carries out one filter of a SUBSCRIBE; mu is held. start is where it is to begin, nil for now. note says what
// the client should know although it is granted.
func (s *Session) subscribe(sub subscription, start *topic.Start, c *change) (code byte, note string, err error) {
	flt, err := topic.ParseFilter(sub.Filter, s.m.opt.Topics)
	if err != nil {
		return 0, "", err
	}
	if err := maySubscribe(s.link.allowed(), &flt); err != nil {
		s.m.denied.Add(1)
		return 0, "", err
	}
	if flt.Kind == topic.Share && sub.NoLocal { // as $v5/$share/…, which the codec lets pass
		return 0, "", &packet.Error{Code: packet.CodeProtocol, Rule: "MQTT-3.8.3-4", Msg: "no local on a shared subscription"}
	}
	sub.QoS = min(sub.QoS, s.m.opt.MaxQoS)
	switch flt.Kind {
	case topic.QueueAttach, topic.QueueBind:
		err = s.attach(flt, sub, c)
	case topic.Share:
		err = s.subscribeShare(flt, sub, c)
	case topic.Replay:
		note, err = s.subscribeSolo(flt, sub, &flt.Start, c)
	case topic.Exclusive:
		note, err = s.subscribeSolo(flt, sub, start, c)
	default:
		if old, ok := s.subs.Get(sub.Filter); ok && old.Replay {
			sub.Replay = true // subscribed to again, without the property: it goes on where it is
		}
		if start != nil || flt.V5 || sub.Replay {
			s.endPlain(sub.Filter)
			note, err = s.subscribeSolo(flt, sub, start, c)
		} else {
			err = s.subscribePlain(sub, c)
		}
	}
	return sub.QoS, note, err
}

// endPlain ends an ordinary subscription that becomes a replay.
func (s *Session) endPlain(filter string) {
	if s.own != nil {
		s.own.Unsubscribe(filter)
	}
}

func (s *Session) subscribePlain(sub subscription, c *change) error {
	defer s.m.log.Use().Done() // until the feed has the client's number
	f, err := s.ownFeed()
	if err != nil {
		return err
	}
	if local, err := s.local(sub.NoLocal); err != nil {
		return err
	} else if local != 0 {
		f.SetLocal(local)
	}
	from, existed := f.Subscribe(feed.Filter{
		Filter: sub.Filter, From: feed.Now, QoS: sub.QoS, ID: sub.ID, NoLocal: sub.NoLocal, RetainAsPublished: sub.RetainAsPublished,
	})
	sub.From = from
	sub.Retained = sub.RetainHandling == 0 || sub.RetainHandling == 1 && !existed // [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]
	sub.Retained = sub.Retained && s.m.retains(sub.Filter)
	if old, _ := s.subs.Get(sub.Filter); old.Retained && !sub.Retained {
		sub.Retained, sub.After = true, old.After // what the last SUBSCRIBE began goes on
		s.subs.Set(sub)
	} else if s.subs.Set(sub); sub.Retained {
		s.stopRetained(sub.Filter, false, c)
		s.sendRetained(sub, topic.Filter{Filter: sub.Filter}, s.m.log.Next())
	}
	if s.durable {
		c.muts = append(c.muts, s.saveSub(sub))
	}
	return nil
}

// subscribeShare makes the session a member of a shared subscription. No retained messages are sent for it. [MQTT-4.8.2]
func (s *Session) subscribeShare(flt topic.Filter, sub subscription, c *change) error {
	f := s.shares[sub.Filter]
	if f == nil {
		var err error
		if f, err = s.m.shares.Hold(flt.Group, flt.Filter, s.durable, false); err != nil {
			return err
		}
		if s.shares == nil {
			s.shares = map[string]*feed.Feed{}
		}
		s.shares[sub.Filter] = f
	}
	s.enroll(f, sub, flt, false)
	if s.durable {
		c.muts, c.feeds = append(c.muts, s.saveSub(sub)), append(c.feeds, f)
	}
	return nil
}

// attach makes the session a consumer of a queue, and binds the queue to a filter if one is given.
func (s *Session) attach(flt topic.Filter, sub subscription, c *change) error {
	f, err := s.m.queues.Use(flt.Queue)
	if err != nil {
		return err
	}
	if flt.Kind == topic.QueueBind {
		c.wait.add()
		if err := s.m.queues.Bind(f, flt.Filter, c.wait); err != nil {
			c.wait.Committed(0, nil)
			return err
		}
	}
	if sub.Filter = topic.QueuePrefix + flt.Queue; flt.V5 {
		sub.Filter = "$v5/" + sub.Filter
	}
	s.enroll(f, sub, flt, true)
	if s.durable {
		c.muts = append(c.muts, s.saveSub(sub))
	}
	return nil
}

// enroll makes the session a member of a feed with many, or changes the options of its membership.
func (s *Session) enroll(f *feed.Feed, sub subscription, flt topic.Filter, stamps bool) {
	s.subs.Set(sub)
	if m := s.member(sub.Filter); m != nil {
		m.serve(sub)
		m.SetQoS(sub.QoS)
		if m.queue && m.envelope { // attached once more, and told once more
			m.mark.Store(s.m.log.Next())
		}
		return
	}
	s.join(f, &sub, flt, stamps)
}

// unsubscribe carries out one filter of an UNSUBSCRIBE for somebody who may do what access says; mu is held.
func (s *Session) unsubscribe(filter string, access *auth.Access, c *change) byte {
	flt, err := topic.ParseFilter(filter, s.m.opt.Topics)
	if err != nil {
		return codeOf(err)
	}
	if flt.Kind == topic.QueueBind { // which concerns others than the client
		if err := maySubscribe(access, &flt); err != nil {
			s.m.denied.Add(1)
			return codeOf(err)
		}
		f, err := s.m.queues.Find(flt.Queue)
		if err != nil {
			return packet.CodeNoSubscription
		}
		c.wait.add()
		existed, err := s.m.queues.Unbind(f, flt.Filter, c.wait)
		switch {
		case err != nil:
			c.wait.Committed(0, nil)
			return codeOf(err)
		case !existed:
			return packet.CodeNoSubscription
		}
		return packet.CodeSuccess
	}
	sub, ok := s.subs.Get(filter)
	if !ok {
		// That memory has none says nothing of the disk, if an earlier UNSUBSCRIBE could not be saved.
		if s.durable && !s.unsaved {
			c.muts = append(c.muts, record.Delete(record.BucketSubscriptions, subKey(s.id, filter)))
		}
		return packet.CodeNoSubscription // [MQTT-3.11.3-2]
	}
	s.subs.Remove(filter)
	if s.durable {
		c.muts = append(c.muts, record.Delete(record.BucketSubscriptions, subKey(s.id, filter)))
	}
	switch {
	case flt.Kind == topic.QueueAttach:
		s.detach(filter, c)
	case flt.Kind == topic.Share:
		s.detach(filter, c)
		s.dropShare(filter)
	case solo(flt, sub):
		s.stopRetained(filter, true, c)
		s.detach(filter, c)
		s.dropSolo(filter, flt, c)
	default:
		s.stopRetained(filter, true, c)
		s.own.Unsubscribe(filter)
		s.orphans(c)
	}
	return packet.CodeSuccess
}

// dropShare ends the session's part in a shared subscription; with the last session's it is gone.
func (s *Session) dropShare(filter string) {
	f := s.shares[filter]
	delete(s.shares, filter)
	if f == nil {
		return
	}
	if err := s.m.shares.Drop(f); err != nil {
		s.m.logger.Error("ending a shared subscription failed, its cursor stays", "client", s.id, "filter", filter, "err", err)
	}
}

// detach ends the session's membership in a feed with many members; what it had not acknowledged goes to the others.
func (s *Session) detach(filter string, c *change) {
	m := s.member(filter)
	if m == nil {
		return
	}
	s.keepApart(m)
	m.Leave()
	s.remove(m, true, c)
}

// remove takes a source that has left out of the session, and its deliveries out of flights, unless they are to go on without it.
func (s *Session) remove(m *membership, goOn bool, c *change) {
	s.members = slices.DeleteFunc(slices.Clone(s.members), func(x *membership) bool { return x == m })
	unacked := false
	for i, fl := range slices.Clone(s.flights.slots) {
		if fl.m != m {
			continue
		}
		switch {
		case goOn && fl.stage != released && s.goOn(m, &s.flights.slots[i], c): // [MQTT-3.10.4-3]
			unacked = unacked || s.durable && fl.stage == sentQoS1
		case fl.stage == sentQoS1:
			s.flights.take(fl.id)
		case strings.HasPrefix(m.key, feed.SharePrefix): // [MQTT-3.10.4-3]
			s.flights.slots[i].m = s.m.loose(m.key)
		default: // the client still has to be brought to the end of it
			c.muts = s.setApart(c.muts, &s.flights.slots[i])
		}
	}
	if unacked {
		c.muts = append(c.muts, s.saveUnacked())
	}
}
