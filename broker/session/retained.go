package session

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// retainer knows which topics have a retained message; the messages themselves are in the state. What changes a retained
// message is appended with mu held, so that the names change in the order in which the state does.
type retainer struct {
	mu    sync.Mutex
	names topic.Names[int64] // when the message expires, µs since 1970; 0 for never
	due   expiries
}

// retain is one change of a retained message.
type retain struct {
	topic   string
	gone    bool
	expires int64
	mut     store.Mutation
}

// newRetain returns what a publish with RETAIN set does. An empty payload takes the message away. [MQTT-3.3.1-5] [MQTT-3.3.1-6]
func newRetain(name string, msg *store.Message, at time.Time) retain {
	r := retain{topic: name, gone: len(msg.Payload) == 0}
	if r.gone {
		r.mut = record.Delete(record.BucketRetained, []byte(name))
		return r
	}
	now := at.UnixMicro()
	if msg.Flags.Has(record.FlagExpiry) {
		r.expires = now + int64(msg.Expiry)*1e6
	}
	r.mut = record.Put(record.BucketRetained, []byte(name), appendRetained(nil, now, msg))
	return r
}

// Retained returns the change by which a stored message that was published with RETAIN is the retained one of its topic, false if no message is retained there.
func Retained(r *store.Record, name string) (store.Mutation, bool) {
	if _, queue := topic.QueueOf(name); queue || !r.Flags.Has(record.FlagRetain) {
		return store.Mutation{}, false
	}
	m := store.Message{Topic: r.Topic, Client: r.Client, Expiry: r.Expiry, Flags: r.Flags, Props: r.Props, Payload: r.Payload}
	return newRetain(name, &m, time.UnixMicro(r.Time)).mut, true
}

// append is store.Append for messages some of which are retained.
func (r *retainer) append(log *store.Store, msgs []store.Message, muts []store.Mutation, rs []retain, durable bool, done store.Completion) error {
	if len(rs) == 0 {
		return log.Append(msgs, muts, durable, done)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := log.Append(msgs, muts, durable, done); err != nil {
		return err
	}
	for _, c := range rs {
		if c.gone {
			r.names.Delete(c.topic)
		} else {
			r.set(c.topic, c.expires)
		}
	}
	return nil
}

// set notes a retained message and when it expires, if it does; mu is held.
func (r *retainer) set(name string, expires int64) {
	r.names.Set(name, expires)
	if expires == 0 {
		return
	}
	heap.Push(&r.due, expiry{expires, name})
	if len(r.due) > 2*r.names.Len()+1024 { // most are of messages that were replaced
		r.due = slices.DeleteFunc(r.due, func(e expiry) bool {
			at, ok := r.names.Get(e.name)
			return !ok || at != e.at
		})
		heap.Init(&r.due)
	}
}

// match returns the topics that filter matches and come after the given one, sorted.
func (r *retainer) match(filter, after string) []string {
	var names []string
	r.mu.Lock()
	r.names.Match(filter, func(name string, _ int64) bool {
		if name > after {
			names = append(names, name)
		}
		return true
	})
	r.mu.Unlock()
	slices.Sort(names)
	return names
}

// len returns how many retained messages there are.
func (r *retainer) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names.Len()
}

// expire takes expired messages away, whether anybody asks for them or not.
func (r *retainer) expire(m *Manager, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var muts []store.Mutation
	for len(r.due) > 0 && r.due[0].at <= now.UnixMicro() && !m.log.Doubtful() {
		e := heap.Pop(&r.due).(expiry)
		if at, ok := r.names.Get(e.name); ok && at == e.at { // else it was replaced
			r.names.Delete(e.name)
			muts = append(muts, record.Delete(record.BucketRetained, []byte(e.name)))
		}
	}
	if len(muts) == 0 {
		return
	}
	if err := m.log.Append(nil, muts, false, nil); err != nil {
		m.logger.Error("deleting expired retained messages failed, they will expire again after a restart", "err", err)
	}
}

