package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/edgemq/edgemq/store/record"
)

// model is what a store should hold: Message i has offset i + 1.
type model struct {
	messages []Message
	state    map[string]string
}

func (m *model) next() uint64 { return uint64(len(m.messages)) + 1 }

// same says how a record differs from the message it should be.
func (m *model) same(r Record) error {
	if r.Offset == 0 || r.Offset >= m.next() {
		return fmt.Errorf("offset %d was never given, next is %d", r.Offset, m.next())
	}
	w := m.messages[r.Offset-1]
	if string(r.Payload) != string(w.Payload) || string(r.Props) != string(w.Props) || r.Topic != w.Topic || r.Client != w.Client ||
		r.Flags != w.Flags || r.PacketID != w.PacketID || r.Expiry != w.Expiry {
		return fmt.Errorf("offset %d is %+v, want %+v", r.Offset, r, w)
	}
	return nil
}

// TestModel appends, reads, kills and restarts at random and compares with a model.
func TestModel(t *testing.T) {
	seeds := 30
	if testing.Short() {
		seeds = 6
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { modelRun(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func modelRun(t *testing.T, rng *rand.Rand) {
	o := small(t.TempDir())
	o.SharedBelow = int64(rng.IntN(16 << 10))
	o.SegmentBytes = int64(4<<10 + rng.IntN(100<<10))
	o.TailBytes = int64(1 + rng.IntN(200<<10))
	o.CacheBytes = int64(1 + rng.IntN(1<<20))
	o.CheckpointBytes = int64(1 + rng.IntN(1<<20))
	o.Sync = SyncMode(rng.IntN(3))
	m := &model{state: make(map[string]string)}
	r := start(t, o)
	const clients, topics = 12, 7
	for range clients {
		r.client(fmt.Sprint("c", rng.IntN(clients)))
	}
	largest := 1 + rng.IntN(20<<10)
	for range 300 {
		switch op := rng.IntN(20); {
		case op < 9:
			modelAppend(t, rng, r, m, largest)
		case op < 18:
			modelRead(t, rng, r, m, topics)
		case op == 18 && rng.IntN(20) == 0:
			r.flushAll()
		case op == 18:
			r.checkpointAll()
		default:
			if rng.IntN(2) == 0 {
				r.kill()
			} else {
				r.end()
			}
			if rng.IntN(3) == 0 {
				if report, err := Verify(o); err != nil {
					t.Fatalf("verify: %v, %+v", err, report)
				}
			}
			r = start(t, o)
			modelState(t, r, m)
		}
	}
	if recs := r.read(0); len(recs) != len(m.messages) {
		t.Fatalf("%d records, want %d", len(recs), len(m.messages))
	}
	if st := r.Stats(); st.Damaged != 0 {
		t.Errorf("%+v", st)
	}
}

func modelAppend(t *testing.T, rng *rand.Rand, r *running, m *model, largest int) {
	t.Helper()
	msgs := make([]Message, rng.IntN(30))
	for i := range msgs {
		w := Message{
			Topic: 1 + rng.Uint32N(7), Client: 1 + rng.Uint32N(12), Flags: record.Flags(rng.IntN(3)),
			PacketID: uint16(rng.Uint32()), Payload: make([]byte, rng.IntN(1+rng.IntN(largest))),
		}
		for j := range w.Payload {
			w.Payload[j] = byte(rng.Uint32())
		}
		if rng.IntN(3) == 0 {
			w.Props = []byte(fmt.Sprint("props", len(m.messages)+i))
		}
		if rng.IntN(3) == 0 {
			w.Flags |= record.FlagExpiry
			w.Expiry = rng.Uint32()
		}
		msgs[i] = w
	}
	var muts []Mutation
	for range rng.IntN(3) {
		k := fmt.Sprint("k", rng.IntN(20))
		if rng.IntN(3) == 0 {
			delete(m.state, k)
			muts = append(muts, record.Delete(record.BucketCursors, []byte(k)))
		} else {
			m.state[k] = fmt.Sprint(rng.Uint32())
			muts = append(muts, record.Put(record.BucketCursors, []byte(k), []byte(m.state[k])))
		}
	}
	base, err := r.tryPut(muts, msgs...)
	if err != nil || base != m.next() {
		t.Fatalf("append at %d: %d, %v", m.next(), base, err)
	}
	m.messages = append(m.messages, msgs...)
	if r.Next() != m.next() || r.Committed() != m.next() {
		t.Fatalf("next is %d, committed %d, want %d", r.Next(), r.Committed(), m.next())
	}
}

func modelRead(t *testing.T, rng *rand.Rand, r *running, m *model, topics uint32) {
	t.Helper()
	topic := rng.Uint32N(topics + 1) // 0 wants all
	want := func(_ uint64, id uint32) bool { return topic == 0 || id == topic }
	lim := Limits{MaxRecords: rng.IntN(50), MaxBytes: rng.IntN(100 << 10), MaxScan: rng.IntN(300)}
	from := rng.Uint64N(m.next() + 2)
	recs, next, err := r.NewReader().Read(nil, from, lim, want)
	if err != nil {
		t.Fatal(err)
	}
	var expected []uint64
	for o := max(from, 1); o < min(next, m.next()); o++ {
		if want(o, m.messages[o-1].Topic) {
			expected = append(expected, o)
		}
	}
	var got []uint64
	size := 0
	for _, rec := range recs {
		if err := m.same(rec); err != nil {
			t.Fatal(err)
		}
		got = append(got, rec.Offset)
		size += record.Size(len(rec.Props), len(rec.Payload))
	}
	if !slices.Equal(got, expected) {
		t.Fatalf("read of %d to %d (%+v, topic %d) returned %v, want %v", from, next, lim, topic, got, expected)
	}
	scanned := next - max(from, 1)
	switch {
	case lim.MaxRecords > 0 && len(recs) > lim.MaxRecords, lim.MaxScan > 0 && from < next && scanned > uint64(lim.MaxScan),
		lim.MaxBytes > 0 && len(recs) > 1 && size > lim.MaxBytes:
		t.Fatalf("read of %d to %d beyond its limits %+v: %d records, %d bytes", from, next, lim, len(recs), size)
	case next <= from && from < m.next():
		t.Fatalf("read at %d did not get on: %+v", from, lim)
	}
}

func modelState(t *testing.T, r *running, m *model) {
	t.Helper()
	if r.Next() != m.next() {
		t.Fatalf("after a restart next is %d, want %d", r.Next(), m.next())
	}
	n := 0
	err := r.Range(record.BucketCursors, nil, func(k, v []byte) bool {
		n++
		if m.state[string(k)] != string(v) {
			t.Errorf("key %s is %s, want %s", k, v, m.state[string(k)])
		}
		return true
	})
	if err != nil || n != len(m.state) {
		t.Fatalf("%d keys, want %d, %v", n, len(m.state), err)
	}
}
