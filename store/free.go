package store

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/store/record"
)

const (
	// freeEvery is how often it is looked for numbers that may be given up, at most, and how long after that their names can still be found.
	freeEvery = time.Minute
	// freeRest is how long the next look is off, at least, as a multiple of what one took.
	freeRest = 100
	// freeAgain is how much later it is looked again for numbers that something holds though no message has them.
	freeAgain = 10
	// freeAtOnce is how many topics, and clients, one round gives up; freeRounds is how many rounds a look has.
	freeAtOnce, freeRounds = 1 << 16, 16
	// freeChunk is how many one append gives up.
	freeChunk = 256
	// patienceOfUses is how long a round waits for publishes on their way into the store. They may wait for the disk to have room.
	patienceOfUses = 10 * time.Second
)

// freer gives up the numbers of topics and clients that nothing refers to any more, and so their names. Its goroutine alone changes what is below.
//
// A round goes in this order, so that no record is ever stored with a number whose name is gone:
//
//  1. It marks what the log has from First on, and takes some numbers that are not marked. Nothing has changed yet.
//  2. These are leaving: TopicID and ClientID, who still find them, take the number that they return back from among them. Renumbered changes, so who remembers
//     numbers asks for them anew.
//  3. It waits for every Use that began before that, and has everything committed that was appended until then. From here on nobody has one of those that are
//     still leaving, but for what is in the log by now; and nobody can get one.
//  4. It marks what was added to the log since 1, and what state, segments and the program (Options.InUse) refer to. What is leaving and not marked is free.
//  5. With assign held, so that none of the names is given a number meanwhile: the free ones are taken out of the dictionary, and the mutations that delete their
//     names appended. For a moment, until a later look, their names can still be found by number: readers may have one of their records in hand.
//
// What the disk holds: until the group with the mutations of 5 is committed, all names; after that, those that are left. A crash leaves one or the other for each
// group, and in both each record has its name. next-topic and next-client see to it that no number is used twice, also after a restart. If replay goes through
// records that had a number (they were deleted, or never kept) and then through its end, it has no name in between, and needs none.
type freer struct {
	first uint64                             // First at the last look that found all there was
	again time.Time                          // when to look all the same, since something held numbers that the log does not have; zero for never
	due   time.Time                          // not before
	limbo struct{ topics, clients []uint32 } // given up, and their names can still be found
	until int64                              // bytes of groups up to the last look

	every           time.Duration // shorter in tests
	topics, clients atomic.Uint64 // given up since Open
}

// freeLoop gives numbers up until ctx ends.
func (s *Store) freeLoop(ctx context.Context) {
	f := &s.freer
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	warned := false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-s.failed:
			return
		}
		start := time.Now()
		again := !f.again.IsZero() && start.After(f.again)
		if start.Before(f.due) || f.first == s.First() && !again && len(f.limbo.topics)+len(f.limbo.clients) == 0 {
			continue
		}
		err := s.free(ctx)
		f.due = start.Add(freeRest * time.Since(start))
		if err != nil && ctx.Err() == nil && !warned {
			s.log.Warn("names that are not in use any more cannot be forgotten, trying again", "err", err)
		}
		warned = err != nil
	}
}

// errBusy is why a look comes to nothing while publishers have no room.
var errBusy = errors.New("publishes wait for the store")

// free looks once.
func (s *Store) free(ctx context.Context) error {
	f := &s.freer
	if err := s.forget(ctx); err != nil {
		return err
	}
	if s.checkpointedNext.Load()-min(s.index.until.Load(), s.checkpointedNext.Load()) > s.index.size {
		return nil // the index has much to catch up with, which is quicker than doing without it
	}
	first, found := s.First(), 0
	for range freeRounds {
		n, err := s.freeSome(ctx)
		if err != nil {
			return err
		}
		if found = n; n < freeAtOnce {
			break
		}
	}
	f.until = s.tail.pushed.Load()
	f.first, f.again = first, time.Time{}
	switch n, m := len(f.limbo.topics), len(f.limbo.clients); {
	case found >= freeAtOnce:
		f.first = 0 // there are more
	case found > n+m:
		f.again = time.Now().Add(freeAgain * f.every)
	}
	if n, m := len(f.limbo.topics), len(f.limbo.clients); n+m > 0 {
		s.log.Info("names that are not in use any more are forgotten", "topics", n, "clients", m)
	}
	return nil
}

// forget takes the names away that an earlier look gave up, unless somebody has their numbers still.
func (s *Store) forget(ctx context.Context) error {
	f := &s.freer
	if len(f.limbo.topics)+len(f.limbo.clients) == 0 {
		return nil
	}
	if s.tail.pushed.Load()-s.tail.unfollowed() < f.until {
		return nil // followers have yet to see some of their messages
	}
	if !s.uses.await(ctx, patienceOfUses) { // somebody might have read from the state what was there before
		return errBusy
	}
	m := newMarks(s)
	if _, err := m.state(); err != nil {
		return err
	}
	split := func(ids []uint32, used numberSet) (gone, left []uint32) {
		for _, id := range ids {
			if used.has(id) {
				left = append(left, id)
			} else {
				gone = append(gone, id)
			}
		}
		return gone, left
	}
	var topics, clients []uint32
	topics, f.limbo.topics = split(f.limbo.topics, m.topics)
	clients, f.limbo.clients = split(f.limbo.clients, m.clients)
	s.topics.forget(topics)
	s.clients.forget(clients)
	return nil
}

