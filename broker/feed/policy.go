package feed

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// Policy says how a queue deals with messages that its consumers do not get done.
type Policy struct {
	MaxInFlight   int             // unacknowledged messages of one consumer; 0 leaves it to the consumer's window
	MaxDeliveries int             // a message refused so often goes to DeadLetter; 0 means 5, negative never
	RetryDelay    []time.Duration // after the first, second, … refusal, the last for all that follow; nil means 1, 2, 4, 8 s
	DeadLetter    string          // queue; "" means <name>-dead
	Ordered       bool            // a refused message holds back the later ones of its key; one of a key is with a consumer at a time
	Exclusive     bool            // one consumer at a time, the one that attached first; the others stand by
	AckTimeout    time.Duration   // a consumer that keeps a message for so long is disconnected; 0 lets it
	Limits        Limits
}

// faultPause is how long refused items wait after a panic.
const faultPause = time.Second

var defaultRetry = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}

// Delays are how long a message waits after its first, second, … refusal.
func (p *Policy) Delays() []time.Duration {
	if len(p.RetryDelay) == 0 {
		return defaultRetry
	}
	return p.RetryDelay
}

// delay is how long a message waits after its n-th refusal.
func (p *Policy) delay(n int) time.Duration {
	levels := p.Delays()
	return levels[min(n, len(levels))-1]
}

// Deliveries is how often a message may be refused before it goes to the dead letters, 0 for any number of times.
func (p *Policy) Deliveries() int {
	if p.MaxDeliveries == 0 {
		return 5
	}
	return max(0, p.MaxDeliveries)
}

// deadly tells whether the n-th refusal is the last.
func (p *Policy) deadly(n int) bool {
	limit := p.Deliveries()
	return limit > 0 && n >= limit
}

// deadSuffix ends the names of queues for dead letters.
const deadSuffix = "-dead"

func isDead(queue string) bool { return strings.HasSuffix(queue, deadSuffix) }

// DeadLetters returns the name of the queue that takes a queue's dead letters.
func (p *Policy) DeadLetters(queue string) string {
	if p.DeadLetter != "" {
		return p.DeadLetter
	}
	return queue + deadSuffix
}

// try is what is known of a message that was refused.
type try struct {
	n   int
	due int64 // when it is sent again, µs since 1970
}

// waits tells whether it is not to be sent again yet. One that was refused while the clock was far ahead does not wait until the clock is there.
func (t try) waits(now time.Time) bool {
	return t.due > now.UnixMicro() && !store.WasAhead(time.UnixMicro(t.due), now)
}

// grave is a message on its way to the dead letters.
type grave struct {
	seq    uint64
	reason string
}

// What Refuse's delay may be instead of one.
const (
	DefaultDelay = -1 // what the policy says
	Never        = -2 // it is not to come again: to the dead letters with it, however often it was refused; in those it is DefaultDelay
)

// Refuse says that the member cannot deal with an item: it comes again after a while, to whichever member has its key
// then, or goes to the dead letters.
func (m *Member) Refuse(seq uint64, reason string, delay time.Duration) {
	f := m.feed
	f.mu.Lock()
	dead := f.refuse(m, seq, reason, delay)
	f.mu.Unlock()
	if dead {
		f.bury()
	}
}

// refuse moves a slot from sent to refused and reports whether bury is to be called; f.mu is held.
func (f *Feed) refuse(m *Member, seq uint64, reason string, delay time.Duration) (dead bool) {
	if m.gone || !f.win.has(seq) {
		return false
	}
	s := f.win.at(seq)
	if s.state != sent || s.m != m {
		return false
	}
	f.stats.Redelivered++
	t := f.tries[s.Offset]
	t.n++
	dead = delay == Never && !f.last() || f.policy.deadly(t.n)
	if delay < 0 {
		delay = f.policy.delay(t.n)
	}
	t.due = f.hub.log.Now().Add(delay).UnixMicro()
	if f.tries == nil {
		f.tries = map[uint64]try{}
	}
	f.tries[s.Offset] = t
	k := s.key
	m.sent--
	s.state, s.m, s.key = refused, nil, nil
	if dead {
		f.graves = append(f.graves, grave{seq, reason})
	} else {
		f.arm(t.due)
	}
	if k != nil {
		k.sent--
		if f.policy.Ordered && !dead {
			k.blocked++
			s.blocks = k
		}
		f.release(k)
	}
	f.touch()
	return dead
}

