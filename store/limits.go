package store

import (
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/sparse"
)

// TopicPolicy says how much of a topic is kept. Its limits hold for each topic by itself.
type TopicPolicy struct {
	MaxAge      time.Duration // older messages are dropped; 0 and below keep them
	MaxMessages int64         // 0 is no limit
	MaxBytes    int64         // of records, with their headers; 0 is no limit
	Reject      bool          // refuse what would be too much; otherwise the oldest are dropped
	Unprotected bool          // drop also what somebody has yet to consume (Options.ProtectTopic)
	Last        bool          // only the newest message can be read; no other limit but MaxAge counts then
}

// counts tells whether the policy needs to know how much there is.
func (p *TopicPolicy) counts() bool { return p != nil && (p.MaxAge > 0 || p.bounds()) }

// bounds tells whether there may be too much.
func (p *TopicPolicy) bounds() bool {
	return p != nil && !p.Last && (p.MaxMessages > 0 || p.MaxBytes > 0)
}

func (p *TopicPolicy) over(messages, bytes int64) bool {
	return !p.Last && (p.MaxMessages > 0 && messages > p.MaxMessages || p.MaxBytes > 0 && bytes > p.MaxBytes)
}

// TopicLimit is a topic with a policy, or one that had one. What was dropped of it is all that lies below its floor: the floor is what readers
// ask, and what is saved. The bytes go when their segment can go.
//
// How much there is, is what was stored less what was dropped. The flusher counts the one and saves it with its checkpoints, who drops
// counts the other and saves it with the floor; so after a crash the two fit, whichever saves of floors were lost: some messages are
// there again, and are dropped again.
type TopicLimit struct {
	s      *Store
	id     uint32
	policy *TopicPolicy  // nil: a topic that had one
	floor  atomic.Uint64 // what lies below is dropped, or superseded

	messages, bytes atomic.Int64 // there and on their way here, if policy.counts

	mu    sync.Mutex
	ahead []spot    // the oldest that are there, read in advance
	next  uint64    // where ahead goes on
	depth int       // how many limitLoop keeps there; 0 before the first drop
	short bool      // in limits.short
	again time.Time // after an error, when to look for more
	safe  uint64    // below it nobody needs any, as of gen
	gen   uint64    // of Store.ProtectionChanged
	gone  Tally     // dropped, ever
	// untold is what was dropped since it was last logged.
	untold  Gap
	unsaved bool
	queued  bool // in limits.over

	stored  Tally  // in segments, ever; the flusher's
	newest  uint64 // the highest offset of them; the flusher's
	counted bool   // stored has all that are in segments
}

// spot is where a message is in the log, and its size.
type spot struct {
	offset uint64
	size   uint32
}

// limits are all topics with a policy or a floor.
type limits struct {
	s       *Store
	byTopic atomic.Pointer[limitTable]
	gen     atomic.Uint64 // of what is protected
	drops   atomic.Uint64 // counts changes of floors
	wake    chan struct{}

	mu      sync.Mutex
	over    []*TopicLimit // with more than they may have
	unsaved []*TopicLimit // whose floor is not in the state
	short   []*TopicLimit // of which more are to be read in advance
	untold  []*TopicLimit // of which messages were dropped that were not logged
}

// limitTable has the limits by topic number, nil for those that have none.
type limitTable struct {
	sparse.Table[atomic.Pointer[TopicLimit]]
}

func (t *limitTable) get(topic uint32) *TopicLimit {
	if t == nil {
		return nil
	}
	if at := t.At(topic); at != nil {
		return at.Load()
	}
	return nil
}

// all yields the topics that have limits, by number.
func (t *limitTable) all() iter.Seq2[uint32, *TopicLimit] {
	return func(yield func(uint32, *TopicLimit) bool) {
		if t == nil {
			return
		}
		for id, at := range t.All() {
			if l := at.Load(); l != nil && !yield(id, l) {
				return
			}
		}
	}
}

func (x *limits) init(s *Store) {
	x.s, x.wake = s, make(chan struct{}, 1)
}

