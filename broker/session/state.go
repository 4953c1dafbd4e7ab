package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// The versions of the values below. docs/FORMAT.md describes them.
const (
	sessionVersion      = 2 // 1 had no user
	subscriptionVersion = 1
	inflightVersion     = 1
)

var errDamaged = errors.New("damaged value")

// subKey is the key of a subscription: client, NUL, filter. Neither may contain a NUL. [MQTT-1.5.4-2]
func subKey(client, filter string) []byte { return []byte(client + "\x00" + filter) }

// mutation saves the session: version u8, expiry u32, offline since i64 (ms since 1970, 0 while connected), user. mu is held.
func (s *Session) mutation() store.Mutation {
	b := []byte{sessionVersion}
	b = binary.LittleEndian.AppendUint32(b, s.expiry)
	since := int64(0)
	if s.link == nil {
		since = s.offline.UnixMilli()
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(since))
	return record.Put(record.BucketSessions, []byte(s.id), append(b, s.user...))
}

// parse is the reverse of mutation.
func (s *Session) parse(b []byte) error {
	if len(b) < 1 {
		return errDamaged
	}
	version := b[0]
	if version == 0 || version > sessionVersion {
		return fmt.Errorf("version %d: %w", version, store.ErrVersion)
	}
	if len(b) < 13 || version == 1 && len(b) > 13 {
		return errDamaged
	}
	s.expiry, s.offline, s.user = binary.LittleEndian.Uint32(b[1:]), time.Time{}, string(b[13:])
	if ms := int64(binary.LittleEndian.Uint64(b[5:])); ms != 0 {
		s.offline = time.UnixMilli(ms)
	}
	return nil
}

const (
	subQoS             = 3
	subNoLocal         = 1 << 2
	subRetainPublished = 1 << 3
	subHandlingShift   = 4
	subRetained        = 1 << 6
	subReplay          = 1 << 7
)

// appendSubscription encodes: version u8, options u8 (as in SUBSCRIBE; 64: retained messages are still to be sent; 128: a replay), subscription id
// uvarint, from uvarint, and of the retained messages the last topic that is done with.
func appendSubscription(dst []byte, sub subscription) []byte {
	o := sub.QoS | sub.RetainHandling<<subHandlingShift
	if sub.NoLocal {
		o |= subNoLocal
	}
	if sub.RetainAsPublished {
		o |= subRetainPublished
	}
	if sub.Retained {
		o |= subRetained
	}
	if sub.Replay {
		o |= subReplay
	}
	dst = append(dst, subscriptionVersion, o)
	dst = binary.AppendUvarint(dst, uint64(sub.ID))
	dst = binary.AppendUvarint(dst, sub.From)
	return append(dst, sub.After...)
}

func parseSubscription(filter string, b []byte) (subscription, error) {
	if len(b) < 4 {
		return subscription{}, errDamaged
	}
	if b[0] != subscriptionVersion {
		return subscription{}, fmt.Errorf("version %d: %w", b[0], store.ErrVersion)
	}
	o := b[1]
	id, n := binary.Uvarint(b[2:])
	if n <= 0 || id > 1<<28 {
		return subscription{}, errDamaged
	}
	from, k := binary.Uvarint(b[2+n:])
	if k <= 0 {
		return subscription{}, errDamaged
	}
	return subscription{
		Subscription: packet.Subscription{
			Filter: filter, QoS: o & subQoS, NoLocal: o&subNoLocal != 0,
			RetainAsPublished: o&subRetainPublished != 0, RetainHandling: o >> subHandlingShift & 3,
		},
		ID: uint32(id), From: from, Retained: o&subRetained != 0, Replay: o&subReplay != 0, After: string(b[2+n+k:]),
	}, nil
}

// The keys of BucketInflight: client, NUL, then a letter and perhaps a packet id.
func unackedKey(client string) []byte { return []byte(client + "\x00a") }

func receivedKey(client string, id uint16) []byte {
	return append([]byte(client+"\x00r"), byte(id>>8), byte(id))
}

func sentKey(client string, id uint16) []byte {
	return append([]byte(client+"\x00s"), byte(id>>8), byte(id))
}

// mutation saves the packet ids of the QoS 1 deliveries that are to be sent again: version u8, then for each: feed (length
// uvarint, name), offset uvarint, id u16.
func (r *resends) mutation(client string) store.Mutation {
	b := []byte{inflightVersion}
	for k, to := range r.byKey {
		if to.stage == sentQoS1 {
			b = appendFlightKey(b, k)
			b = binary.LittleEndian.AppendUint16(b, to.id)
		}
	}
	if len(b) == 1 {
		return record.Delete(record.BucketInflight, unackedKey(client))
	}
	return record.Put(record.BucketInflight, unackedKey(client), b)
}

func (r *resends) parse(b []byte) error {
	b, err := checkVersion(b, inflightVersion)
	for err == nil && len(b) > 0 {
		var k flightKey
		if k, b, err = parseFlightKey(b); err != nil {
			break
		}
		if len(b) < 2 || b[0] == 0 && b[1] == 0 {
			return errDamaged
		}
		r.add(k, resend{binary.LittleEndian.Uint16(b), sentQoS1})
		b = b[2:]
	}
	return err
}

// saveFlight saves a QoS 2 delivery: version u8, stage u8, feed (length uvarint, name), offset uvarint.
func (s *Session) saveFlight(feedID string, fl *flight) store.Mutation {
	b := appendFlightKey([]byte{inflightVersion, byte(fl.stage)}, flightKey{feedID, fl.offset})
	return record.Put(record.BucketInflight, sentKey(s.id, fl.id), b)
}

