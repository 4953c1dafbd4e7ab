package session

import (
	"errors"

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

// subscribe carries out one filter of a SUBSCRIBE; mu is held. What it changes in the state is appended to muts, or told to
// wait when it is saved on its own.
func (s *Session) subscribe(sub subscription, muts *[]store.Mutation, wait *waiter) (code byte, reason string) {
	flt, err := topic.ParseFilter(sub.Filter, s.m.opt.Topics)
	if err != nil {
		return codeOf(err), err.Error()
	}
	sub.QoS = min(sub.QoS, s.m.opt.MaxQoS)
	switch {
	case flt.V5:
		return packet.CodeFilterInvalid, "$v5/ is not supported yet"
	case flt.Kind == topic.Plain:
		err = s.subscribePlain(sub, muts)
	case flt.Kind == topic.QueueAttach, flt.Kind == topic.QueueBind:
		err = s.attach(flt, sub, muts, wait)
	case flt.Kind == topic.Share:
		return packet.CodeSharedNotSupported, "shared subscriptions are not supported yet"
	default:
		return packet.CodeFilterInvalid, "this kind of filter is not supported yet"
	}
	if err != nil {
		return codeOf(err), err.Error()
	}
	return sub.QoS, ""
}

func (s *Session) subscribePlain(sub subscription, muts *[]store.Mutation) error {
	f, err := s.ownFeed()
	if err != nil {
		return err
	}
	from, _ := f.Subscribe(feed.Filter{
		Filter: sub.Filter, From: feed.Now, QoS: sub.QoS, ID: sub.ID, NoLocal: sub.NoLocal, RetainAsPublished: sub.RetainAsPublished,
	})
	sub.From = from
	s.subs[sub.Filter] = sub
	if s.durable {
		*muts = append(*muts, s.saveSub(sub))
	}
	return nil
}

// attach makes the session a consumer of a queue, and binds the queue to a filter if one is given.
func (s *Session) attach(flt topic.Filter, sub subscription, muts *[]store.Mutation, wait *waiter) error {
	f, err := s.m.queues.Use(flt.Queue)
	if err != nil {
		return err
	}
	if flt.Kind == topic.QueueBind {
		wait.add()
		if err := s.m.queues.Bind(f, flt.Filter, wait); err != nil {
			wait.Committed(0, nil)
			return err
		}
	}
	sub.Filter = topic.QueuePrefix + flt.Queue
	s.subs[sub.Filter] = sub
	if s.durable {
		*muts = append(*muts, s.saveSub(sub))
	}
	for _, m := range s.members {
		if m.queue == flt.Queue {
			m.qos = sub.QoS
			m.SetQoS(sub.QoS)
			return nil
		}
	}
	s.join(f, flt.Queue, sub.QoS)
	return nil
}

// unsubscribe carries out one filter of an UNSUBSCRIBE; mu is held.
func (s *Session) unsubscribe(filter string, muts *[]store.Mutation, wait *waiter) byte {
	flt, err := topic.ParseFilter(filter, s.m.opt.Topics)
	if err != nil {
		return codeOf(err)
	}
	if flt.Kind == topic.QueueBind {
		f, err := s.m.queues.Find(flt.Queue)
		if err != nil {
			return packet.CodeNoSubscription
		}
		wait.add()
		existed, err := s.m.queues.Unbind(f, flt.Filter, wait)
		switch {
		case err != nil:
			wait.Committed(0, nil)
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
		*muts = append(*muts, record.Delete(record.BucketSubscriptions, subKey(s.id, filter)))
	}
	if flt.Kind == topic.QueueAttach {
		s.detach(flt.Queue, muts)
		return packet.CodeSuccess
	}
	s.own.Unsubscribe(filter)
	return packet.CodeSuccess
}

// detach ends the session's membership in a queue; what it had not acknowledged goes to other consumers.
func (s *Session) detach(queue string, muts *[]store.Mutation) {
	for i, m := range s.members {
		if m.queue != queue {
			continue
		}
		m.Leave()
		s.members = append(s.members[:i:i], s.members[i+1:]...)
		for j := range s.flights.slots {
			fl := s.flights.slots[j]
			if fl.m != m {
				continue
			}
			if s.durable && fl.stage != sentQoS1 {
				*muts = append(*muts, record.Delete(record.BucketInflight, sentKey(s.id, fl.id)))
			}
			s.flights.take(fl.id)
		}
		return
	}
}