// table returns the limits there are, nil if there are none.
func (x *limits) table() *limitTable { return x.byTopic.Load() }

// add notes a topic with a policy. Calls do not overlap, and numbers rise, but in recovery, when nobody reads.
func (x *limits) add(id uint32, name string) *TopicLimit {
	if x.s.opt.Topic == nil {
		return nil
	}
	p := x.s.opt.Topic(name)
	if p == nil && x.table() == nil {
		return nil
	}
	return x.put(id, p)
}

// put gives a topic a policy, or only a table to be in if that is nil.
func (x *limits) put(id uint32, p *TopicPolicy) *TopicLimit {
	t := x.table()
	if t == nil {
		t = new(limitTable)
		x.byTopic.Store(t)
	}
	l := t.get(id)
	switch {
	case p == nil:
		l = nil
	case l == nil || l.policy != p: // the number may have been given before, to a topic that could not be stored
		l = &TopicLimit{s: x.s, id: id, policy: p}
	}
	if l != nil || t.At(id) != nil {
		t.Make(id).Store(l)
	}
	return l
}

// drop takes a topic out of the table whose number is given up.
func (x *limits) drop(id uint32) {
	if t := x.table(); t != nil {
		if at := t.At(id); at != nil {
			at.Store(nil)
		}
	}
}

// trim gives back the memory of topics that were dropped. No topic is added meanwhile.
func (x *limits) trim() {
	if t := x.table(); t != nil {
		t.Trim(func(at *atomic.Pointer[TopicLimit]) bool { return at.Load() == nil })
	}
}

// quiet tells whether nothing is going on with a topic: nothing of its limits is to be saved, looked at or told.
func (l *TopicLimit) quiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.s.limits.mu.Lock()
	defer l.s.limits.mu.Unlock()
	return !l.unsaved && !l.queued && !l.short && l.untold.To == 0
}

// HasPolicies tells whether topics may have policies.
func (s *Store) HasPolicies() bool { return s.opt.Topic != nil }

// Limit returns the limits of a topic, nil if it has none.
func (s *Store) Limit(topic uint32) *TopicLimit {
	if l := s.limits.table().get(topic); l != nil && l.policy.bounds() {
		return l
	}
	return nil
}

// Dropped tells whether a record was dropped by a limit of its topic. Those that were superseded do not count.
func (s *Store) Dropped(topic uint32, offset uint64) bool {
	l := s.limits.table().get(topic)
	return l != nil && offset < l.floor.Load() && !l.last()
}

// DroppedSince tells whether a message at or after an offset was dropped by a limit of a topic that is wanted.
func (s *Store) DroppedSince(offset uint64, want func(topic uint32) bool) bool {
	for id, l := range s.limits.table().all() {
		if !l.last() && l.floor.Load() > offset && want(id) {
			return true
		}
	}
	return false
}

// Floor returns what a topic's limits have dropped: all below. It is not limited if it has no limits, and none were dropped of it under earlier ones.
func (s *Store) Floor(topic uint32) (floor uint64, limited bool) {
	if l := s.limits.table().get(topic); l != nil {
		return l.floor.Load(), true
	}
	return 0, false
}

func (s *Store) floor(topic uint32) uint64 {
	at, _ := s.Floor(topic)
	return at
}

// Drops changes when something can no longer be read: it was dropped by a limit of its topic, or superseded.
func (s *Store) Drops() uint64 { return s.limits.drops.Load() }

// ProtectionChanged tells the store that Options.ProtectTopic may answer with lower offsets than before.
func (s *Store) ProtectionChanged() { s.limits.gen.Add(1) }

// last tells whether only the newest message is kept.
func (l *TopicLimit) last() bool { return l.policy != nil && l.policy.Last }