// last tells whether there is nowhere to go for messages of the queue: it has dead letters, and nobody has said what is to become of them (see
// basePolicy). Giving one up would else make a queue of dead letters of dead letters, and so on. f.mu is held.
func (f *Feed) last() bool {
	return isDead(f.name) && f.policy.MaxDeliveries < 0 && f.policy.DeadLetter == ""
}

// lookAgain is how soon the clock is looked at again: timers do not follow it when it is set.
const lookAgain = time.Second

// arm sees to it that retry runs at a time; f.mu is held.
func (f *Feed) arm(due int64) {
	if f.retryAt != 0 && f.retryAt <= due {
		return
	}
	f.retryAt = due
	wait := min(max(0, time.UnixMicro(due).Sub(f.hub.log.Now())), lookAgain)
	if f.timer == nil {
		f.timer = time.AfterFunc(wait, f.retry)
		return
	}
	f.timer.Reset(wait)
}

// retry gives refused items that are due to members again.
func (f *Feed) retry() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retryAt = 0
	defer func() {
		if p := recover(); p != nil {
			f.hub.fault("panic while refused messages were given out again, trying again", p, "queue", f.name)
			f.arm(f.hub.log.Now().Add(faultPause).UnixMicro())
		}
	}()
	if f.closed || len(f.members) == 0 {
		return // those that join read them again
	}
	now := f.hub.log.Now()
	var next int64
	for seq := f.win.head; seq < f.win.tail; seq++ {
		s := f.win.at(seq)
		if s.state != refused || f.buried(seq) {
			continue
		}
		if t := f.tries[s.Offset]; t.waits(now) {
			if next == 0 || t.due < next {
				next = t.due
			}
			continue
		}
		f.again(s)
	}
	if next != 0 {
		f.arm(next)
	}
	f.wake()
}

// again makes a refused slot a waiting one; f.mu is held.
func (f *Feed) again(s *slot) {
	s.state = waiting
	f.waiting++
	k := s.blocks
	if k == nil {
		f.assign(s)
		return
	}
	// It goes before everything that its key held back.
	s.blocks = nil
	k.blocked--
	if k.moving && k.sent == 0 {
		k.moving, k.m = false, f.pick(k.hash)
	}
	f.keys[k.hash] = k
	s.key, s.m = k, k.m
	k.waiting++
	if k.m != nil {
		k.m.todo.push(s.Seq)
	}
}

// buried tells whether a slot is on its way to the dead letters; f.mu is held.
func (f *Feed) buried(seq uint64) bool {
	return slices.ContainsFunc(f.graves, func(g grave) bool { return g.seq == seq })
}

// bury moves what was refused too often to the dead letters: there and gone from here in one append.
func (f *Feed) bury() {
	defer f.hub.log.Use().Done()
	name, err := f.deadLetters()
	if err == nil {
		err = f.buryIn(name)
	}
	if err == nil {
		return
	}
	f.hub.logger.Error("moving a message to the dead letters failed, trying again", "queue", f.name, "err", err)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.graves { // they are refused once more in a while
		if f.win.has(g.seq) && f.win.at(g.seq).state == refused {
			s := f.win.at(g.seq)
			t := f.tries[s.Offset]
			t.n, t.due = t.n-1, f.hub.log.Now().Add(time.Second).UnixMicro()
			f.tries[s.Offset] = t
			f.arm(t.due)
		}
	}
	f.graves = nil
}

// deadLetters returns the topic of the queue for dead letters, which it creates.
func (f *Feed) deadLetters() (uint32, error) {
	f.mu.Lock()
	name := f.policy.DeadLetters(f.name)
	f.mu.Unlock()
	if _, err := f.queues.Create(name); err != nil {
		return 0, err
	}
	return f.hub.log.TopicID(topic.QueuePrefix + name)
}

