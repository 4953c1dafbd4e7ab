package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// epochs fence producers. MQTT lets one connection at a time have a client id, but which one is up to who connects last: a producer that
// was given up for dead and is not would take the id back from its successor. So a producer may say which of its kind it is,
// by a number, @Epoch, that rises with each successor: whoever comes with a lower one than was seen is refused.
//
// What is known of a client is in memory while one of its connections uses an epoch, and in the state always.
type epochs struct {
	log *store.Store

	mu sync.Mutex // a leaf
	by map[uint32]*fence
}

// fence is the highest epoch of one client.
type fence struct {
	x      *epochs
	client uint32
	users  int // links, and changes on their way to the state; guarded by epochs.mu

	// mu is held, for reading, over the append of publishes of a connection that has an epoch, and for writing over the append of
	// a higher one: what is appended after that is not from a producer that is fenced. So it may be held for as long as the store has no
	// room, and who waits for it must hold nothing that other clients need.
	mu   sync.RWMutex
	read bool // what the state has
	now  atomic.Uint64
}

const epochVersion = 1

func epochKey(client uint32) []byte { return binary.BigEndian.AppendUint32(nil, client) }

// load sees to it that the epochs in the state can be read. Key: client number u32 big-endian. Value: version u8, epoch uvarint.
func (x *epochs) load(log *store.Store) error {
	x.log, x.by = log, map[uint32]*fence{}
	var bad error
	err := log.Range(record.BucketDedup, nil, func(k, v []byte) bool {
		if _, bad = readEpoch(v); bad == nil && len(k) != 4 {
			bad = fmt.Errorf("epoch of a producer: %w", errDamaged)
		}
		return bad == nil
	})
	return errors.Join(err, bad)
}

func readEpoch(v []byte) (uint64, error) {
	v, err := checkVersion(v, epochVersion)
	if err == nil {
		if e, n := binary.Uvarint(v); n > 0 && n == len(v) {
			return e, nil
		}
		err = errDamaged
	}
	return 0, fmt.Errorf("epoch of a producer: %w", err)
}

// hold returns the fence of a client, to be released. It may read the disk.
func (x *epochs) hold(client uint32) (*fence, error) {
	x.mu.Lock()
	f := x.by[client]
	if f == nil {
		f = &fence{x: x, client: client}
		x.by[client] = f
	}
	f.users++
	x.mu.Unlock()
	if err := f.load(); err != nil {
		f.release()
		return nil, err
	}
	return f, nil
}

// load reads what the state has. The fence is known to all already, so what is not in the state by now goes by it.
func (f *fence) load() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.read {
		return nil
	}
	v, ok, err := f.x.log.Get(record.BucketDedup, epochKey(f.client))
	if err == nil && ok {
		var e uint64
		if e, err = readEpoch(v); err == nil {
			f.now.Store(e)
		}
	}
	f.read = err == nil
	return err
}

func (f *fence) release() {
	f.x.mu.Lock()
	defer f.x.mu.Unlock()
	if f.users--; f.users == 0 {
		delete(f.x.by, f.client)
	}
}

// raised holds a fence until the state has what it was raised to, and then tells done, if there is one.
type raised struct {
	f    *fence
	done store.Completion
}

// Committed implements store.Completion.
func (r raised) Committed(base uint64, err error) {
	r.f.release()
	if r.done != nil {
		r.done.Committed(base, err)
	}
}

// parseEpoch reads the user property @Epoch.
func parseEpoch(text string) (uint64, error) {
	e, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, &packet.Error{Code: packet.CodeImplementation, Msg: fmt.Sprintf("%s %q is not a whole number", wire.Epoch, text)}
	}
	return e, nil
}

// fenced is the error of a producer whose successor was seen.
func fenced(e, now uint64) error {
	return &packet.Error{Code: packet.CodeNotAuthorized, Msg: fmt.Sprintf("%s %d is over, a producer of this client id has %d", wire.Epoch, e, now)}
}

// raise has a client be of an epoch, if that is not lower than the one it is of. When it is higher nothing of a lower one is appended
// after that, and done, if not nil, is told when it is on disk.
func (f *fence) raise(e uint64, done store.Completion) (told bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch now := f.now.Load(); {
	case e < now:
		return false, fenced(e, now)
	case e == now:
		return false, nil
	}
	f.x.mu.Lock()
	f.users++
	f.x.mu.Unlock()
	mut := record.Put(record.BucketDedup, epochKey(f.client), binary.AppendUvarint([]byte{epochVersion}, e))
	if err := f.x.log.Append(nil, []store.Mutation{mut}, true, raised{f, done}); err != nil {
		f.release()
		return false, err
	}
	f.now.Store(e)
	return true, nil
}

// over returns an error if a producer of a higher epoch was seen.
func (f *fence) over(e uint64) error {
	if now := f.now.Load(); now > e {
		return fenced(e, now)
	}
	return nil
}

// connectEpoch deals with the @Epoch of a CONNECT, if it has one. saved is told when it is on disk. It may wait for a connection of the same
// client, and for the disk, so no lock is held.
func (m *Manager) connectEpoch(l *Link, saved *waiter) error {
	for _, u := range l.Connect.User {
		if u.Name != wire.Epoch {
			continue
		}
		e, err := parseEpoch(u.Value)
		if err != nil {
			return err
		}
		defer m.log.Use().Done() // until the client is one that epochs hold
		client, err := m.log.ClientID(l.Connect.ClientID, m.expiryOf(l.Connect) > 0)
		if err != nil {
			return err
		}
		if l.fence, err = m.epochs.hold(client); err != nil {
			return err
		}
		l.epoch, l.client = e, client
		saved.add()
		told, err := l.fence.raise(e, saved)
		if !told {
			saved.Committed(0, nil)
		}
		return err
	}
	return nil
}

// publishEpoch deals with the @Epoch of a publish, if it has one.
func (l *Link) publishEpoch(props []byte) error {
	text, ok := packet.FindUser(props, wire.Epoch)
	if !ok {
		return nil
	}
	e, err := parseEpoch(string(text))
	if err != nil {
		return err
	}
	if l.fence == nil {
		if l.fence, err = l.m.epochs.hold(l.client); err != nil {
			return err
		}
	}
	if now := l.fence.now.Load(); e < now {
		return fenced(e, now)
	} else if e > now {
		var told bool
		if told, err = l.fence.raise(e, nil); told {
			l.in.durable = true
		}
	}
	if err == nil {
		l.epoch = e
	}
	return err
}

// unfenced appends, unless the link's producer is fenced by now.
func (l *Link) unfenced(do func() error) error {
	if l.epoch == 0 {
		return do()
	}
	l.fence.mu.RLock()
	defer l.fence.mu.RUnlock()
	if err := l.fence.over(l.epoch); err != nil {
		return err
	}
	return do()
}

// unfence is the end of the link's part in it; the reader's.
func (l *Link) unfence() {
	if l.fence != nil {
		l.fence.release()
		l.fence = nil
	}
}
