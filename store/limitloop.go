package store

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
)

const (
	// limitPause is the least time between two rounds of limitLoop: floors that move all the time are not saved all the time.
	limitPause = 5 * time.Millisecond
	// ageRound is how long one round over the topics' ages may take. The next goes on where it stopped.
	ageRound = 100 * time.Millisecond
	// tellEvery is how often what was dropped is logged, tellTopics for how many topics by name.
	tellEvery  = 10 * time.Second
	tellTopics = 16
)

// limitLoop drops what Admit could not drop yet and what has become too old, saves floors, and logs what was dropped.
func (s *Store) limitLoop(ctx context.Context) {
	x := &s.limits
	if s.opt.Topic == nil {
		return
	}
	tick := time.NewTicker(s.retainEvery)
	defer tick.Stop()
	aged, told := uint32(0), time.Now()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-s.failed:
			return
		case <-tick.C:
			aged = x.age(s.opt.Now(), aged)
		case <-x.wake:
		}
		x.readOn()
		x.shed()
		if muts := x.takeUnsaved(); len(muts) > 0 {
			if err := s.Append(nil, muts, false, nil); err != nil && ctx.Err() == nil {
				s.log.Warn("what topics' limits dropped is not saved, a restart would drop it again", "err", err)
			}
		}
		if time.Since(told) >= tellEvery || ctx.Err() != nil {
			told = time.Now()
			x.tell()
		}
		select {
		case <-ctx.Done():
		case <-time.After(limitPause):
		}
	}
}

// refill has limitLoop read ahead of what is dropped of a topic: a publisher whose message takes the place of the oldest need not wait for
// the disk then. l.mu is held.
func (x *limits) refill(l *TopicLimit) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.short = append(x.short, l)
	poke(x.wake)
}

// later has a topic looked at once what is on its way is committed.
func (x *limits) later(l *TopicLimit) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !l.queued {
		l.queued = true
		x.over = append(x.over, l)
		poke(x.wake)
	}
}

// readOn reads ahead where publishers will soon have dropped what was read. No lock is held over the reading.
func (x *limits) readOn() {
	x.mu.Lock()
	short := x.short
	x.short = nil
	x.mu.Unlock()
	for _, l := range short {
		l.mu.Lock()
		l.depth = max(readAhead, l.depth)
		from, n := max(l.next, l.floor.Load()), l.depth-len(l.ahead)
		l.mu.Unlock()
		more, next, err := x.s.spots(nil, l.id, from, n)
		l.mu.Lock()
		// Of an error whoever comes to the end of what was read tells (oldest). If from is behind, somebody else has read on.
		if l.short = false; err == nil && from >= l.next {
			l.ahead, l.next = append(l.ahead, more...), next
		}
		l.mu.Unlock()
	}
}

// shed looks at the topics that have more than they may.
func (x *limits) shed() {
	x.mu.Lock()
	over := x.over
	x.over = nil
	x.mu.Unlock()
	for _, l := range over {
		idle := x.s.Committed() == x.s.Next()
		l.mu.Lock()
		l.queued = false
		if _, ok := l.oldest(readAhead); !ok && idle && l.s.Committed() == l.next {
			// There is nothing, whatever the count says: entries of the ledger were damaged.
			l.messages.Store(0)
			l.bytes.Store(0)
		} else {
			l.shed()
		}
		l.mu.Unlock()
	}
}

// age drops what is older than its topic's policy allows, beginning behind the topic of a number. It returns where to go on.
func (x *limits) age(now time.Time, from uint32) uint32 {
	start := time.Now()
	if x.s.doubtful(now) {
		return from
	}
	borders := make(map[time.Duration]uint64)
	for _, behind := range []bool{true, false} {
		for id, l := range x.table().all() {
			if id > from != behind || l.policy == nil || l.policy.MaxAge <= 0 || l.messages.Load() <= 0 {
				continue
			}
			border, ok := borders[l.policy.MaxAge]
			if !ok {
				border = x.s.SearchTime(now.Add(-l.policy.MaxAge).UnixMicro())
				borders[l.policy.MaxAge] = border
			}
			l.dropBelow(border, &x.s.count.topicAged, false)
			if time.Since(start) > ageRound {
				return id
			}
		}
	}
	return from
}

// takeUnsaved returns the changes that save the floors that moved.
func (x *limits) takeUnsaved() []Mutation {
	x.mu.Lock()
	unsaved := x.unsaved
	x.unsaved = nil
	x.mu.Unlock()
	muts := make([]Mutation, len(unsaved))
	for i, l := range unsaved {
		l.mu.Lock()
		l.unsaved = false
		muts[i] = l.mutation()
		l.mu.Unlock()
	}
	return muts
}

