package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/edgemq/edgemq/store/record"
)

// numberSet is a set of numbers, by 64 of them.
type numberSet map[uint32]uint64

func (x numberSet) add(n uint32) { x[n>>6] |= 1 << (n & 63) }

func (x numberSet) has(n uint32) bool { return x[n>>6]&(1<<(n&63)) != 0 }

// marks are the numbers that something refers to.
type marks struct {
	s               *Store
	topics, clients numberSet
}

func newMarks(s *Store) *marks { return &marks{s: s, topics: numberSet{}, clients: numberSet{}} }

// errUnknowable means that the ledger has entries that are damaged, so nobody knows which numbers they had.
var errUnknowable = errors.New("the ledger is damaged, and with it which names are in use")

// log marks what the log refers to from an offset on, and returns up to where: all that is committed, or more. The tail tells of what it has, messages for live
// subscribers only among it, of full blocks the index, and of the rest the ledger.
func (m *marks) log(ctx context.Context, from uint64) (end uint64, err error) {
	s, x := m.s, &m.s.index
	from = max(from, s.First())
	g, caughtUp := s.tail.find(max(from, s.tail.oldest()))
	for g == nil && !caughtUp { // the tail has forgotten the oldest just now
		g, caughtUp = s.tail.find(max(from, s.tail.oldest()))
	}
	for ; g != nil; g = g.next.Load() {
		m.group(g)
	}
	for ctx.Err() == nil {
		if from < x.until.Load() {
			base := from / x.size * x.size
			if o := x.newest(); o.base == base && base+uint64(len(o.topics)) > from {
				for _, topic := range o.topics[from-base:] {
					m.topics.add(topic)
				}
				for _, client := range o.clients {
					m.clients.add(client)
				}
				if len(o.bad) > 0 {
					return 0, errUnknowable
				}
				from = base + uint64(len(o.topics))
				continue
			}
			if from > max(base, 1) || !m.block(base) {
				if err := m.ledger(ctx, from, base+x.size); err != nil {
					return 0, err
				}
			}
			from = base + x.size
			continue
		}
		g, caughtUp := s.tail.find(from)
		switch {
		case caughtUp:
			return from, nil
		case g == nil:
			oldest := s.tail.oldest()
			if err := m.ledger(ctx, from, oldest); err != nil {
				return 0, err
			}
			from = oldest
		default:
			m.group(g)
			from = max(from, g.End())
		}
	}
	return 0, ctx.Err()
}

// group marks what a group of the tail refers to.
func (m *marks) group(g *Group) {
	for i := range g.Entries {
		m.topics.add(g.Entries[i].Topic)
		m.clients.add(g.Entries[i].Client)
	}
}

// block marks what a whole block refers to, false if its index does not tell.
func (m *marks) block(base uint64) bool {
	x := &m.s.index
	if !x.has(base / x.size) {
		return false
	}
	b, err := readIndex(m.s.fs, x.path(base/x.size), base, x.size)
	if err != nil {
		return false
	}
	if print, err := x.fingerprint(base / x.size); err != nil || print != b.print {
		return false
	}
	clients, ok, err := b.clients(m.s.fs)
	if err != nil || !ok {
		return false
	}
	for i := range b.dir {
		m.topics.add(b.dir[i].topic)
	}
	for _, client := range clients {
		m.clients.add(client)
	}
	return true
}

// ledger marks what the entries of a stretch refer to.
func (m *marks) ledger(ctx context.Context, from, to uint64) error {
	c := chunks.Get().(*chunk)
	defer chunks.Put(c)
	for from < to {
		start := time.Now()
		n, err := m.s.ledger.Read(from, c.entries[:min(maxChunk, to-from)])
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("store: ledger ends at offset %d, %d was expected", from, to)
		}
		for i := range c.entries[:n] {
			e := &c.entries[i]
			if e.Bad {
				return errUnknowable
			}
			if e.Segment != 0 {
				m.topics.add(e.Topic)
				m.clients.add(e.Client)
			}
		}
		from += uint64(n)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(indexRest * time.Since(start)):
		}
	}
	return nil
}

// state marks what the state, the table of segments and the rest of the program refer to. What told returns is as Options.InUse says.
func (m *marks) state() (told uint64, err error) {
	for _, b := range []record.Bucket{record.BucketDedup, record.BucketHosts} {
		err := m.s.state.Range(b, nil, func(k, _ []byte) bool {
			if len(k) >= 4 {
				m.clients.add(binary.BigEndian.Uint32(k))
			}
			return true
		})
		if err != nil {
			return 0, err
		}
	}
	all, _ := m.s.table.snapshot()
	for _, g := range all {
		m.clients.add(g.client)
	}
	if m.s.opt.InUse == nil {
		return m.s.Committed(), nil
	}
	return m.s.opt.InUse(m.topics.add, m.clients.add)
}
