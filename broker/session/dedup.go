package session

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// dedup knows the @MessageIds that each publisher used lately, and where their messages are: a second publish with
// the same id is acknowledged and not stored. After a restart it reads the ids back from the log.
type dedup struct {
	window time.Duration // how long an id is remembered; 0 turns it off
	each   int           // ids of one publisher
	total  int           // ids of all
	ready  chan struct{} // closed once the log has been read

	mu   sync.Mutex
	pubs map[uint32]*publisherIDs
	n    int
}

// publisherIDs are the ids of one publisher, the oldest first in queue.
type publisherIDs struct {
	seen  map[string]*first
	queue []*first
	head  int
}

// first is the first message with an id.
type first struct {
	id     string
	at     atomic.Int64  // µs since 1970; that of its message once there is an offset
	offset atomic.Uint64 // 0 until it is committed
}

func (d *dedup) init(window time.Duration, each, total int) {
	d.window, d.each, d.total = window, each, total
	d.ready = make(chan struct{})
	d.pubs = map[uint32]*publisherIDs{}
}

// check returns the first message with a publisher's id, and whether that is an earlier one.
func (d *dedup) check(client uint32, id []byte, now int64) (f *first, dup bool) {
	<-d.ready
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pubs[client]
	if p == nil {
		p = &publisherIDs{seen: map[string]*first{}}
		d.pubs[client] = p
	}
	d.trim(p, now)
	if f = p.seen[string(id)]; f != nil {
		return f, true
	}
	return d.add(p, string(id), now), false
}

// add remembers an id; mu is held.
func (d *dedup) add(p *publisherIDs, id string, now int64) *first {
	f := &first{id: id}
	f.at.Store(now)
	p.seen[id] = f
	p.queue = append(p.queue, f)
	d.n++
	return f
}

// trim forgets what is too old or too many; mu is held.
func (d *dedup) trim(p *publisherIDs, now int64) {
	for p.head < len(p.queue) {
		f := p.queue[p.head]
		if now-f.at.Load() < d.window.Microseconds() && len(p.queue)-p.head < d.each && d.n < d.total {
			break
		}
		p.queue[p.head] = nil
		p.head++
		d.n--
		if p.seen[f.id] == f {
			delete(p.seen, f.id)
		}
	}
	if p.head > 64 && p.head > len(p.queue)/2 {
		p.queue = append(p.queue[:0:0], p.queue[p.head:]...)
		p.head = 0
	}
}

// forget takes an id back whose message was not stored.
func (d *dedup) forget(client uint32, f *first) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.pubs[client]; p != nil && p.seen[f.id] == f {
		delete(p.seen, f.id) // the queue lets go of it in its time
	}
}

// sweep forgets the publishers that have been silent for the whole window.
func (d *dedup) sweep(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for client, p := range d.pubs {
		if d.trim(p, now.UnixMicro()); p.head == len(p.queue) {
			delete(d.pubs, client)
		}
	}
}

// rebuild reads the ids of the window from the log.
func (d *dedup) rebuild(ctx context.Context, m *Manager) {
	defer close(d.ready)
	if d.window == 0 {
		return
	}
	// Delayed messages first: those that are due meanwhile are found in the log.
	if err := d.restoreDelayed(ctx, m); err != nil {
		m.logger.Error("reading the message ids of delayed messages back failed, duplicates may be stored", "err", err)
	}
	from := m.log.SearchTime(m.log.Now().Add(-d.window).UnixMicro())
	if next := m.log.Committed(); next > uint64(d.total) { // what is further back would be forgotten again
		from = max(from, next-uint64(d.total))
	}
	r := m.log.NewReader()
	var recs []store.Record
	for end := m.log.Committed(); from < end && ctx.Err() == nil; {
		var err error
		recs, from, err = r.Read(recs[:0], from, store.Limits{MaxRecords: 4096, MaxBytes: 4 << 20, Flags: record.FlagKeyed}, func(uint64, uint32) bool { return true })
		if err != nil {
			m.logger.Error("reading message ids back failed, duplicates may be stored", "err", err)
			return
		}
		d.mu.Lock()
		for i := range recs {
			d.restore(&recs[i])
		}
		d.mu.Unlock()
	}
}

// restoreDelayed remembers the ids of messages that wait for their time and have no place in the log.
func (d *dedup) restoreDelayed(ctx context.Context, m *Manager) error {
	since := m.log.Now().Add(-d.window).UnixMicro()
	var recs []store.Record
	err := m.log.Range(record.BucketDelayed, nil, func(_, v []byte) bool {
		if _, _, rec, err := parseDelayed(v); err == nil && rec.Time >= since && len(rec.Props) > 0 {
			if _, ok := packet.FindUser(rec.Props, wire.MessageID); ok {
				recs = append(recs, store.Record{Client: rec.Client, Time: rec.Time, Props: slices.Clone(rec.Props)})
			}
		}
		return ctx.Err() == nil && len(recs) < d.total
	})
	slices.SortStableFunc(recs, func(a, b store.Record) int { return cmp.Compare(a.Time, b.Time) })
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range recs {
		d.restore(&recs[i])
	}
	return err
}

// restore remembers the id of a stored message; mu is held.
func (d *dedup) restore(rec *store.Record) {
	if len(rec.Props) == 0 {
		return
	}
	id, ok := packet.FindUser(rec.Props, wire.MessageID)
	if !ok {
		return
	}
	p := d.pubs[rec.Client]
	if p == nil {
		p = &publisherIDs{seen: map[string]*first{}}
		d.pubs[rec.Client] = p
	}
	d.trim(p, rec.Time)
	if p.seen[string(id)] == nil {
		d.add(p, string(id), rec.Time).offset.Store(rec.Offset)
	}
}