func (f *Feed) buryIn(topicID uint32) error {
	h := f.hub
	h.saver.order.Lock()
	defer h.saver.order.Unlock()
	f.mu.Lock()
	var msgs []store.Message
	var recs []store.Record
	var slots []uint64
	for _, g := range f.graves {
		if !f.win.has(g.seq) || f.win.at(g.seq).state != refused {
			continue // the feed rested meanwhile
		}
		s := f.win.at(g.seq)
		msgs, recs = append(msgs, f.deadLetter(s, g.reason, topicID)), append(recs, s.Record)
		slots = append(slots, g.seq)
	}
	mut := f.asIfSettled(slots, refused)
	f.mu.Unlock()
	if len(msgs) == 0 {
		return nil
	}
	h.relayAll(recs, msgs)
	if err := h.log.Append(msgs, []store.Mutation{mut}, true, nil); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, seq := range slots {
		if !f.win.has(seq) {
			continue // the queue was deleted meanwhile
		}
		if s := f.win.at(seq); s.state == refused {
			f.settle(s)
		}
	}
	f.graves = slices.DeleteFunc(f.graves, func(g grave) bool { return slices.Contains(slots, g.seq) })
	f.stats.Dead += uint64(len(slots))
	f.win.trim()
	f.resume()
	return nil
}

// asIfSettled returns the cursor as it is once some slots, which are all in one state, are settled; f.mu is held.
func (f *Feed) asIfSettled(seqs []uint64, was state) store.Mutation {
	extra, past := f.extra, f.past
	for _, seq := range seqs {
		s := f.win.at(seq)
		s.state = settled
		f.held--
		f.extra = slices.DeleteFunc(slices.Clone(f.extra), func(off uint64) bool { return off == s.Offset })
	}
	mut := f.mutation()
	for _, seq := range seqs {
		f.win.at(seq).state = was
		f.held++
	}
	f.extra, f.past = extra, past // should the append fail, all is as it was
	return mut
}

// deadLetter returns the message that a dead letter is: the original with what became of it; f.mu is held.
func (f *Feed) deadLetter(s *slot, reason string, topicID uint32) store.Message {
	props := slices.Clone(s.Props)
	add := func(name, value string) {
		if _, there := packet.FindUser(s.Props, name); !there {
			props = packet.AppendUser(props, name, value)
		}
	}
	add(wire.Topic, f.hub.log.TopicName(s.Topic))
	add(wire.Producer, f.hub.log.ClientName(s.Client))
	props = packet.AppendUser(props, wire.Queue, f.name)
	props = packet.AppendUser(props, wire.Redelivered, strconv.Itoa(f.tries[s.Offset].n))
	props = packet.AppendUser(props, wire.OriginOffset, strconv.FormatUint(s.Offset, 10))
	if reason != "" {
		props = packet.AppendUser(props, wire.Reason, reason)
	}
	flags := s.Flags &^ (record.FlagExpiry | record.FlagRetain) // dead letters stay until somebody looks
	return store.Message{Topic: topicID, Client: s.Client, Flags: flags.WithQoS(max(1, flags.QoS())), Props: props, Payload: s.Payload}
}

// Overflow makes of a message that a full queue cannot take one for the queue's dead letters. Overflowed is for when it is stored. The caller has a
// store.Use.
func (f *Feed) Overflow(msg *store.Message) error {
	to, err := f.deadLetters()
	if err != nil {
		return err
	}
	msg.Props = slices.Clone(msg.Props)
	for _, p := range []struct{ name, value string }{
		{wire.Topic, f.hub.log.TopicName(msg.Topic)},
		{wire.Producer, f.hub.log.ClientName(msg.Client)},
		{wire.Queue, f.name},
		{wire.Reason, "the queue is full"},
	} {
		if _, there := packet.FindUser(msg.Props, p.name); !there {
			msg.Props = packet.AppendUser(msg.Props, p.name, p.value)
		}
	}
	msg.Topic = to
	msg.Flags &^= record.FlagExpiry | record.FlagRetain | record.FlagTransient
	return nil
}

// Overflowed counts messages that Overflow has changed and that are stored.
func (f *Feed) Overflowed(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Dead += uint64(n)
}

// notified is implemented by a Waker that wants to know what becomes of its member. The methods must not block or call back.
type notified interface {
	Stuck()    // it keeps an item for longer than the queue allows
	Orphaned() // the queue was deleted
}

// checkAcks tells the members that keep an item for longer than the policy allows.
func (f *Feed) checkAcks(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.policy.AckTimeout <= 0 {
		return
	}
	limit := now.Sub(f.hub.began) - f.policy.AckTimeout
	var told []*Member
	for seq := f.win.head; seq < f.win.tail; seq++ {
		s := f.win.at(seq)
		if s.state != sent || s.sentAt > limit || slices.Contains(told, s.m) {
			continue
		}
		told = append(told, s.m)
		if c, ok := s.m.w.(notified); ok {
			c.Stuck()
		}
	}
}