// tell logs what was dropped since the last time.
func (x *limits) tell() {
	x.mu.Lock()
	untold := x.untold
	x.untold = nil
	x.mu.Unlock()
	rest := Gap{}
	for i, l := range untold {
		l.mu.Lock()
		g := l.untold
		l.untold = Gap{}
		l.mu.Unlock()
		if i < tellTopics {
			x.s.log.Info("messages dropped by a topic's limits", "topic", x.s.TopicName(l.id), "offset", g.From, "to", g.To, "records", g.Records)
		} else {
			rest.Merge(g)
		}
	}
	if rest.To > 0 {
		x.s.log.Info("messages dropped by limits of more topics", "topics", len(untold)-tellTopics, "offset", rest.From, "to", rest.To, "records", rest.Records)
	}
}

// loadTallies reads what is in the segments of topics with a policy, as of the checkpoint; before replay, which adds to it.
func (x *limits) loadTallies() error {
	var stale []Mutation
	err := x.s.state.Range(record.BucketTallies, nil, func(k, b []byte) bool {
		l, v, err := x.parse(k, b, tallyVersion, errTally)
		switch {
		case err != nil:
			x.s.log.Error("state damaged, counting a topic's messages again", "file", x.s.opt.path("state.db"), "bucket", record.BucketTallies, "key", k, "err", err)
			x.s.count.damaged.Add(1)
			stale = append(stale, record.Delete(record.BucketTallies, k))
		case l == nil || !l.policy.counts() && !l.last():
			stale = append(stale, record.Delete(record.BucketTallies, k)) // it will not be kept up to date
		default:
			l.stored, l.newest, l.counted = Tally{v[0], v[1]}, v[2], true
		}
		return true
	})
	x.s.state.Apply(stale)
	return err
}

// parse reads a value of floors or tallies.
func (x *limits) parse(k, b []byte, version byte, bad error) (l *TopicLimit, v [3]uint64, err error) {
	if len(k) != 4 {
		return nil, v, bad
	}
	v, err = parseThree(b, version, bad)
	return x.table().get(binary.BigEndian.Uint32(k)), v, err
}

// loadFloors reads what was dropped, after replay, and with it how much there is.
func (x *limits) loadFloors() error {
	err := x.s.state.Range(record.BucketFloors, nil, func(k, b []byte) bool {
		l, v, err := x.parse(k, b, floorVersion, errFloor)
		if err != nil {
			x.s.log.Error("state damaged, what a topic's limits dropped is there again", "file", x.s.opt.path("state.db"), "bucket", record.BucketFloors, "key", k, "err", err)
			x.s.count.damaged.Add(1)
			return true
		}
		if l == nil { // it had a policy
			id := binary.BigEndian.Uint32(k)
			if x.s.TopicName(id) == "" {
				return true
			}
			l = &TopicLimit{s: x.s, id: id}
			x.put(id, nil)
			x.table().Make(id).Store(l)
		}
		l.raise(v[0])
		l.gone = Tally{v[1], v[2]}
		return true
	})
	if err == nil {
		err = x.countUncounted()
	}
	for _, l := range x.table().all() {
		if l.policy == nil {
			continue
		}
		if l.last() {
			l.raise(l.newest)
		}
		if l.policy.counts() {
			l.messages.Store(max(0, int64(l.stored.Records-l.gone.Records)))
			l.bytes.Store(max(0, int64(l.stored.Bytes-l.gone.Bytes)))
		}
		if l.policy.over(l.messages.Load(), l.bytes.Load()) && !l.policy.Reject {
			x.later(l)
		}
	}
	return err
}

// countUncounted counts what there is of topics whose policy is new, by reading the ledger, once.
func (x *limits) countUncounted() error {
	t, s, none := x.table(), x.s, true
	for _, l := range t.all() {
		if !l.counted && (l.policy.counts() || l.last()) {
			l.stored, none = l.gone, false
		}
	}
	if none {
		return nil
	}
	start := time.Now()
	c := chunks.Get().(*chunk)
	defer chunks.Put(c)
	from, end := s.table.first(s.ledger.Next()), s.ledger.Next()
	for at := from; at < end; {
		n, err := s.ledger.Read(at, c.entries[:min(maxChunk, end-at)])
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		for i := range c.entries[:n] {
			s.countEntry(t, at+uint64(i), &c.entries[i])
		}
		at += uint64(n)
	}
	for id, l := range t.all() {
		if !l.counted && (l.policy.counts() || l.last()) {
			l.counted = true
			s.flusher.tallied[id] = l
		}
	}
	s.log.Info("messages of topics with new limits counted", "records", end-from, "took", time.Since(start))
	return nil
}

func (s *Store) countEntry(t *limitTable, offset uint64, e *ledger.Entry) {
	l := t.get(e.Topic)
	if l == nil || l.counted || e.Segment == 0 || l.policy == nil || offset < l.floor.Load() || s.table.get(e.Segment) == nil {
		return
	}
	l.stored.add(1, uint64(e.Length))
	l.newest = offset
}
