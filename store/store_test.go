package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/store/record"
)

func TestAppendReadRestart(t *testing.T) {
	for _, row := range []struct {
		name string
		stop func(*running)
	}{
		{"clean stop", (*running).end},
		{"kill", (*running).kill},
		{"flushed, then kill", func(r *running) { r.flushAll(); r.kill() }},
		{"flushed, then clean stop", func(r *running) { r.flushAll(); r.end() }},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := small(t.TempDir())
			r := start(t, o)
			if r.Next() != 1 || r.First() != 1 || r.Committed() != 1 {
				t.Fatalf("a new store has %d, %d, %d", r.First(), r.Committed(), r.Next())
			}
			topic, client := r.topic("a/b"), r.client("meter-7")
			want := []Message{
				{Topic: topic, Client: client, Payload: []byte("one"), Flags: record.Flags(1) | record.FlagRetain, PacketID: 7},
				{Topic: topic, Client: client, Payload: []byte{}, Props: []byte("props"), Flags: record.FlagExpiry, Expiry: 3},
			}
			if base := r.put(want...); base != 1 {
				t.Fatalf("first offset is %d", base)
			}
			if _, err := r.tryPut([]Mutation{record.Put(record.BucketCursors, []byte("k"), []byte("v"))}); err != nil {
				t.Fatal(err)
			}
			row.stop(r)

			r = start(t, o)
			recs := r.read(0)
			if len(recs) != 2 || r.Next() != 3 {
				t.Fatalf("%d records, next %d", len(recs), r.Next())
			}
			for i, m := range want {
				g := recs[i]
				if g.Offset != uint64(i+1) || string(g.Payload) != string(m.Payload) || string(g.Props) != string(m.Props) ||
					g.Flags != m.Flags || g.PacketID != m.PacketID || g.Expiry != m.Expiry || g.Topic != topic || g.Client != client {
					t.Errorf("record %d is %+v, want %+v", i, g, m)
				}
			}
			if v, ok, err := r.Get(record.BucketCursors, []byte("k")); string(v) != "v" || !ok || err != nil {
				t.Errorf("state: %q, %v, %v", v, ok, err)
			}
			if r.topic("a/b") != topic || r.client("meter-7") != client || r.TopicName(topic) != "a/b" || r.ClientName(client) != "meter-7" {
				t.Error("numbers have changed")
			}
			if next := r.topic("new"); next != topic+1 {
				t.Errorf("the next topic is %d", next)
			}
		})
	}
}