// freeSome is one round. It returns how many numbers the log does not refer to.
func (s *Store) freeSome(ctx context.Context) (found int, err error) {
	if err := s.settle(ctx); err != nil { // what the round before gave up
		return 0, err
	}
	m := newMarks(s)
	end, err := m.log(ctx, 0)
	if err != nil {
		return 0, err
	}
	topics := s.topics.unmarked(m.topics)
	clients, err := s.unmarkedClients(m.clients)
	if found = len(topics) + len(clients); err != nil || found == 0 {
		return 0, err
	}
	s.topics.leave(topics)
	s.clients.leave(clients)
	defer s.topics.stay()
	defer s.clients.stay()
	s.renumbered.Add(1)
	if !s.uses.await(ctx, patienceOfUses) {
		return 0, errBusy
	}
	if err := s.settle(ctx); err != nil {
		return 0, err
	}
	if _, err := m.log(ctx, end); err != nil {
		return 0, err
	}
	told, err := m.state()
	if err != nil {
		return 0, err
	}
	n, err := s.freeTopics(topics, m.topics, told)
	if err != nil {
		return 0, err
	}
	c, err := s.freeClients(clients, m.clients)
	if n+c == 0 {
		found = min(found, freeAtOnce-1) // another round would find the same
	}
	return found, err
}

// settle has everything committed that was appended.
func (s *Store) settle(ctx context.Context) error {
	done := make(answered, 1)
	if err := s.Append(nil, nil, false, done); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unmarkedClients returns some clients that are not marked, with their names.
func (s *Store) unmarkedClients(used numberSet) (map[uint32]string, error) {
	ids := make(map[uint32]string)
	err := s.state.Range(record.BucketClients, []byte{'i'}, func(k, v []byte) bool {
		if len(k) != 5 || len(v) == 0 {
			return true
		}
		if id := binary.BigEndian.Uint32(k[1:]); !used.has(id) {
			ids[id] = string(v[1:])
		}
		return len(ids) < freeAtOnce
	})
	return ids, err
}

// freeTopics gives up those of the topics that are leaving and not marked. Those with limits stay while there is something to do about them, or while a
// queue has yet to be told what was dropped of them: below told that is over.
func (s *Store) freeTopics(ids []uint32, used numberSet, told uint64) (n int, err error) {
	t, f := &s.topics, &s.freer
	ids = slices.DeleteFunc(ids, func(id uint32) bool {
		l := s.limits.table().get(id)
		return used.has(id) || l != nil && (!l.quiet() || l.floor.Load() > told)
	})
	t.assign.Lock()
	ids = t.remove(ids)
	next := record.Put(record.BucketMeta, nextTopicKey, topicKey(t.next))
	t.assign.Unlock()
	f.limbo.topics = append(f.limbo.topics, ids...)
	for chunk := range slices.Chunk(ids, freeChunk) {
		muts := append(make([]Mutation, 0, freeChunk+1), next)
		for _, id := range chunk {
			muts = append(muts, record.Delete(record.BucketTopics, topicKey(id)))
			if s.limits.table().get(id) != nil {
				muts = append(muts, record.Delete(record.BucketFloors, topicKey(id)), record.Delete(record.BucketTallies, topicKey(id)))
			}
		}
		if err := s.Append(nil, muts, false, nil); err != nil { // the rest have names in the state that nobody needs; they go another time
			return n, err
		}
		for _, id := range chunk {
			s.limits.drop(id)
		}
		n += len(chunk)
	}
	t.assign.Lock()
	s.limits.trim()
	t.assign.Unlock()
	f.topics.Add(uint64(n))
	return n, nil
}

// freeClients gives up those of the clients that are leaving and not marked.
func (s *Store) freeClients(ids map[uint32]string, used numberSet) (n int, err error) {
	c, f := &s.clients, &s.freer
	free := make(map[uint32]string, freeChunk)
	flush := func() error {
		c.assign.Lock() // a name that comes back gets its new number after this
		defer c.assign.Unlock()
		gone := c.remove(free)
		muts := make([]Mutation, 0, 2*len(gone))
		for _, id := range gone {
			muts = append(muts, record.Delete(record.BucketClients, clientNameKey(free[id])), record.Delete(record.BucketClients, clientIDKey(id)))
		}
		clear(free)
		if len(gone) == 0 {
			return nil
		}
		f.limbo.clients = append(f.limbo.clients, gone...)
		f.clients.Add(uint64(len(gone)))
		n += len(gone)
		return s.Append(nil, muts, false, nil)
	}
	for id, name := range ids {
		if used.has(id) {
			continue
		}
		if free[id] = name; len(free) == freeChunk {
			if err := flush(); err != nil {
				return n, err
			}
		}
	}
	return n, flush()
}