// load reads the names from the state.
func (r *retainer) load(log *store.Store) error {
	var bad error
	err := log.Range(record.BucketRetained, nil, func(k, v []byte) bool {
		rec, perr := parseRetained(v)
		if perr != nil {
			bad = fmt.Errorf("topic %q: %w", k, perr)
			return false
		}
		expires := int64(0)
		if rec.Flags.Has(record.FlagExpiry) {
			expires = rec.Time + int64(rec.Expiry)*1e6
		}
		r.set(string(k), expires)
		return true
	})
	if err == nil {
		err = bad
	}
	return err
}

// expiry is when a topic's retained message ends.
type expiry struct {
	at   int64
	name string
}

// expiries is a heap, the earliest first.
type expiries []expiry

func (e expiries) Len() int           { return len(e) }
func (e expiries) Less(i, j int) bool { return e[i].at < e[j].at }
func (e expiries) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }

// Push implements heap.Interface.
func (e *expiries) Push(x any) { *e = append(*e, x.(expiry)) }

// Pop implements heap.Interface.
func (e *expiries) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

const retainedVersion = 1

// appendRetained encodes: version u8, flags u16, time i64 (µs since 1970), expiry u32, client u32, props length uvarint, props, payload.
func appendRetained(dst []byte, now int64, msg *store.Message) []byte {
	dst = append(dst, retainedVersion)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(msg.Flags))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(now))
	dst = binary.LittleEndian.AppendUint32(dst, msg.Expiry)
	dst = binary.LittleEndian.AppendUint32(dst, msg.Client)
	dst = binary.AppendUvarint(dst, uint64(len(msg.Props)))
	dst = append(dst, msg.Props...)
	return append(dst, msg.Payload...)
}

// setRetainedTime changes the time in what appendRetained has encoded.
func setRetainedTime(b []byte, micros int64) []byte {
	binary.LittleEndian.PutUint64(b[3:], uint64(micros))
	return b
}

func parseRetained(b []byte) (store.Record, error) {
	b, err := checkVersion(b, retainedVersion)
	if err != nil {
		return store.Record{}, err
	}
	if len(b) < 19 {
		return store.Record{}, errDamaged
	}
	r := store.Record{
		Flags:  record.Flags(binary.LittleEndian.Uint16(b)),
		Time:   int64(binary.LittleEndian.Uint64(b[2:])),
		Expiry: binary.LittleEndian.Uint32(b[10:]),
		Client: binary.LittleEndian.Uint32(b[14:]),
	}
	n, k := binary.Uvarint(b[18:])
	if k <= 0 || n > uint64(len(b)-18-k) {
		return store.Record{}, errDamaged
	}
	b = b[18+k:]
	r.Props, r.Payload = b[:n:n], b[n:]
	return r, nil
}

// retainedSource sends the retained messages of one subscription, sorted by topic, as the window allows. What has been done with is
// known by its topic alone, so that it goes on where it was after a reconnect or a restart.
type retainedSource struct {
	m      *Manager
	w      feed.Waker
	sub    subscription
	filter string // what it matches
	from   uint64 // the log must have been dispatched up to here: then the state has what the subscription does not bring

	mu     sync.Mutex
	asked  bool // to be woken
	built  bool
	names  []string
	next   int     // of names to be taken
	done   int     // names below are settled
	open   []int64 // of names from done on: when the message was stored that was taken and is not settled, 0 for none
	closed bool
}

// retains tells whether there is a retained message for a filter. Asked after the feed has the filter, it may be relied upon: what is
// retained later the feed delivers.
func (m *Manager) retains(filter string) bool {
	if topic.System(filter) {
		return true
	}
	any := false
	m.retained.mu.Lock() // whoever retains a message holds it from before there is an offset until it is in names
	defer m.retained.mu.Unlock()
	m.retained.names.Match(filter, func(string, int64) bool {
		any = true
		return false
	})
	return any
}

