package store

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/store/journal"
	"github.com/edgemq/edgemq/store/record"
)

// maxOpen bounds the open group, and with it how much one commit writes. A single Append may be larger. More gains nothing on a disk that is
// quick, and a smaller group is answered sooner: its publishers go on while the next one is written, and less memory is under way.
const maxOpen = 2 << 20

// maxRiding is how large a group may become that nothing but riding appends are in (appendMode). They do not wait for room, so without an
// end to it a group could grow to more than the journal takes, which is the end of the store: by clients that come, each
// by another name, and are refused what they publish.
const maxRiding = 256 << 10

// knownFlags are the flags that mean something on disk. Others are cut off, since the record could not be read back.
const knownFlags = 3 | record.FlagRetain | record.FlagExpiry | record.FlagTransient | record.FlagUTF8 | record.FlagKeyed

// FlagAdmitted is set of a Message that TopicLimit.Admit has counted. It is not stored.
const FlagAdmitted record.Flags = 1 << 15

// Message is what Append stores.
type Message struct {
	Topic, Client  uint32 // see Store.TopicID and Store.ClientID
	Flags          record.Flags
	PacketID       uint16
	Expiry         uint32 // seconds from now; counts if Flags has FlagExpiry
	Props, Payload []byte
}

// Completion is told once what became of an append. base is the offset of its first message.
// It runs on the committer, or on a caller of AppendHere, while nobody else can commit: so it must not block nor call Append.
type Completion interface {
	Committed(base uint64, err error)
}

// Timed is a Completion that wants to know what time (µs since 1970) its messages were given. Stored is called within Append,
// so it must do no more than note it.
type Timed interface {
	Completion
	Stored(time int64)
}

// pending is a completion to be run.
type pending struct {
	done Completion
	base uint64
}

// smallAppend is what Roomy looks for room for.
const smallAppend = 16 << 10

// appender is the open group and what guards it.
type appender struct {
	mu   sync.Mutex
	room sync.Cond // the open group has been taken, or err set
	open *batch
	time int64 // of the newest record: time does not run backwards with the offset, see timeline
	err  error // why nothing is taken any more

	maxEcho int           // bytes
	taken   atomic.Int64  // bytes of the group that the committer has; changed under mu when it takes one
	next    atomic.Uint64 // offset; changed under mu
	wake    chan struct{} // to the committer
	alarm   *time.Timer   // calls the committer for appends that nobody waits for
}

// soon is how long AppendSoon lets a group wait for company.
const soon = 10 * time.Millisecond

func (a *appender) init(next uint64, newest int64, maxGroup int) {
	a.maxEcho = maxGroup / 16
	a.room.L = &a.mu
	a.open = newBatch()
	a.open.base = next
	a.time = newest
	a.next.Store(next)
	a.wake = make(chan struct{}, 1)
	a.alarm = time.AfterFunc(time.Hour, a.call)
	a.alarm.Stop()
}

// call tells the committer of an open group that has waited long enough. The one that the alarm was set for may have gone with another
// append since; an empty group is not called, or nobody would call it once there is something in it.
func (a *appender) call() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open.appends > 0 && !a.open.called {
		a.open.called = true
		poke(a.wake)
	}
}

// take hands the open group to the committer, nil if it is empty or may wait, and puts spare in its place.
func (a *appender) take(spare *batch) *batch {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.open
	if b == nil || b.appends == 0 || !b.called { // nil in a store that is open for reading
		return nil
	}
	spare.reset(a.next.Load())
	spare.echo(b, a.maxEcho)
	a.open = spare
	a.taken.Store(int64(b.size()))
	a.room.Broadcast()
	return b
}

// shut refuses all further appends; the first reason stays. What is in the open group waits no longer.
func (a *appender) shut(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.err = err
	}
	if a.open != nil {
		a.open.called = true
	}
	a.room.Broadcast()
}

// lookAgain has those look again who wait for room: while the disk is full they may be better off with an ErrFull. The lock makes sure of
// who has looked and does not wait yet.
func (a *appender) lookAgain() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.room.Broadcast()
}

// Append puts msgs (at consecutive offsets) and muts into the open group as one unit: after a crash
// all of it is there or nothing. It copies what it is given and returns; done, if not nil, is called once when the
// group is as durable as Options.Sync says, or has failed. Append blocks only while the open group is full.
// With durable false nothing in it needs an fsync of its own (QoS 0, names of topics); done comes after the write then.
// Errors at once, after which done is not called: ErrFull, ErrFailed, ErrClosed, ErrTooLarge.
func (s *Store) Append(msgs []Message, muts []Mutation, durable bool, done Completion) error {
	full := s.full.Load() != 0 && len(msgs) > 0
	if full && durable {
		return ErrFull // mutations alone pass, so that consumers go on
	}
	return s.append(msgs, muts, appendMode{durable: durable, transient: full}, done)
}

// AppendSoon is Append of mutations that are to be on disk before whatever is appended after them, but for which nobody waits: the group that
// they are in is committed with the next one that somebody does wait for, or a moment later. Ten thousand clients that come at once, each with
// a subscription to save, are then some hundred commits.
func (s *Store) AppendSoon(muts []Mutation) error {
	return s.append(nil, muts, appendMode{durable: true, patient: true}, nil)
}

