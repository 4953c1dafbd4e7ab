package session

import (
	"errors"
	"slices"

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

// errUnsupported refuses a kind of filter or topic that has a meaning which is not built.
func errUnsupported(what string) error {
	return &topic.Error{Code: packet.CodeFilterInvalid, Msg: what + " is not supported yet"}
}

// change collects what a SUBSCRIBE or UNSUBSCRIBE changes in the state.
type change struct {
	muts  []store.Mutation
	feeds []*feed.Feed // whose cursors must be saved with muts
	wait  *waiter      // told of what is saved on its own
}

// subscribe carries out one filter of a SUBSCRIBE; mu is held.
func (s *Session) subscribe(sub subscription, c *change) (code byte, err error) {
	flt, err := topic.ParseFilter(sub.Filter, s.m.opt.Topics)
	if err != nil {
		return 0, err
	}
	sub.QoS = min(sub.QoS, s.m.opt.MaxQoS)
	switch {
	case flt.V5:
		err = errUnsupported("$v5/")
	case flt.Kind == topic.Plain:
		err = s.subscribePlain(sub, c)
	case flt.Kind == topic.QueueAttach, flt.Kind == topic.QueueBind:
		err = s.attach(flt, sub, c)
	case flt.Kind == topic.Share:
		err = s.subscribeShare(flt, sub, c)
	default:
		err = errUnsupported("this kind of filter")
	}
	return sub.QoS, err
}

func (s *Session) subscribePlain(sub subscription, c *change) error {
	f, err := s.ownFeed()
	if err != nil {
		return err
	}
	from, existed := f.Subscribe(feed.Filter{
		Filter: sub.Filter, From: feed.Now, QoS: sub.QoS, ID: sub.ID, NoLocal: sub.NoLocal, RetainAsPublished: sub.RetainAsPublished,
	})
	sub.From = from
	sub.Retained = sub.RetainHandling == 0 || sub.RetainHandling == 1 && !existed // [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]
	s.subs[sub.Filter] = sub
	if sub.Retained {
		s.sendRetained(sub, s.m.log.Next())
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
	s.enroll(f, sub, false)
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
	sub.Filter = topic.QueuePrefix + flt.Queue
	s.enroll(f, sub, true)
	if s.durable {
		c.muts = append(c.muts, s.saveSub(sub))
	}
	return nil
}

// enroll makes the session a member of a feed with many, or changes the options of its membership.
func (s *Session) enroll(f *feed.Feed, sub subscription, queue bool) {
	s.subs[sub.Filter] = sub
	if m := s.member(sub.Filter); m != nil {
		m.serve(sub)
		m.SetQoS(sub.QoS)
		return
	}
	s.join(f, &sub, queue)
}

// unsubscribe carries out one filter of an UNSUBSCRIBE; mu is held.
func (s *Session) unsubscribe(filter string, c *change) byte {
	flt, err := topic.ParseFilter(filter, s.m.opt.Topics)
	if err != nil {
		return codeOf(err)
	}
	if flt.Kind == topic.QueueBind {
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
	if _, ok := s.subs[filter]; !ok {
		return packet.CodeNoSubscription // [MQTT-3.11.3-2]
	}
	delete(s.subs, filter)
	if s.durable {
		c.muts = append(c.muts, record.Delete(record.BucketSubscriptions, subKey(s.id, filter)))
	}
	switch flt.Kind {
	case topic.QueueAttach:
		s.detach(filter, c)
	case topic.Share:
		s.detach(filter, c)
		s.dropShare(filter, c)
	default:
		s.stopRetained(filter)
		s.own.Unsubscribe(filter)
	}
	return packet.CodeSuccess
}

// dropShare ends the session's part in a shared subscription; with the last session's it is gone.
func (s *Session) dropShare(filter string, c *change) {
	f := s.shares[filter]
	delete(s.shares, filter)
	if f != nil && s.m.shares.Drop(f) {
		c.muts = append(c.muts, record.Delete(record.BucketCursors, feed.CursorKey(f.ID())))
	}
}

// detach ends the session's membership in a feed with many members; what it had not acknowledged goes to the others.
func (s *Session) detach(filter string, c *change) {
	m := s.member(filter)
	if m == nil {
		return
	}
	m.Leave()
	s.remove(m, c)
}

// remove takes a source that has left out of the session, and its deliveries out of flights.
func (s *Session) remove(m *membership, c *change) {
	s.members = slices.DeleteFunc(slices.Clone(s.members), func(x *membership) bool { return x == m })
	for _, fl := range slices.Clone(s.flights.slots) {
		if fl.m != m {
			continue
		}
		if s.durable && fl.stage != sentQoS1 {
			c.muts = append(c.muts, record.Delete(record.BucketInflight, sentKey(s.id, fl.id)))
		}
		s.flights.take(fl.id)
	}
}
