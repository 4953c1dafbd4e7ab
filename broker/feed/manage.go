package feed

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// QueueInfo describes a queue at one moment.
type QueueInfo struct {
	Name     string
	Bindings []string // filters
	Policy   Policy
	Set      Setting // which fields of it were set for this queue (Configure)
	Paused   bool
	Members  int
	Cursor   uint64 // below it everything is settled
	Examined uint64 // first offset it has not looked at
	Waiting  int    // in memory, for a member to take
	InFlight int    // with members
	Retrying int    // refused, to be sent again
	Stats    Stats
}

// Info describes a queue.
func (q *Queues) Info(name string) (QueueInfo, error) {
	f, err := q.Find(name)
	if err != nil {
		return QueueInfo{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	at, _ := f.progress()
	i := QueueInfo{
		Name: name, Policy: *f.policy, Paused: f.chosen.paused, Set: f.chosen.set, Members: len(f.members), Cursor: at, Examined: f.examined(),
		Waiting: f.waiting, Retrying: len(f.tries), Stats: f.stats,
	}
	for _, m := range f.members {
		i.InFlight += m.sent
	}
	for flt := range f.filters.All() {
		if flt.Filter != topic.QueuePrefix+name {
			i.Bindings = append(i.Bindings, flt.Filter)
		}
	}
	slices.Sort(i.Bindings)
	return i, nil
}

// commit runs save and waits for the commit it began.
func (q *Queues) commit(save func(done store.Completion) error) error {
	done := make(committed, 1)
	if err := save(done); err != nil {
		return err
	}
	return <-done
}

// Reset moves a queue to an offset, Now for its end: everything from there on is handed out, again if it was before, and nothing
// below. What is with consumers stays with them, and its acknowledgement means nothing any more. It is durable when Reset returns.
func (q *Queues) Reset(name string, to uint64) error {
	f, err := q.Find(name)
	if err != nil {
		return err
	}
	return q.commit(func(done store.Completion) error {
		q.hub.saver.order.Lock()
		defer q.hub.saver.order.Unlock()
		f.reset(to)
		return q.hub.saveOrdered(nil, done, f)
	})
}

func (f *Feed) reset(to uint64) {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	end := h.log.Next()
	to = min(max(to, h.log.First()), end)
	f.win.clear()
	f.waiting, f.held, f.bytes = 0, 0, 0
	clear(f.keys)
	f.graves, f.tries, f.past, f.extra = nil, nil, nil, nil
	f.sent, f.resent = min(f.sent, to), 0
	f.since = end // what is gone by now is no news
	f.disarm()
	for _, m := range f.members {
		m.sent = 0
	}
	for flt := range f.filters.All() { // walks and routes may be reading the old ones
		moved := *flt
		moved.From = min(flt.From, to)
		f.setFilter(moved)
	}
	f.epoch++
	f.pos = to
	f.live = len(f.members) > 0 && to >= h.pos.Load()
	h.reroute()
	f.rebalance()
	f.resume()
}

// Purge skips everything that waits in a queue, and returns how many messages that were. What is with consumers stays with them.
func (q *Queues) Purge(name string) (int64, error) {
	b, err := q.Backlog(name)
	if err != nil {
		return 0, err
	}
	return b.Messages, q.Reset(name, Now)
}

// Delete ends a queue: its bindings, its cursor, its consumers' connections. Its direct messages stay in the log until
// retention takes them, and a queue that is created under the name again begins with them unless it is purged.
func (q *Queues) Delete(name string) error {
	return q.commit(func(done store.Completion) error {
		q.mu.Lock()
		defer q.mu.Unlock() // until it is in the log, or a queue created meanwhile would go with it after a restart
		f, ok := q.byName[name]
		if !ok {
			return fmt.Errorf("%w: %q", ErrNoQueue, name)
		}
		delete(q.byName, name)
		muts := []store.Mutation{
			record.Delete(record.BucketQueues, []byte(name)),
			record.Delete(record.BucketCursors, CursorKey(f.id)),
		}
		for _, flt := range f.Filters() {
			muts = append(muts, record.Delete(record.BucketBindings, bindingKey(f, flt.Filter)))
		}
		f.mu.Lock()
		for _, g := range f.ghosts {
			muts = append(muts, record.Delete(record.BucketBindings, bindingKey(f, g.Filter.Filter)))
		}
		f.mu.Unlock()
		f.Close()
		return q.hub.Save(muts, done)
	})
}

// view is what a look at a queue needs of it.
type view struct {
	f       *Feed
	from    uint64
	settled map[uint64]struct{} // in the window, above from
	known   map[uint32]bool     // of which topics anything is wanted
}

// look prepares to read what is not settled in a queue.
func (f *Feed) look() *view {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, _ := f.progress()
	if len(f.extra) > 0 {
		at = min(at, f.extra[0])
	}
	v := &view{f: f, from: at, settled: map[uint64]struct{}{}, known: map[uint32]bool{}}
	for seq := f.win.head; seq < f.win.tail; seq++ {
		if s := f.win.at(seq); s.state == settled && !f.isExtra(s.Offset) { // else the walk back is to bring it again
			v.settled[s.Offset] = struct{}{}
		}
	}
	return v
}

// wants tells whether a record belongs to the queue and is not settled; f.mu is held.
func (v *view) wants(off uint64, topicID uint32) bool {
	if _, ok := v.settled[off]; ok {
		return false
	}
	t := v.f.target(topicID)
	if t == nil || len(v.f.past) > 0 && t.done(v.f.past, off) && !v.f.isExtra(off) {
		return false
	}
	return t.at(off, false) != nil
}

// read returns unsettled records from an offset on.
func (v *view) read(from uint64, lim store.Limits) (recs []store.Record, next uint64, err error) {
	lim.Topics = func(topicID uint32) bool {
		ok, seen := v.known[topicID]
		if !seen {
			v.f.mu.Lock()
			ok = v.f.target(topicID) != nil
			v.f.mu.Unlock()
			v.known[topicID] = ok
		}
		return ok
	}
	return v.f.hub.log.NewReader().Read(nil, from, lim, func(off uint64, topicID uint32) bool {
		v.f.mu.Lock()
		defer v.f.mu.Unlock()
		return v.wants(off, topicID)
	})
}

// Peek returns the first n messages of a queue that are not settled, and leaves them there.
func (q *Queues) Peek(name string, n int) ([]store.Record, error) {
	f, err := q.Find(name)
	if err != nil {
		return nil, err
	}
	v := f.look()
	var recs []store.Record
	for from, end := v.from, q.hub.log.Committed(); from < end && len(recs) < n; {
		got, next, err := v.read(from, store.Limits{MaxRecords: n - len(recs), MaxBytes: 8 << 20})
		if err != nil {
			return nil, err
		}
		recs, from = append(recs, got...), next
	}
	return recs, nil
}

// Depth returns how many messages of a queue are not settled.
func (q *Queues) Depth(name string) (int64, error) {
	b, err := q.Backlog(name)
	return b.Messages, err
}

// Move takes up to n messages from the head of a queue and puts them at the end of another, each in one append: a crash
// neither loses nor doubles any. It does so as a consumer of the queue: others that are attached keep what they have, and go on
// getting the keys that are theirs.
func (q *Queues) Move(from, to string, n int) (moved int, err error) {
	if from == to {
		return 0, errors.New("move: the queues are the same")
	}
	f, err := q.Find(from)
	if err != nil {
		return 0, err
	}
	if _, err := q.Create(to); err != nil {
		return 0, err
	}
	defer q.hub.log.Use().Done()
	topicID, err := q.hub.log.TopicID(topic.QueuePrefix + to)
	if err != nil {
		return 0, err
	}
	end := q.hub.log.Committed()
	w := make(wakes, 1)
	m := f.Join(w, 2)
	defer m.Leave()
	patience := time.NewTimer(moveWait)
	defer patience.Stop()
	for moved < n {
		items := m.takeWhole(min(n-moved, 256))
		if len(items) == 0 {
			if f.Examined() >= end && !f.hasWaiting(m) {
				return moved, nil
			}
			select {
			case <-w:
				continue
			case <-time.After(20 * time.Millisecond):
			case <-patience.C:
				return moved, nil
			}
			continue
		}
		n, err := f.moveItems(m, items, topicID)
		if err != nil {
			return moved, err
		}
		moved += n
		patience.Reset(moveWait)
	}
	return moved, nil
}

// moveWait is how long a move waits for a record that does not come.
const moveWait = 5 * time.Second

// wakes is a Waker that tells a channel.
type wakes chan struct{}

// Wake implements Waker.
func (w wakes) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// Examined returns the first offset the feed has not looked at.
func (f *Feed) Examined() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.examined()
}

func (f *Feed) hasWaiting(m *Member) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return m.todo.len() > 0
}

