package session

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"sync"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// epochs fence producers. MQTT lets one connection at a time have a client id, but which one is up to who connects last: a producer that
// was given up for dead and is not would take the id back from its successor. So a producer may say which of its kind it is,
// by a number, @Epoch, that rises with each successor: whoever comes with a lower one than was seen is refused.
type epochs struct {
	// mu is held, for reading, over the append of publishes of a connection that has an epoch, and for writing over the append of
	// a higher one: what is appended after that is not from a producer that is fenced.
	mu sync.RWMutex
	by map[uint32]uint64 // by client number
}

const epochVersion = 1

func epochKey(client uint32) []byte { return binary.BigEndian.AppendUint32(nil, client) }

// load reads the epochs of the state. Key: client number u32 big-endian. Value: version u8, epoch uvarint.
func (x *epochs) load(log *store.Store) error {
	x.by = map[uint32]uint64{}
	var bad error
	err := log.Range(record.BucketDedup, nil, func(k, v []byte) bool {
		if v, bad = checkVersion(v, epochVersion); bad == nil {
			e, n := binary.Uvarint(v)
			if len(k) != 4 || n <= 0 || n != len(v) {
				bad = errDamaged
			} else {
				x.by[binary.BigEndian.Uint32(k)] = e
			}
		}
		return bad == nil
	})
	if err == nil && bad != nil {
		err = fmt.Errorf("epoch of a producer: %w", bad)
	}
	return err
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

// raise has a client be of an epoch, if that is not lower than the one it is of. When it is higher, save is called with the
// change of state to append; nothing of a lower epoch is appended after that.
func (x *epochs) raise(client uint32, e uint64, save func(mut store.Mutation) error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.by[client]
	switch {
	case e < now:
		return fenced(e, now)
	case e == now:
		return nil
	}
	if err := save(record.Put(record.BucketDedup, epochKey(client), binary.AppendUvarint([]byte{epochVersion}, e))); err != nil {
		return err
	}
	x.by[client] = e
	return nil
}

// connectEpoch deals with the @Epoch of a CONNECT, if it has one. saved is told when it is on disk.
func (m *Manager) connectEpoch(l *Link, saved *waiter) error {
	for _, u := range l.Connect.User {
		if u.Name != wire.Epoch {
			continue
		}
		e, err := parseEpoch(u.Value)
		if err != nil {
			return err
		}
		client, err := m.log.ClientID(l.Connect.ClientID, m.expiryOf(l.Connect) > 0)
		if err != nil {
			return err
		}
		l.epoch, l.client = e, client
		return m.epochs.raise(client, e, func(mut store.Mutation) error {
			saved.add()
			if err := m.log.Append(nil, []store.Mutation{mut}, true, saved); err != nil {
				saved.Committed(0, nil)
				return err
			}
			return nil
		})
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
	l.m.epochs.mu.RLock()
	now := l.m.epochs.by[l.client]
	l.m.epochs.mu.RUnlock()
	switch {
	case e < now:
		return fenced(e, now)
	case e > now:
		err = l.m.epochs.raise(l.client, e, func(mut store.Mutation) error {
			l.in.durable = true
			return l.m.log.Append(nil, []store.Mutation{mut}, true, nil)
		})
	}
	if err == nil {
		l.epoch = e
	}
	return err
}

// unfenced appends, unless the link's producer is fenced by now.
func (x *epochs) unfenced(l *Link, do func() error) error {
	if l.epoch == 0 {
		return do()
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if now := x.by[l.client]; now > l.epoch {
		return fenced(l.epoch, now)
	}
	return do()
}
