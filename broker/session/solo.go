package session

import (
	"fmt"
	"sync"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store/record"
)

// Some subscriptions have a feed to themselves: replays, which have a position of their own; exclusive ones; and those of
// $v5/, which are delivered in another form than the session's ordinary ones. They live as long as the session.

const soloPrefix = "p/"

// soloID is the name of such a feed. Neither part has a NUL.
func soloID(client, filter string) string { return soloPrefix + client + "\x00" + filter }

// solo tells whether a subscription has a feed to itself.
func solo(flt topic.Filter, sub subscription) bool {
	return flt.Kind == topic.Replay || flt.Kind == topic.Exclusive || flt.Kind == topic.Plain && (flt.V5 || sub.Replay)
}

// subscribeSolo opens the feed of a replay, an exclusive subscription or one in the $v5/ form. One that is there goes
// on from where it is. note says what the client should know about it.
func (s *Session) subscribeSolo(flt topic.Filter, sub subscription, start *topic.Start, c *change) (note string, err error) {
	if flt.Kind == topic.Exclusive {
		if err := s.m.exclusive.take(flt.Filter, s.id); err != nil {
			return "", err
		}
	}
	f := s.solos[sub.Filter]
	existed := f != nil
	if !existed {
		var from uint64
		from, note = s.m.position(start)
		if note == "" {
			note = s.m.dropped(start, from, flt.Filter)
		}
		if f, err = s.openSolo(flt, sub, from, true); err != nil {
			return "", err
		}
	}
	sub.Replay = sub.Replay || start != nil
	sub.Retained = !sub.Replay && (sub.RetainHandling == 0 || sub.RetainHandling == 1 && !existed)
	s.enroll(f, sub, flt, sub.Replay)
	if sub.Retained {
		s.stopRetained(sub.Filter, false, c)
		s.sendRetained(sub, flt, s.m.log.Next())
	}
	if s.durable {
		c.muts, c.feeds = append(c.muts, s.saveSub(sub)), append(c.feeds, f)
	}
	return note, nil
}

// openSolo opens the feed of a subscription, from an offset or from its saved cursor.
func (s *Session) openSolo(flt topic.Filter, sub subscription, from uint64, fresh bool) (*feed.Feed, error) {
	defer s.m.log.Use().Done() // until the feed has the client's number
	local, err := s.local(sub.NoLocal)
	if err != nil {
		return nil, err
	}
	o := feed.Options{Durable: s.durable, Local: local, Start: from, Fresh: fresh}
	if !sub.Replay && flt.Kind != topic.Replay { // a replay is behind by intention
		o.MaxLag, o.Overrun = s.lagLimit(), s.overrun
	}
	f, err := s.m.hub.Open(soloID(s.id, sub.Filter), o, feed.Filter{
		Filter: flt.Filter, QoS: 2, NoLocal: sub.NoLocal,
	})
	if err != nil {
		return nil, err
	}
	if s.solos == nil {
		s.solos = map[string]*feed.Feed{}
	}
	s.solos[sub.Filter] = f
	return f, nil
}

// dropSolo ends a subscription that has a feed to itself.
func (s *Session) dropSolo(filter string, flt topic.Filter, c *change) {
	if flt.Kind == topic.Exclusive {
		s.m.exclusive.release(flt.Filter, s.id)
	}
	f := s.solos[filter]
	if f == nil {
		return
	}
	delete(s.solos, filter)
	c.muts = append(c.muts, record.Delete(record.BucketCursors, feed.CursorKey(f.ID())))
	f.Close()
}

// position turns the start of a replay into an offset. One that is older than what is kept begins with the oldest, and
// note says so.
func (m *Manager) position(start *topic.Start) (from uint64, note string) {
	if start == nil {
		return feed.Now, ""
	}
	first := m.log.First()
	switch start.Kind {
	case topic.Latest:
		return feed.Now, ""
	case topic.Earliest:
		return first, ""
	case topic.AtTime:
		from = m.log.SearchTime(start.Time)
	case topic.Back:
		from = m.log.SearchTime(m.log.Now().Add(-start.Back).UnixMicro())
	case topic.AtOffset:
		if from = start.Offset; from < first {
			return first, fmt.Sprintf("offset %d is no longer kept, the replay begins at offset %d, the oldest", from, first)
		}
		return min(from, m.log.Next()), ""
	}
	if from <= first && first > 1 {
		return first, fmt.Sprintf("the replay begins at offset %d, the oldest that is kept", first)
	}
	return from, ""
}

// dropped says, of the start of a replay, whether limits of topics have dropped what lies behind it.
func (m *Manager) dropped(start *topic.Start, from uint64, filter string) (note string) {
	if start == nil || start.Kind == topic.Latest || start.Kind == topic.Earliest || from == feed.Now {
		return ""
	}
	if m.log.DroppedSince(from, func(id uint32) bool { return topic.Match(filter, m.log.TopicName(id)) }) {
		return fmt.Sprintf("messages since offset %d have been dropped by limits of topics, the replay begins with what is kept", from)
	}
	return ""
}

// exclusives knows who holds the exclusive subscriptions. Its lock is a leaf.
type exclusives struct {
	mu      sync.Mutex
	holders map[string]string // filter → client
}

// take gives a filter to a client, unless another one has it.
func (x *exclusives) take(filter, client string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if other, ok := x.holders[filter]; ok && other != client {
		return &packet.Error{Code: packet.CodeQuotaExceeded, Msg: fmt.Sprintf("another client subscribes to %q exclusively", filter)}
	}
	if x.holders == nil {
		x.holders = map[string]string{}
	}
	x.holders[filter] = client
	return nil
}

func (x *exclusives) release(filter, client string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.holders[filter] == client {
		delete(x.holders, filter)
	}
}
