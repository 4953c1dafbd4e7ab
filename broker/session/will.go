package session

import (
	"encoding/binary"
	"fmt"
	"slices"
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
	if err := s.m.publishWill(s.id, s.durable, w, true); err != nil {
		s.m.logger.Error("publishing a Will failed, trying again", "client", s.id, "topic", w.topic, "err", err)
		s.m.orphan(s.id, w)
	}
}

// publishWill publishes a Will; last: the client has left no other since, so there is none in the state any more.
func (m *Manager) publishWill(client string, durable bool, w *will, last bool) error {
	if !m.opt.Auth.Rules().For(w.user, client).Publish(w.topic) { // the rules have changed since the CONNECT
		m.denied.Add(1)
		m.logger.Warn("a Will may not be published any more and is void", "client", client, "topic", w.topic)
		if !last {
			return nil
		}
		return m.log.Append(nil, []store.Mutation{record.Delete(record.BucketWills, []byte(client))}, true, nil)
	}
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
	var muts []store.Mutation
	if last {
		muts = append(muts, record.Delete(record.BucketWills, []byte(client)))
	}
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
func (w *will) mutation(client string) store.Mutation {
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
	return record.Put(record.BucketWills, []byte(client), append(b, w.body...))
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
		w, perr := parseWill(v)
		if perr != nil {
			bad = fmt.Errorf("will of client %q: %w", k, perr)
			return false
		}
		s := m.sessions[string(k)]
		if s == nil { // a session that ended with its connection
			m.orphan(string(k), w)
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
	client string
	will   *will
}

func (m *Manager) orphan(client string, w *will) {
	m.orphansMu.Lock()
	defer m.orphansMu.Unlock()
	m.orphans = append(m.orphans, orphan{client, w})
}

// orphanedWills publishes them, those that it can.
func (m *Manager) orphanedWills() {
	m.orphansMu.Lock()
	n := len(m.orphans)
	m.orphansMu.Unlock()
	for range n {
		m.mu.Lock()
		if o, ok := m.takeOrphan(func(orphan) bool { return true }); ok {
			m.publishOrphan(o)
		}
		m.mu.Unlock()
	}
}

// publishOrphansOf publishes those of a client that comes with a new Will, which takes their place in the state: a crash would lose them. mu is held.
func (m *Manager) publishOrphansOf(client string) {
	var own []orphan
	for {
		o, ok := m.takeOrphan(func(o orphan) bool { return o.client == client })
		if !ok {
			break
		}
		own = append(own, o)
	}
	for _, o := range own {
		m.publishOrphan(o)
	}
}

// takeOrphan takes the first that is wanted. mu is held until it has been published or is back, so that nobody misses it.
func (m *Manager) takeOrphan(want func(orphan) bool) (o orphan, ok bool) {
	m.orphansMu.Lock()
	defer m.orphansMu.Unlock()
	i := slices.IndexFunc(m.orphans, want)
	if i < 0 {
		return orphan{}, false
	}
	o = m.orphans[i]
	m.orphans = slices.Delete(m.orphans, i, i+1)
	return o, true
}

// publishOrphan publishes one, or puts it back. mu is held.
func (m *Manager) publishOrphan(o orphan) {
	last := true
	if s := m.sessions[o.client]; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		last = s.will == nil
	}
	if err := m.publishWill(o.client, false, o.will, last); err != nil {
		m.logger.Debug("publishing a Will failed, trying again", "client", o.client, "topic", o.will.topic, "err", err)
		m.orphan(o.client, o.will)
	}
}
