package session

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// will is what is published for a client whose connection ends without a goodbye. It is in the state from the CONNECT on, so
// that it is published even if the broker ends first.
type will struct {
	user   string // whose it is: it must be allowed to publish it when it is published
	topic  string
	flags  record.Flags
	expiry uint32
	delay  uint32 // seconds
	props  []byte
	body   []byte
	due    time.Time // zero while connected
}

// newWill returns the Will of a CONNECT of a user that came from an address.
func newWill(w *packet.Will, user, addr string) *will {
	x := &will{user: user, topic: w.Topic, expiry: w.Expiry, delay: w.Delay, props: w.Props, body: w.Payload}
	x.flags = x.flags.WithQoS(w.QoS)
	if w.Retain {
		x.flags |= record.FlagRetain
	}
	if w.HasExpiry {
		x.flags |= record.FlagExpiry
	}
	if w.UTF8 {
		x.flags |= record.FlagUTF8
	}
	if _, queue := topic.QueueOf(w.Topic); queue {
		x.props = withHost(x.props, addr)
	}
	return x
}

// willOnReturn deals with the Will of an earlier connection when its client comes back; over: its session ends with that. mu is held.
func (s *Session) willOnReturn(taken, over bool) {
	if s.will == nil {
		return
	}
	// Its delay may be over although nobody has looked: this is how a Will without one is found after a crash. [MQTT-3.1.2-8]
	late := !s.will.due.IsZero() && !s.m.log.Now().Before(s.will.due)
	if over || late || taken && s.will.delay == 0 {
		s.fireWill()
		return
	}
	s.will = nil // in time: [MQTT-3.1.3-9]
	s.saveWill(nil)
}

// willOnClose deals with the Will when the connection has ended. mu is held.
func (s *Session) willOnClose() {
	if s.will == nil {
		return
	}
	delay := min(s.will.delay, s.expiry) // the session's end is the latest: 3.1.3.2.2
	if delay == 0 {
		s.fireWill()
		return
	}
	s.will.due = s.offline.Add(time.Duration(delay) * time.Second)
	s.saveWill(nil)
}

// saveWill saves the Will or that there is none. done may be nil.
func (s *Session) saveWill(done store.Completion) {
	mut := record.Delete(record.BucketWills, []byte(s.id))
	if s.will != nil {
		mut = s.will.mutation(s.id)
	}
	if err := s.m.log.Append(nil, []store.Mutation{mut}, true, done); err != nil {
		if done != nil {
			done.Committed(0, err)
		}
		s.m.logger.Error("saving a Will failed", "client", s.id, "err", err)
	}
}

// fireWill publishes the Will, if there is one: stored like any publish, and gone from the state in the same group. mu is held.
func (s *Session) fireWill() {
	w := s.will
	if w == nil {
		return
	}
	s.will = nil
	if err := s.m.publishWill(s.id, s.id, s.durable, w); err != nil {
		s.m.logger.Error("publishing a Will failed, trying again", "client", s.id, "topic", w.topic, "err", err)
		s.m.orphan(s.id, s.id, w)
	}
}

// publishWill publishes a Will that the state has under a key, and takes it from there.
func (m *Manager) publishWill(key, client string, durable bool, w *will) error {
	muts := []store.Mutation{record.Delete(record.BucketWills, []byte(key))}
	if !m.opt.Auth.Rules().For(w.user, client).Publish(w.topic) { // the rules have changed since the CONNECT
		m.denied.Add(1)
		m.logger.Warn("a Will may not be published any more and is void", "client", client, "topic", w.topic)
		return m.log.Append(nil, muts, true, nil)
	}
	defer m.log.Use().Done()
	id, err := m.log.ClientID(client, durable)
	if err != nil {
		return err
	}
	t, err := m.log.TopicID(w.topic)
	if err != nil {
		return err
	}
	msg := store.Message{Topic: t, Client: id, Flags: w.flags, Expiry: w.expiry, Props: w.props, Payload: w.body}
	if m.transient(w.flags.QoS(), m.excluded(w.topic)) {
		msg.Flags |= record.FlagTransient
	}
	relay(&msg)
	full := m.overflow(w.topic, &msg)
	var rs []retain
	if _, queue := topic.QueueOf(w.topic); w.flags.Has(record.FlagRetain) && !queue { // [MQTT-3.1.2-14] [MQTT-3.1.2-15]
		r := newRetain(w.topic, &msg, m.log.Now())
		rs, muts = append(rs, r), append(muts, r.mut)
	}
	if err := m.retained.append(m.log, []store.Message{msg}, muts, rs, true, nil); err != nil {
		return err
	}
	if full != nil {
		full.Overflowed(1)
		m.logger.Warn("queue is full, a Will went to its dead letters", "queue", full.Name(), "client", client)
	}
	return nil
}

// willVersion 1 had no user.
const willVersion = 2