// moveBytes bounds what is moved at once, but for a message that is larger: an append must fit a commit group.
const moveBytes = 1 << 20

// takeWhole takes items whatever their QoS: none is settled by it.
func (m *Member) takeWhole(n int) []Item {
	f := m.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	var items []Item
	for size := 0; len(items) < n && size < moveBytes && m.todo.len() > 0; {
		seq := m.todo.pop()
		if !f.win.has(seq) {
			continue
		}
		s := f.win.at(seq)
		if s.state != waiting || s.m != m {
			continue
		}
		s.state = sent
		m.sent++
		f.waiting--
		if s.key != nil {
			s.key.sent++
			s.key.waiting--
		}
		items = append(items, s.Item)
		size += len(s.Props) + len(s.Payload)
	}
	f.resume()
	return items
}

// moveItems appends copies of items, settles the items with them, and returns how many those are.
func (f *Feed) moveItems(m *Member, items []Item, topicID uint32) (int, error) {
	done := make(committed, 1)
	n, err := f.appendMoved(m, items, topicID, done)
	if err != nil || n == 0 {
		return 0, err
	}
	return n, <-done
}

// appendMoved is moveItems, but for waiting for the commit.
func (f *Feed) appendMoved(m *Member, items []Item, topicID uint32, done store.Completion) (int, error) {
	h := f.hub
	h.saver.order.Lock()
	defer h.saver.order.Unlock()
	var msgs []store.Message
	var recs []store.Record
	var seqs []uint64
	f.mu.Lock()
	for _, it := range items {
		if !f.win.has(it.Seq) || f.win.at(it.Seq).state != sent || f.win.at(it.Seq).m != m {
			continue // the queue was reset or deleted meanwhile
		}
		msgs, recs = append(msgs, store.Message{
			Topic: topicID, Client: it.Client, Flags: it.Flags &^ record.FlagRetain, Expiry: it.Expiry, Props: it.Props, Payload: it.Payload,
		}), append(recs, it.Record)
		seqs = append(seqs, it.Seq)
	}
	mut := f.asIfSettled(seqs, sent)
	f.mu.Unlock()
	if len(msgs) == 0 {
		return 0, nil
	}
	h.relayAll(recs, msgs)
	if err := h.log.Append(msgs, []store.Mutation{mut}, true, done); err != nil {
		return 0, err
	}
	// Before the order is given up, or a cursor saved next would say that they are still here. Should the commit fail, so has the
	// store, and the next start finds all as it was.
	m.Settle(seqs...)
	return len(msgs), nil
}