// retainedPrefix begins the key of a retainedSource.
const retainedPrefix = "r/"

// sendRetained starts sending the retained messages of a subscription, or goes on with it; mu is held.
func (s *Session) sendRetained(sub subscription, flt topic.Filter, from uint64) {
	r := &retainedSource{m: s.m, w: s.link, sub: sub, filter: flt.Filter, from: from}
	m := &membership{source: r, key: retainedPrefix + sub.Filter, retained: r, envelope: flt.V5}
	m.serve(sub)
	m.rap = true // they are sent with RETAIN [MQTT-3.3.1-8]
	s.members = append(s.members, m)
}

// stopRetained ends the sending for a subscription that is no more, or begins anew: then what was sent and not acknowledged is sent anew
// as well, else it goes on.
func (s *Session) stopRetained(filter string, goOn bool, c *change) {
	c.muts = s.forgetFlights(c.muts, s.resend.drop(retainedPrefix+filter))
	for _, m := range s.members {
		if m.retained != nil && m.filter == filter {
			m.Leave()
			s.remove(m, goOn, c)
			return
		}
	}
}

// retainedProgress appends how far the sending of retained messages has come to changes that must be consistent with it, and
// ends what is complete; mu is held.
func (s *Session) retainedProgress(muts []store.Mutation) []store.Mutation {
	for _, m := range s.members {
		if m.retained == nil {
			continue
		}
		sub, ok := s.subs.Get(m.filter)
		if !ok {
			continue
		}
		after, complete := m.retained.progress()
		if !complete && (len(muts) == 0 || sub.After == after) {
			continue
		}
		if sub.After = after; complete {
			sub.Retained, sub.After = false, ""
			s.members = slices.DeleteFunc(slices.Clone(s.members), func(x *membership) bool { return x == m })
			muts = s.forgetFlights(muts, s.resend.drop(m.key)) // of messages that are retained no more
		}
		s.subs.Set(sub)
		if s.durable {
			muts = append(muts, s.saveSub(sub))
		}
	}
	return muts
}

// finishRetained ends the sending of retained messages that is complete without an acknowledgement.
func (s *Session) finishRetained(l *Link) (gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l {
		return false
	}
	before := len(s.members)
	if muts := s.retainedProgress(nil); len(muts) > 0 {
		if err := s.m.hub.Save(muts, nil); err != nil {
			s.m.logger.Debug("saving the progress of retained messages failed", "client", s.id, "err", err) // they are sent again after a restart
		}
	}
	return len(s.members) < before
}

// Take implements source.
func (r *retainedSource) Take(dst []feed.Item, maxItems, maxBytes int) []feed.Item {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || !r.ready() {
		return dst
	}
	now := r.m.log.Now().UnixMicro()
	for n := len(dst); r.next < len(r.names) && len(dst)-n < maxItems && maxBytes > 0; r.next++ {
		it, ok := r.item(r.names[r.next], now)
		open := int64(0)
		if ok && it.QoS > 0 {
			open = it.Time
		}
		if r.open = append(r.open, open); !ok {
			continue
		}
		it.Seq = uint64(r.next)
		dst = append(dst, it)
		maxBytes -= len(it.Props) + len(it.Payload)
	}
	r.advance()
	return dst
}

// ready finds the names once the log is far enough; before, it has the link woken then. mu is held.
func (r *retainedSource) ready() bool {
	if r.built {
		return true
	}
	w := r.w
	if r.asked {
		w = nil
	}
	r.asked = true
	if r.m.hub.Reached(r.from, w) {
		r.built = true
		if !r.m.opt.NoRetain {
			r.names = r.m.retained.match(r.filter, r.sub.After)
		}
		if r.m.opt.System != nil && topic.System(r.filter) { // nobody can publish there
			r.names = slices.DeleteFunc(r.m.opt.System.Match(r.filter), func(name string) bool { return name <= r.sub.After })
		}
	}
	return r.built
}