// count counts messages that go into the log.
func (t *limitTable) count(msgs []Message, transient bool) {
	for i := range msgs {
		m := &msgs[i]
		l := t.get(m.Topic)
		if l == nil || !l.policy.counts() {
			continue
		}
		size := record.Size(len(m.Props), len(m.Payload))
		stored := !transient && !m.Flags.Has(record.FlagTransient)
		switch {
		case m.Flags.Has(FlagAdmitted) && !stored:
			l.Return(len(m.Props) + len(m.Payload))
		case !m.Flags.Has(FlagAdmitted) && stored:
			if n, b := l.messages.Add(1), l.bytes.Add(int64(size)); l.policy.over(n, b) && !l.policy.Reject {
				l.s.limits.later(l)
			}
		}
	}
}

// supersede makes what is older than a message of the group unreadable in topics of which the last is kept.
func (t *limitTable) supersede(g *Group) {
	var x *limits
	for i := range g.Entries {
		e := &g.Entries[i]
		if l := t.get(e.Topic); l != nil && l.last() && !e.Flags.Has(record.FlagTransient) {
			l.raise(g.Base + uint64(i))
			x = &l.s.limits
		}
	}
	if x != nil {
		x.drops.Add(1)
	}
}

// raise moves the floor up.
func (l *TopicLimit) raise(to uint64) {
	for {
		old := l.floor.Load()
		if to <= old || l.floor.CompareAndSwap(old, to) {
			return
		}
	}
}

// Why TopicLimit.Admit refuses.
var (
	ErrTopicFull    = errors.New("the topic is full")
	ErrTopicTooLong = errors.New("larger than the topic may be")
)

// Admit counts a message in that is to be stored, of so many bytes of props and payload, or says why it must be refused. Where older
// ones make room they are dropped. What is not stored after all is to be given back by Return.
func (l *TopicLimit) Admit(size int) error {
	p, bytes := l.policy, int64(record.Size(0, size))
	if p.MaxBytes > 0 && bytes > p.MaxBytes {
		l.s.count.topicRefused.Add(1)
		return ErrTopicTooLong
	}
	n, b := l.messages.Add(1), l.bytes.Add(bytes)
	if !p.over(n, b) {
		return nil
	}
	if !p.Reject {
		if l.s.full.Load() != 0 {
			return nil // Append will refuse it: nothing need go for its sake
		}
		if l.makeRoom() {
			return nil
		}
	}
	l.Return(size)
	l.s.count.topicRefused.Add(1)
	return ErrTopicFull
}

func (l *TopicLimit) makeRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shed()
}

// Return takes back what Admit has counted.
func (l *TopicLimit) Return(size int) {
	l.messages.Add(-1)
	l.bytes.Add(-int64(record.Size(0, size)))
}

// shed drops the oldest until what is left is within the limits. It reports false if somebody still needs the oldest. Messages that
// are not committed yet cannot be dropped: then it is tried again when they are. l.mu is held.
func (l *TopicLimit) shed() bool {
	for l.policy.over(l.messages.Load(), l.bytes.Load()) {
		at, ok := l.oldest(readAhead)
		if !ok {
			l.s.limits.later(l)
			return true
		}
		if !l.free(at.offset) {
			return false
		}
		l.drop(&l.s.count.topicDropped)
	}
	return true
}

// dropBelow drops what is older than an offset, as far as nobody needs it or by force. It takes l.mu for some messages at a time:
// there may be millions, and publishers of a topic that is full wait for it.
func (l *TopicLimit) dropBelow(offset uint64, why *atomic.Uint64, force bool) {
	for n := 1; l.dropSome(offset, n, why, force); n = readAhead { // most have nothing that is old enough, so the first is looked for alone
	}
}

// dropSome is dropBelow for readAhead messages at the most, of which it looks for n at first. It reports whether there may be more.
func (l *TopicLimit) dropSome(offset uint64, n int, why *atomic.Uint64, force bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range readAhead {
		at, ok := l.oldest(n)
		if !ok || at.offset >= offset || !force && !l.free(at.offset) {
			return false
		}
		l.drop(why)
		n = readAhead
	}
	return true
}