// mutation saves the Will: version u8, flags u16, expiry u32, delay u32, due i64 (ms since 1970, 0 while connected), topic, props and user, each
// after its length as uvarint, payload.
func (w *will) mutation(key string) store.Mutation {
	b := []byte{willVersion}
	b = binary.LittleEndian.AppendUint16(b, uint16(w.flags))
	b = binary.LittleEndian.AppendUint32(b, w.expiry)
	b = binary.LittleEndian.AppendUint32(b, w.delay)
	due := int64(0)
	if !w.due.IsZero() {
		due = w.due.UnixMilli()
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(due))
	b = binary.AppendUvarint(b, uint64(len(w.topic)))
	b = append(b, w.topic...)
	b = binary.AppendUvarint(b, uint64(len(w.props)))
	b = append(b, w.props...)
	b = binary.AppendUvarint(b, uint64(len(w.user)))
	b = append(b, w.user...)
	return record.Put(record.BucketWills, []byte(key), append(b, w.body...))
}

func parseWill(b []byte) (*will, error) {
	version := byte(1)
	if len(b) > 0 && b[0] == willVersion {
		version = willVersion
	}
	b, err := checkVersion(b, version)
	if err != nil {
		return nil, err
	}
	if len(b) < 18 {
		return nil, errDamaged
	}
	w := &will{
		flags:  record.Flags(binary.LittleEndian.Uint16(b)),
		expiry: binary.LittleEndian.Uint32(b[2:]),
		delay:  binary.LittleEndian.Uint32(b[6:]),
	}
	if ms := int64(binary.LittleEndian.Uint64(b[10:])); ms != 0 {
		w.due = time.UnixMilli(ms)
	}
	b = b[18:]
	parts := []func([]byte){func(p []byte) { w.topic = string(p) }, func(p []byte) { w.props = p }, func(p []byte) { w.user = string(p) }}
	if version == 1 {
		parts = parts[:2]
	}
	for _, to := range parts {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return nil, errDamaged
		}
		to(append([]byte(nil), b[k:k+int(n)]...))
		b = b[k+int(n):]
	}
	w.body = append([]byte(nil), b...)
	return w, nil
}

// loadWills reads the Wills of the state. The connections they belong to ended with the broker, at the latest at its last sign of life.
func (m *Manager) loadWills(alive time.Time) error {
	var bad error
	err := m.log.Range(record.BucketWills, nil, func(k, v []byte) bool {
		client, _, aside := strings.Cut(string(k), "\x00")
		w, perr := parseWill(v)
		if perr != nil {
			bad = fmt.Errorf("will of client %q: %w", client, perr)
			return false
		}
		s := m.sessions[client]
		if s == nil || aside { // a session that ended with its connection
			m.orphan(string(k), client, w)
			return true
		}
		if s.will = w; w.due.IsZero() {
			w.due = alive.Add(time.Duration(min(w.delay, s.expiry)) * time.Second)
		}
		return true
	})
	if err == nil {
		err = bad
	}
	return err
}

// orphan is a Will that is due and has no session: it ended with the broker, or the Will could not be published at its end.
type orphan struct {
	key    string // in the state: the client id, or if it has left another Will since, that, NUL and a number
	client string
	will   *will
}

// mostOrphans is how many Wills of one client wait to be published at most, while the disk is full. One that has so many cannot leave another.
const mostOrphans = 16

func (m *Manager) orphan(key, client string, w *will) {
	m.orphansMu.Lock()
	defer m.orphansMu.Unlock()
	m.orphans = append(m.orphans, &orphan{key, client, w})
}

// orphansOf returns those of one client.
func (m *Manager) orphansOf(client string) (own []*orphan) {
	m.orphansMu.Lock()
	defer m.orphansMu.Unlock()
	for _, o := range m.orphans {
		if o.client == client {
			own = append(own, o)
		}
	}
	return own
}

// orphanedWills publishes them, those that it can.
func (m *Manager) orphanedWills() {
	m.orphansMu.Lock()
	all := slices.Clone(m.orphans)
	m.orphansMu.Unlock()
	for _, o := range all {
		m.mu.Lock()
		m.publishOrphan(o)
		m.mu.Unlock()
	}
}

// makeWay is called when a client comes with a new Will, which takes the client's place in the state. An earlier one that waits for room on the disk is
// published now, or, if there still is none, moved to a key of its own by the mutations that are returned; once they are on their way, moved is called. mu is held.
func (m *Manager) makeWay(client string) (muts []store.Mutation, moved func()) {
	var first *orphan
	last := 0
	for _, o := range m.orphansOf(client) {
		if m.publishOrphan(o) {
			continue
		}
		if o.key == client {
			first = o
		} else if n, err := strconv.Atoi(o.key[len(client)+1:]); err == nil {
			last = max(last, n)
		}
	}
	if first == nil {
		return nil, func() {}
	}
	key := client + "\x00" + strconv.Itoa(last+1)
	return []store.Mutation{first.will.mutation(key)}, func() { first.key = key }
}

// publishOrphan publishes one, if nobody has yet, and reports whether it is gone. mu is held, so that nobody else does meanwhile.
func (m *Manager) publishOrphan(o *orphan) (gone bool) {
	m.orphansMu.Lock()
	there := slices.Contains(m.orphans, o)
	m.orphansMu.Unlock()
	if !there {
		return true
	}
	if err := m.publishWill(o.key, o.client, false, o.will); err != nil {
		m.logger.Debug("publishing a Will failed, trying again", "client", o.client, "topic", o.will.topic, "err", err)
		return false
	}
	m.orphansMu.Lock()
	defer m.orphansMu.Unlock()
	m.orphans = slices.DeleteFunc(m.orphans, func(other *orphan) bool { return other == o })
	return true
}
