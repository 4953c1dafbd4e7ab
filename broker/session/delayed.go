package session

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// delayBatch is how many messages are published at once when they are due, of at most appendBytes together (or one that
// is larger): an append must fit a commit group.
const delayBatch = 256

// delayed publishes messages later. They wait in the state, sorted by when they are due, and take no memory here but
// the time of the next.
type delayed struct {
	m *Manager

	mu   sync.Mutex
	bad  map[string]struct{} // keys of entries that make no sense: they stay where they are, and are passed over
	seq  uint64              // tells messages apart that are due at the same time, in the order in which they came
	next int64               // when the first is due, µs since 1970; 0 if none waits
	wake chan struct{}
}

// setAside notes an entry that cannot be read.
func (d *delayed) setAside(key []byte, err error) {
	d.mu.Lock()
	_, known := d.bad[string(key)]
	if d.bad == nil {
		d.bad = map[string]struct{}{}
	}
	d.bad[string(key)] = struct{}{}
	d.mu.Unlock()
	if !known {
		d.m.logger.Error("a delayed message cannot be read and is left where it is", "key", fmt.Sprintf("%x", key), "err", err)
	}
}

// unreadable counts the entries that were set aside.
func (d *delayed) unreadable() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.bad)
}

func (d *delayed) init(m *Manager) error {
	d.m = m
	d.wake = make(chan struct{}, 1)
	d.seq = uint64(m.log.Now().UnixMicro()) // above any that an earlier run gave, unless the clock went back by more than it ran
	return m.log.Range(record.BucketDelayed, nil, func(k, _ []byte) bool {
		if len(k) == 16 {
			d.next = max(1, int64(binary.BigEndian.Uint64(k)))
		}
		return len(k) != 16
	})
}

const delayedVersion = 1

// put returns the change of state that keeps a message until it is due, and when that is; note is to be called once that is
// appended. Key: due i64 (µs since 1970), sequence u64, both big-endian. Value:
// version u8, queue u8 (1: of a queue), topic length uvarint, topic, then as a retained message.
func (d *delayed) put(ref *topicRef, msg *store.Message) (mut store.Mutation, due int64) {
	now := d.m.log.Now()
	due = now.Add(time.Duration(ref.delay) * time.Second).UnixMicro()
	d.mu.Lock()
	d.seq++
	seq := d.seq
	d.mu.Unlock()
	key := binary.BigEndian.AppendUint64(make([]byte, 0, 16), uint64(due))
	key = binary.BigEndian.AppendUint64(key, seq)
	v := []byte{delayedVersion, 0}
	if ref.queue {
		v[1] = 1
	}
	v = binary.AppendUvarint(v, uint64(len(ref.name)))
	v = append(v, ref.name...)
	return record.Put(record.BucketDelayed, key, appendRetained(v, now.UnixMicro(), msg)), due
}