// item reads one message; false if it is gone or expired.
func (r *retainedSource) item(name string, now int64) (feed.Item, bool) {
	if r.m.opt.System != nil && topic.System(name) {
		return r.systemItem(name, now)
	}
	v, ok, err := r.m.log.Get(record.BucketRetained, []byte(name))
	if err != nil {
		r.m.logger.Error("reading a retained message failed", "topic", name, "err", err)
		return feed.Item{}, false
	}
	if !ok {
		return feed.Item{}, false
	}
	rec, err := parseRetained(v)
	if err != nil {
		r.m.logger.Error("reading a retained message failed", "topic", name, "err", err)
		return feed.Item{}, false
	}
	if rec.Flags.Has(record.FlagExpiry) && now >= rec.Time+int64(rec.Expiry)*1e6 && !r.m.log.Doubtful() {
		return feed.Item{}, false
	}
	if rec.Topic, err = r.m.log.TopicID(name); err != nil {
		return feed.Item{}, false // the store is closing
	}
	rec.Offset = nameHash(name)
	rec.Flags |= record.FlagRetain
	return feed.Item{Record: rec, Match: &feed.Match{RetainAsPublished: true}, QoS: min(rec.Flags.QoS(), r.sub.QoS)}, true
}

// nameHash stands for the offset, which a retained message has not: it names the delivery across connections.
func nameHash(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return h
}

// Settle implements source.
func (r *retainedSource) Settle(seqs ...uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, seq := range seqs {
		if i := int(seq) - r.done; i >= 0 && i < len(r.open) {
			r.open[i] = 0
		}
	}
	r.advance()
}

// advance moves done past what is settled; mu is held.
func (r *retainedSource) advance() {
	n := 0
	for n < len(r.open) && r.open[n] == 0 {
		n++
	}
	r.open = r.open[n:]
	r.done += n
}

// sent returns the message that was sent and is not settled, as it is in the state, and its topic; false if another one has taken its place
// since.
func (r *retainedSource) sent(seq uint64) (name string, v []byte, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := int(seq) - r.done
	if i < 0 || i >= len(r.open) || r.open[i] == 0 {
		return "", nil, false
	}
	name = r.names[seq]
	v, ok, err := r.m.log.Get(record.BucketRetained, []byte(name))
	if err != nil || !ok {
		return "", nil, false
	}
	rec, err := parseRetained(v)
	return name, v, err == nil && rec.Time == r.open[i]
}

// progress returns the last topic that is done with, with all before it, and whether that is all.
func (r *retainedSource) progress() (after string, complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == 0 {
		return r.sub.After, r.built && len(r.names) == 0
	}
	return r.names[r.done-1], r.done == len(r.names)
}

// exhausted tells whether nothing is left to be taken.
func (r *retainedSource) exhausted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed || r.built && r.next >= len(r.names) || !r.ready()
}

// SetQoS implements source: a subscription that changes begins anew.
func (r *retainedSource) SetQoS(byte) {}

// Leave implements source.
func (r *retainedSource) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// System has the broker's own statistics, which subscribers of filters under $SYS get as retained messages.
type System interface {
	Match(filter string) []string // the topics that a filter matches, sorted
	Value(topic string) (string, bool)
}

// systemItem makes a retained message of a statistic.
func (r *retainedSource) systemItem(name string, now int64) (feed.Item, bool) {
	v, ok := r.m.opt.System.Value(name)
	if !ok {
		return feed.Item{}, false
	}
	id, err := r.m.log.TopicID(name)
	if err != nil {
		return feed.Item{}, false // the store is closing
	}
	rec := store.Record{Offset: nameHash(name), Time: now, Topic: id, Flags: record.FlagRetain, Payload: []byte(v)}
	return feed.Item{Record: rec, Match: &feed.Match{RetainAsPublished: true}}, true
}