// free tells whether nobody needs a message; l.mu is held.
func (l *TopicLimit) free(offset uint64) bool {
	if l.policy.Unprotected || l.s.opt.ProtectTopic == nil {
		return true
	}
	if gen := l.s.limits.gen.Load(); l.gen != gen || offset >= l.safe {
		l.gen, l.safe = gen, l.s.opt.ProtectTopic(l.s.TopicName(l.id))
	}
	return offset < l.safe
}

// drop makes the oldest message, which oldest has returned, unreadable; l.mu is held.
func (l *TopicLimit) drop(why *atomic.Uint64) {
	at := l.ahead[0]
	if l.ahead = l.ahead[1:]; !l.short && int64(len(l.ahead)) < min(int64(max(readAhead, l.depth)), l.messages.Load())/2 {
		l.short = true
		l.s.limits.refill(l)
	}
	l.raise(at.offset + 1)
	l.gone.add(1, uint64(at.size))
	if l.policy.counts() {
		l.messages.Add(-1)
		l.bytes.Add(-int64(at.size))
	}
	why.Add(1)
	x := &l.s.limits
	x.drops.Add(1)
	if !l.unsaved || l.untold.To == 0 {
		x.mu.Lock()
		if !l.unsaved {
			l.unsaved = true
			x.unsaved = append(x.unsaved, l)
			poke(x.wake)
		}
		if l.untold.To == 0 {
			x.untold = append(x.untold, l)
		}
		x.mu.Unlock()
	}
	l.untold.Add(at.offset)
}

const (
	// readAhead is how many messages are looked up at once.
	readAhead = 256
	// mostAhead is how many are at the most, of a topic that drops more than that between two rounds of limitLoop.
	mostAhead = 32 * readAhead
)

// lookAgain is how long after an error the oldest messages of a topic are looked for again: each of its publishes would, and log it.
const lookAgain = time.Second

// spotScan is how many entries are looked at between two looks at whether there are enough.
const spotScan = 1024

// oldest returns the oldest message that is there, false if there is none that is committed. If it must look it looks for n; l.mu is held.
func (l *TopicLimit) oldest(n int) (spot, bool) {
	floor := l.floor.Load()
	for len(l.ahead) > 0 && l.ahead[0].offset < floor {
		l.ahead = l.ahead[1:]
	}
	if len(l.ahead) == 0 {
		if !l.again.IsZero() && time.Now().Before(l.again) {
			return spot{}, false
		}
		if l.short { // limitLoop is not quick enough
			l.depth = min(mostAhead, 2*max(readAhead, l.depth))
		}
		var err error
		if l.ahead, l.next, err = l.s.spots(l.ahead[:0:0], l.id, max(l.next, floor), n); err != nil {
			l.again = time.Now().Add(lookAgain)
			l.s.log.Error("looking for a topic's oldest messages failed", "topic", l.s.TopicName(l.id), "err", err)
		}
		if len(l.ahead) == 0 {
			return spot{}, false
		}
	}
	return l.ahead[0], true
}

// spots appends where the next committed messages of a topic are that have bytes, about n of them. next is where to go on.
func (s *Store) spots(dst []spot, topic uint32, from uint64, n int) (_ []spot, next uint64, err error) {
	only := func(t uint32) bool { return t == topic }
	deleted, last := false, uint32(0)
	for next = max(from, s.First()); len(dst) < n && next < s.Committed(); {
		q := &read{s: s, next: next, topics: only, left: Limits{MaxRecords: unlimited, MaxBytes: unlimited, MaxScan: spotScan}}
		q.want = func(offset uint64, t uint32) bool {
			if t != topic || q.size == 0 {
				return false
			}
			if q.segment != last {
				last = q.segment
				deleted = last != 0 && s.table.get(last) == nil
			}
			if !deleted {
				dst = append(dst, spot{offset, q.size})
			}
			return false
		}
		if err := q.run(); err != nil {
			return dst, q.next, err
		}
		if q.next == next {
			break
		}
		next = q.next
	}
	return dst, next, nil
}