func appendFlightKey(dst []byte, k flightKey) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(k.feed)))
	dst = append(dst, k.feed...)
	return binary.AppendUvarint(dst, k.offset)
}

func parseFlightKey(b []byte) (k flightKey, rest []byte, err error) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return k, nil, errDamaged
	}
	k.feed, b = string(b[n:n+int(size)]), b[n+int(size):]
	if k.offset, n = binary.Uvarint(b); n <= 0 {
		return k, nil, errDamaged
	}
	return k, b[n:], nil
}

func checkVersion(b []byte, v byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, errDamaged
	}
	if b[0] != v {
		return nil, fmt.Errorf("version %d: %w", b[0], store.ErrVersion)
	}
	return b[1:], nil
}

// loadInflight takes one entry of BucketInflight.
func (s *Session) loadInflight(what string, v []byte) error {
	if what == "a" {
		return s.resend.parse(v)
	}
	if len(what) != 3 {
		return errDamaged
	}
	id := uint16(what[1])<<8 | uint16(what[2])
	b, err := checkVersion(v, inflightVersion)
	if err != nil {
		return err
	}
	switch {
	case what[0] == 'r':
		s.noteReceived(id, nil)
		return nil
	case what[0] == 'm':
		return nil // looked at when it is sent again
	case what[0] != 's' || len(b) < 1 || b[0] != byte(sentQoS2) && b[0] != byte(released):
		return errDamaged
	}
	k, rest, err := parseFlightKey(b[1:])
	if err == nil && len(rest) > 0 {
		err = errDamaged
	}
	if err != nil {
		return err
	}
	s.resend.add(k, resend{id, stage(b[0])})
	return nil
}

// lastSign returns the time of the newest record, or now if there is none.
func (m *Manager) lastSign() time.Time {
	next := m.log.Committed()
	for from := next - min(next, 64); from < next; {
		recs, to, err := m.log.NewReader().Read(nil, from, store.Limits{}, func(uint64, uint32) bool { return true })
		if err != nil || to <= from {
			break
		}
		if from = to; len(recs) > 0 && to >= next {
			return time.UnixMicro(recs[len(recs)-1].Time)
		}
	}
	return m.log.Now()
}

// load reads the sessions of the state. A session that was connected when the broker ended rests from the last sign of life of the
// store on, so that its expiry counts the broker's downtime.
func (m *Manager) load() error {
	var bad error
	alive := m.lastSign()
	err := m.log.Range(record.BucketSessions, nil, func(k, v []byte) bool {
		s := m.newSession(string(k), true)
		if bad = s.parse(v); bad != nil {
			bad = fmt.Errorf("session of client %q: %w", k, bad)
			return false
		}
		if s.offline.IsZero() {
			s.offline = alive
		}
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	err = m.log.Range(record.BucketSubscriptions, nil, func(k, v []byte) bool {
		client, filter, _ := strings.Cut(string(k), "\x00")
		s := m.sessions[client]
		if s == nil {
			return true // its session ended in the same group that deletes this
		}
		sub, perr := parseSubscription(filter, v)
		if perr != nil {
			bad = fmt.Errorf("subscription of client %q to %q: %w", client, filter, perr)
			return false
		}
		s.subs.Set(sub)
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	err = m.log.Range(record.BucketInflight, nil, func(k, v []byte) bool {
		client, what, _ := strings.Cut(string(k), "\x00")
		if s := m.sessions[client]; s != nil {
			if bad = s.loadInflight(what, v); bad != nil {
				bad = fmt.Errorf("packet ids of client %q: %w", client, bad)
				return false
			}
		}
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	for _, s := range m.sessions {
		if err := s.reopen(); err != nil {
			return err
		}
	}
	for _, s := range m.sessions {
		for k, to := range s.resend.byKey {
			if f := m.shares.Find(k.feed); f != nil && to.stage != sentQoS1 {
				f.Reserve(k.offset)
			}
		}
	}
	return m.loadWills(alive)
}

// reopen opens the own feed of a session that was loaded.
func (s *Session) reopen() error {
	var filters []feed.Filter
	for sub := range s.subs.All() {
		flt, err := topic.ParseFilter(sub.Filter, s.m.opt.Topics)
		if err == nil && flt.Kind == topic.Share {
			if s.shares == nil {
				s.shares = map[string]*feed.Feed{}
			}
			if s.shares[sub.Filter], err = s.m.shares.Hold(flt.Group, flt.Filter, true, true); err != nil {
				return err
			}
			continue
		}
		if err == nil && solo(flt, sub) {
			if flt.Kind == topic.Exclusive {
				if err := s.m.exclusive.take(flt.Filter, s.id); err != nil {
					return err
				}
			}
			if _, err := s.openSolo(flt, sub, feed.Now, false); err != nil {
				return err
			}
			continue
		}
		if err != nil || flt.Kind != topic.Plain {
			continue // the limits were lowered since, or a queue, whose feed is there anyway
		}
		filters = append(filters, feed.Filter{
			Filter: sub.Filter, From: sub.From, QoS: sub.QoS, ID: sub.ID, NoLocal: sub.NoLocal, RetainAsPublished: sub.RetainAsPublished,
		})
	}
	if len(filters) == 0 {
		return nil
	}
	defer s.m.log.Use().Done()
	local, err := s.local(slices.ContainsFunc(filters, func(flt feed.Filter) bool { return flt.NoLocal }))
	if err != nil {
		return err
	}
	s.own, err = s.m.hub.Open(feedID(s.id), feed.Options{Durable: true, Local: local, Start: feed.Now}, filters...)
	return err
}