// appendMode is how a batch of messages goes into the group.
type appendMode struct {
	durable   bool
	rides     bool // waits for another append to make a group; if none comes, it is as if it had not been
	patient   bool // may wait for company
	force     bool // sync even if Options.Sync is weaker
	transient bool // keep the messages from the disk: there is no room
}

// append puts something into the open group and has the committer know.
func (s *Store) append(msgs []Message, muts []Mutation, mode appendMode, done Completion) error {
	first, err := s.put(msgs, muts, mode, done)
	if first {
		poke(s.open.wake)
	}
	return err
}

// put is append, but for waking the committer, which is left to the caller if first is true. Who finds it called already need not.
func (s *Store) put(msgs []Message, muts []Mutation, mode appendMode, done Completion) (first bool, err error) {
	size := 0
	for i := range msgs {
		n := record.Size(len(msgs[i].Props), len(msgs[i].Payload))
		if n > record.MaxSize {
			return false, fmt.Errorf("%w: message of %d bytes", ErrTooLarge, n)
		}
		size += n
	}
	for _, m := range muts {
		if err := m.Check(); err != nil {
			return false, fmt.Errorf("%w: %w", ErrTooLarge, err)
		}
		size += record.MutationSize(len(m.Key), len(m.Value))
	}
	if most := s.maxGroup - journal.HeaderSize - s.open.maxEcho - stepBytes; size > most {
		return false, fmt.Errorf("%w: %d bytes, %d fit", ErrTooLarge, size, most)
	}
	a := &s.open
	a.mu.Lock()
	for a.err == nil && !s.fits(size) && !s.tight(size) {
		if b := a.open; !b.called {
			b.called, b.appends = true, max(1, b.appends) // with what rides, though nobody waits for it
			poke(a.wake)
		}
		a.room.Wait()
	}
	if a.err != nil || s.tight(size) {
		defer a.mu.Unlock()
		if a.err == nil {
			return false, ErrFull
		}
		return false, a.err
	}
	b := a.open
	whole, was, clock, steps := false, b.lengths(), a.time, s.timeline.steps.Load()
	defer func() {
		if whole {
			first = a.callFor(mode)
		} else { // a panic of the caller's, Options.Keys or Timed: nothing of it must get to the disk, and nobody wait for the lock
			b.cut(was)
			a.time = clock
			s.timeline.steps.Store(steps)
			a.next.Store(b.base + uint64(len(b.entries)))
		}
		a.mu.Unlock()
	}()
	if b.size() >= min(maxRiding, s.maxGroup/8) {
		mode.rides, mode.patient = false, false
	}
	base := a.next.Load()
	if len(msgs) > 0 {
		if step := s.stamp(s.opt.Now().UnixMicro(), base); step != nil {
			b.mutate(step.mutation())
		}
		b.add(msgs, base, a.time, mode.transient, s.keyed)
		if mode.transient {
			s.count.unstored.Add(uint64(len(msgs)))
		}
		if known := s.limits.table(); known != nil {
			known.count(msgs, mode.transient)
		}
		a.next.Store(base + uint64(len(msgs)))
		if t, ok := done.(Timed); ok {
			t.Stored(a.time)
		}
	}
	for _, m := range muts {
		b.mutate(m)
	}
	if !mode.rides {
		b.appends++
	}
	b.durable = b.durable || mode.durable
	b.force = b.force || mode.force
	if done != nil {
		b.dones = append(b.dones, pending{done, base})
	}
	whole = true
	return false, nil // first is seen to above
}

// fits tells whether the open group has room for an append of that size; a.mu is held. If not it is what other appends have left there: a
// group of its own would take it.
func (s *Store) fits(size int) bool {
	b := s.open.open
	after, most := b.size()+size, s.maxGroup-stepBytes
	return after <= most && (b.appends == 0 || after <= maxOpen)
}

// callFor tells whether the committer must be told of the open group now that something was appended to it, or has it told later; mu is held.
func (a *appender) callFor(mode appendMode) bool {
	b := a.open
	switch {
	case b.called || mode.rides: // whoever finds the committer called already need not call it
		return false
	case !mode.patient:
		b.called = true
		return true
	case !b.waits:
		b.waits = true
		a.alarm.Reset(soon)
	}
	return false
}

// Roomy tells whether a small append would be taken now, or refused, rather than wait for the open group to be taken.
func (s *Store) Roomy() bool {
	s.open.mu.Lock()
	defer s.open.mu.Unlock()
	return s.open.err != nil || s.fits(smallAppend) || s.tight(smallAppend)
}

// tight says, while the disk is full, that an append of that size might not be written before there is room, whatever it
// is. So nobody who was accepted waits for the disk, and nobody blocks in Append until it has room. a.mu is held.
func (s *Store) tight(size int) bool {
	full := s.full.Load()
	if full == 0 {
		return false
	}
	ahead := int64(s.open.open.size()+size) + s.open.taken.Load() + 2*journal.BlockSize
	return s.journalBytes()+ahead > s.maxJournal || full&fullJournal != 0 && s.fileUsed.Load()+ahead > s.opt.JournalFileBytes ||
		s.tail.pushed.Load()-s.tail.flushed.Load()+ahead > maxUnflushed
}