// note says that a message that is due then has been appended.
func (d *delayed) note(due int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next != 0 && d.next <= due {
		return
	}
	d.next = due
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run publishes what is due until ctx ends.
func (d *delayed) run(ctx context.Context) {
	timer := time.NewTimer(d.wait())
	defer timer.Stop()
	var clock setBack
	for {
		if _, wrong := clock.at(d.m.log.Now()); wrong {
			if err := d.setRight(); err != nil {
				d.m.logger.Error("delayed messages from when the clock was far ahead stay where they are", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-timer.C:
			if err := d.publish(); err != nil {
				d.m.logger.Error("publishing delayed messages failed, trying again", "err", err)
				d.retry()
			}
		}
		timer.Reset(d.wait())
	}
}

// retry has publish called again in a while: the disk may be full, or the store about to stop.
func (d *delayed) retry() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next = d.m.log.Now().Add(time.Second).UnixMicro()
}

// lookAgain is how soon the clock is looked at again: timers do not follow it when it is set. A device whose clock begins in 1970 and is set when the
// network is there would otherwise keep its delayed messages until it is started again.
const lookAgain = time.Second

// wait returns how long until something may be due.
func (d *delayed) wait() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next == 0 {
		return time.Hour
	}
	return min(max(0, time.UnixMicro(d.next).Sub(d.m.log.Now())), lookAgain)
}

// publish appends what is due, each message and its end of waiting as one, and finds out when the next is.
func (d *delayed) publish() error {
	for {
		d.mu.Lock()
		d.next = 0 // whoever notes a message from now on sets it
		d.mu.Unlock()
		if err := d.barrier(); err != nil { // and what was noted before is in the state after this
			return fmt.Errorf("publish delayed messages: %w", err)
		}
		next, err := d.publishDue()
		if err != nil {
			return fmt.Errorf("publish delayed messages: %w", err)
		}
		d.mu.Lock()
		if next != 0 && (d.next == 0 || next < d.next) {
			d.next = next
		}
		again := d.next != 0 && d.next <= d.m.log.Now().UnixMicro()
		d.mu.Unlock()
		if !again {
			return nil
		}
	}
}

// publishDue appends what is due, as far as it goes into one batch, and returns when the next is, 0 for never.
func (d *delayed) publishDue() (next int64, err error) {
	now := d.m.log.Now().UnixMicro()
	defer d.m.log.Use().Done()
	var b dueBatch
	var bad error
	err = d.m.log.Range(record.BucketDelayed, nil, func(k, v []byte) bool {
		if len(k) != 16 {
			d.setAside(k, errDamaged)
			return true
		}
		if due := int64(binary.BigEndian.Uint64(k)); due > now || len(b.msgs) >= delayBatch || b.bytes >= appendBytes {
			next = due
			return false
		}
		if bad = b.add(d.m, k, v); errors.Is(bad, errDamaged) || errors.Is(bad, store.ErrVersion) {
			d.setAside(k, bad)
			bad = nil
		}
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	if err == nil && len(b.msgs) > 0 {
		err = b.append(d.m)
	}
	if err == nil {
		b.tell(d.m)
	}
	return next, err
}

// barrier waits until what was appended before it is committed.
func (d *delayed) barrier() error {
	w := newWaiter()
	w.add()
	if err := d.m.log.Append(nil, nil, false, w); err != nil {
		return err
	}
	return w.wait()
}

// parseDelayed reads a message that waits: the topic it is for, whether that is a queue, and the message, whose time is when it came.
func parseDelayed(v []byte) (name string, queue bool, rec store.Record, err error) {
	if v, err = checkVersion(v, delayedVersion); err != nil {
		return "", false, rec, err
	}
	if len(v) < 1 {
		return "", false, rec, errDamaged
	}
	n, c := binary.Uvarint(v[1:])
	if c <= 0 || n > uint64(len(v)-1-c) {
		return "", false, rec, errDamaged
	}
	rec, err = parseRetained(v[1+c+int(n):])
	return string(v[1+c : 1+c+int(n)]), v[0] == 1, rec, err
}

// dueBatch is what is published together.
type dueBatch struct {
	msgs   []store.Message
	muts   []store.Mutation
	retain []retain
	bytes  int
	full   map[*feed.Feed]int // queues that had no room, and for how many messages
}

func (b *dueBatch) add(m *Manager, k, v []byte) error {
	name, queue, rec, err := parseDelayed(slices.Clone(v))
	if err != nil {
		return err
	}
	msg := store.Message{Client: rec.Client, Flags: rec.Flags, Expiry: rec.Expiry, Props: rec.Props, Payload: rec.Payload}
	if msg.Topic, err = m.log.TopicID(name); err != nil {
		return err
	}
	relay(&msg)
	if to := m.overflow(name, &msg); to != nil {
		if b.full == nil {
			b.full = map[*feed.Feed]int{}
		}
		b.full[to]++
	}
	b.msgs = append(b.msgs, msg)
	b.bytes += len(v)
	b.muts = append(b.muts, record.Delete(record.BucketDelayed, append([]byte(nil), k...)))
	if msg.Flags.Has(record.FlagRetain) && !queue {
		r := newRetain(name, &msg, m.log.Now())
		b.retain, b.muts = append(b.retain, r), append(b.muts, r.mut)
	}
	return nil
}

// tell logs and counts, for the queues that had no room, what is stored now.
func (b *dueBatch) tell(m *Manager) {
	for queue, n := range b.full {
		queue.Overflowed(n)
		m.logger.Warn("queue is full, delayed messages went to its dead letters", "queue", queue.Name(), "records", n)
	}
}

// overflow sends a message that nobody can be told the refusal of, since its publisher is not there to hear it, to the dead letters of
// the queue that it is for, if that is full; then it returns the queue. It counts in the queue if it is not.
func (m *Manager) overflow(name string, msg *store.Message) (full *feed.Feed) {
	queue, ok := topic.QueueOf(name)
	if !ok {
		return nil
	}
	f, err := m.queues.Find(queue)
	if err != nil || f.Admit(len(msg.Props)+len(msg.Payload)) {
		return nil // one that was deleted takes what it may find, should it be created again
	}
	if err := f.Overflow(msg); err != nil {
		m.logger.Error("queue is full and has no dead letter queue, a message exceeds its limits", "queue", queue, "err", err)
		return nil
	}
	return f
}

// append appends the batch and waits for its commit: before it, the messages would be found again.
func (b *dueBatch) append(m *Manager) error {
	w := newWaiter()
	w.add()
	if err := m.retained.append(m.log, b.msgs, b.muts, b.retain, true, w); err != nil {
		w.Committed(0, nil)
		return err
	}
	return w.wait()
}