func TestLocked(t *testing.T) {
	o := small(t.TempDir())
	start(t, o)
	if _, err := Open(o); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), o.Dir) {
		t.Fatalf("second Open: %v", err)
	}
	if _, err := Verify(o); !errors.Is(err, ErrLocked) {
		t.Fatalf("Verify of an open store: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	r := start(t, small(t.TempDir()))
	for _, row := range []struct {
		name string
		msgs []Message
		muts []Mutation
		want error
	}{
		{"larger than a group", []Message{{Payload: make([]byte, 1<<20)}}, nil, ErrTooLarge},
		{"sum larger than a group", []Message{{Payload: make([]byte, 200<<10)}, {Payload: make([]byte, 200<<10)}}, nil, ErrTooLarge},
		{"key too long", nil, []Mutation{record.Put(record.BucketCursors, make([]byte, 40<<10), nil)}, ErrTooLarge},
		{"largest that fits", []Message{{Payload: make([]byte, 236<<10)}}, nil, nil},
		{"unknown flags are cut off", []Message{{Flags: 0xFFFF &^ record.FlagTransient}}, nil, nil},
	} {
		if _, err := r.tryPut(row.muts, row.msgs...); !errors.Is(err, row.want) || (err != nil) != (row.want != nil) {
			t.Errorf("%s: %v, want %v", row.name, err, row.want)
		}
	}
	if n := len(r.read(1)); n != 2 {
		t.Errorf("%d records", n)
	}
	r.end()
	if err := r.Append([]Message{{}}, nil, true, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("append after the end: %v", err)
	}
}

func TestFollow(t *testing.T) {
	o := small(t.TempDir())
	r := start(t, o)
	r.put(Message{Payload: []byte("past")})
	r.end()
	r = start(t, o)
	ctx, cancel := context.WithCancel(context.Background())
	seen := make(chan Record, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- r.Follow(ctx, func(g *Group) {
			for i := range g.Entries {
				seen <- g.Record(i)
			}
		})
	}()
	for i := range 50 {
		r.put(numbered(1, 1, i, 20))
	}
	for i := range 50 {
		if rec := <-seen; rec.Offset != uint64(i+2) {
			t.Fatalf("followed %d, want %d", rec.Offset, i+2)
		} else if n, err := number(rec); n != i || err != nil {
			t.Fatalf("number %d, %v", n, err)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Follow: %v", err)
	}
}

func TestSearchTime(t *testing.T) {
	o := small(t.TempDir())
	var now clock
	now.micros.Store(1_000_000)
	o.Now = now.now
	r := start(t, o)
	search := func(when string) {
		t.Helper()
		for _, row := range []struct {
			at   int64
			want uint64
		}{{0, 1}, {1_000_000, 1}, {1_000_001, 11}, {1_000_500, 11}, {1_001_000, 11}, {1_001_001, 21}, {1_099_000, 991}, {1_099_001, 1001}, {1 << 60, 1001}} {
			if got := r.SearchTime(row.at); got != row.want {
				t.Errorf("%s: time %d is offset %d, want %d", when, row.at, got, row.want)
			}
		}
	}
	if got := r.SearchTime(5); got != 1 {
		t.Errorf("in an empty store: %d", got)
	}
	for i := range 100 {
		now.micros.Store(1_000_000 + int64(i)*1000)
		for range 10 {
			r.put(numbered(1, 1, i, 100))
		}
	}
	search("in memory")
	r.flushAll()
	search("in part on disk")
	r.kill()
	now.micros.Store(0) // a clock that was set back
	r = start(t, o)
	search("on disk")
	r.put(numbered(1, 1, 100, 100))
	if recs := r.read(1001); len(recs) != 1 || recs[0].Time != 1_099_000 {
		t.Errorf("after the clock went back: %+v", recs)
	}
}

func TestDictionaries(t *testing.T) {
	o := small(t.TempDir())
	r := start(t, o)
	const n = 3000
	ids := make(map[string]uint32)
	for i := range n {
		name := fmt.Sprint("client-", i)
		id, err := r.ClientID(name, i%3 == 0)
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = id
		if topic := r.topic(fmt.Sprint("t/", i)); topic != uint32(i+1) {
			t.Fatalf("topic %d is %d", i, topic)
		}
	}
	check := func() {
		t.Helper()
		seen := make(map[uint32]bool)
		for name, id := range ids {
			if seen[id] {
				t.Fatalf("number %d twice", id)
			}
			seen[id] = true
			if got := r.client(name); got != id {
				t.Fatalf("%s is %d, was %d", name, got, id)
			}
			if got := r.ClientName(id); got != name {
				t.Fatalf("%d is %s, was %s", id, got, name)
			}
		}
		for i := range n {
			if id, ok := r.LookupTopic(fmt.Append(nil, "t/", i)); !ok || id != uint32(i+1) || r.TopicName(id) != fmt.Sprint("t/", i) {
				t.Fatalf("topic %d: %d, %v, %s", i, id, ok, r.TopicName(id))
			}
		}
		if _, ok := r.LookupTopic([]byte("unknown")); ok || r.TopicName(n+1) != "" || r.ClientName(1<<30) != "" || r.Topics() != n {
			t.Error("names of nothing")
		}
	}
	check()
	r.kill()
	r = start(t, o)
	check()
	r.end()
	r = start(t, o)
	check()
	if id := r.client("another"); id <= n {
		t.Errorf("number %d was given before", id)
	}
	name := []byte("t/7")
	if n := testing.AllocsPerRun(100, func() { r.LookupTopic(name) }); n != 0 {
		t.Errorf("LookupTopic allocates %v times", n)
	}
}
