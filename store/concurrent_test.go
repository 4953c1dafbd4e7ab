package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestConcurrent has publishers, feeds that keep up, feeds that lag, a follower, checkpoints and retention at work at the
// same time. Every reader must see every offset once, in order: nothing is lost at the border between memory and disk,
// nothing comes twice, and what a reader still needs is not deleted.
func TestConcurrent(t *testing.T) {
	const writers, readers, perWriter = 4, 4, 3000
	positions := make([]atomic.Uint64, readers)
	for i := range positions {
		positions[i].Store(1)
	}
	o := small(t.TempDir())
	o.SegmentBytes, o.CheckpointBytes, o.RetainBytes = 32<<10, 256<<10, 128<<10
	o.Protect = func() uint64 {
		lowest := positions[0].Load()
		for i := range positions {
			lowest = min(lowest, positions[i].Load())
		}
		return lowest
	}
	r := start(t, o)
	ctx, cancel := context.WithCancel(context.Background())
	var wg, writing sync.WaitGroup
	const total = writers * perWriter
	wg.Go(func() {
		next := uint64(1)
		err := r.Follow(ctx, func(g *Group) {
			if g.Base != next {
				t.Errorf("followed to %d, then %d", next, g.Base)
			}
			next = g.End()
			for i := range g.Entries {
				if _, err := number(g.Record(i)); err != nil {
					t.Error(err)
				}
			}
			if next == total+1 {
				cancel()
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	for w := range writers {
		client := r.client(fmt.Sprint("c", w))
		writing.Go(func() {
			done := make(based, perWriter)
			for i := 0; i < perWriter; {
				var msgs []Message
				for range min(1+i%17, perWriter-i) {
					msgs = append(msgs, numbered(r.topic(fmt.Sprint("t", i%5)), client, i, 8+i*7%900))
					i++
				}
				if err := r.Append(msgs, nil, i%3 != 0, done); err != nil {
					t.Error(err)
					return
				}
				if a := <-done; a.err != nil {
					t.Error(a.err)
				}
			}
		})
	}
	for i := range readers {
		wg.Go(func() {
			reader, from := r.NewReader(), uint64(1)
			last := make(map[uint32]int) // by client
			for from <= total {
				recs, next, err := reader.Read(nil, from, Limits{MaxRecords: 1 + i*37, MaxScan: 500}, all)
				if err != nil {
					t.Error(err)
					return
				}
				for j, rec := range recs {
					if rec.Offset != from+uint64(j) {
						t.Errorf("reader %d: offset %d where %d was expected", i, rec.Offset, from+uint64(j))
						return
					}
					n, err := number(rec)
					if before, ok := last[rec.Client]; err != nil || ok && n != before+1 {
						t.Errorf("reader %d: number %d of client %d follows %d: %v", i, n, rec.Client, before, err)
						return
					}
					last[rec.Client] = n
				}
				if next != from+uint64(len(recs)) {
					t.Errorf("reader %d: next is %d after %d records from %d", i, next, len(recs), from)
					return
				}
				from = next
				positions[i].Store(from)
				if len(recs) == 0 {
					time.Sleep(time.Millisecond)
				}
				if i%2 == 1 {
					time.Sleep(200 * time.Microsecond) // lags
				}
			}
		})
	}
	writing.Wait()
	wg.Wait()
	if st := r.Stats(); st.Damaged > 0 || st.DeletedSegments == 0 || st.Checkpoints < 3 {
		t.Errorf("%+v", st)
	}
	r.end()
	if report, err := Verify(o); err != nil {
		t.Errorf("%v: %+v", err, report)
	}
}

// A follower that stands still holds up appends, not the memory of the machine; when it goes on or leaves so do they.
func TestSlowFollower(t *testing.T) {
	o := small(t.TempDir())
	o.JournalFileBytes, o.CheckpointBytes, o.SegmentBytes = 16<<20, 32<<20, 64<<20
	r := start(t, o)
	ctx, cancel := context.WithCancel(context.Background())
	stuck := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Follow(ctx, func(*Group) { <-stuck })
	}()
	msg := []Message{{Topic: 1, Client: 1, Payload: make([]byte, 1<<20)}}
	var appended atomic.Int64
	wrote := make(chan error, 1)
	go func() {
		for range 100 {
			if err := r.Append(msg, nil, true, nil); err != nil {
				wrote <- err
				return
			}
			appended.Add(1)
		}
		wrote <- nil
	}()
	r.await("the committer to wait", func() bool { return r.waiting.Load() > 0 })
	if n := appended.Load(); n == 100 || r.Stats().TailBytes > maxUnfollowed+3*maxOpen {
		t.Errorf("%d appends got through, the tail has %d bytes", n, r.Stats().TailBytes)
	}
	cancel()
	close(stuck)
	<-ended
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

// A client that has written little shares a segment; one that has written more, or is persistent, has its own.
func TestSharedAndOwnSegments(t *testing.T) {
	o := small(t.TempDir())
	r := start(t, o)
	dirs := func() string {
		r.checkpointAll()
		names, err := filepath.Glob(filepath.Join(o.Dir, "segments", "*"))
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, name := range names {
			out += filepath.Base(name) + " "
		}
		return out
	}
	put := func(client uint32, n, size int) {
		for i := range n {
			r.put(numbered(1, client, i, size))
		}
	}
	for i := range 100 {
		put(r.client(fmt.Sprint("oneshot-", i)), 1, 20)
	}
	if got := dirs(); got != "shared " {
		t.Fatalf("after one-shot clients: %s", got)
	}
	big := r.client("big")
	put(big, 20, 1000)
	if got := dirs(); got != fmt.Sprintf("%08x shared ", big) {
		t.Fatalf("after a big client: %s", got)
	}
	persistent, err := r.ClientID("persistent", true)
	if err != nil {
		t.Fatal(err)
	}
	put(persistent, 1, 10)
	upgraded := r.client("upgraded")
	put(upgraded, 1, 10)
	if got := dirs(); got != fmt.Sprintf("%08x %08x shared ", big, persistent) {
		t.Fatalf("after a persistent client: %s", got)
	}
	if id, err := r.ClientID("upgraded", true); id != upgraded || err != nil {
		t.Fatalf("upgraded: %d, was %d, %v", id, upgraded, err)
	}
	put(persistent, 1, 10) // its commit comes behind that of the upgrade
	put(upgraded, 1, 10)
	if got := dirs(); got != fmt.Sprintf("%08x %08x %08x shared ", big, persistent, upgraded) {
		t.Fatalf("after an upgrade: %s", got)
	}
	r.end()
	r = start(t, o)
	put(big, 1, 10)
	put(persistent, 1, 10)
	if got := dirs(); got != fmt.Sprintf("%08x %08x %08x shared ", big, persistent, upgraded) {
		t.Fatalf("after a restart: %s", got)
	}
	if st := r.Stats(); st.Segments != 4+int(100*64+20*1044)/(64<<10) {
		t.Errorf("%d segments: the open ones were not gone on with", st.Segments)
	}
	seen := make(map[uint32]int)
	for _, rec := range r.read(1) {
		n, err := number(rec)
		if err != nil {
			t.Fatal(err)
		}
		seen[rec.Client] = n
	}
	if len(seen) != 103 || seen[big] != 0 {
		t.Errorf("%d clients, %v", len(seen), seen[big])
	}
}

// More clients than there are file handles, each with a segment of its own.
func TestManyClients(t *testing.T) {
	o := small(t.TempDir())
	o.SharedBelow, o.SegmentBytes, o.TailBytes = 1, 4<<10, 1
	o.CheckpointBytes = 8 << 20
	r := start(t, o)
	const clients, rounds = maxHandles + maxWriters/2, 5
	ids := make([]uint32, clients)
	for c := range clients {
		ids[c] = r.client(fmt.Sprint("c", c))
	}
	check := func() {
		t.Helper()
		recs := r.read(1)
		if len(recs) != int(r.Committed()-1) {
			t.Fatalf("%d records of %d", len(recs), r.Committed()-1)
		}
		for i, rec := range recs {
			if n, err := number(rec); n != i || err != nil || rec.Client != ids[i%clients] {
				t.Fatalf("record %d: number %d of client %d, %v", i, n, rec.Client, err)
			}
		}
	}
	i := 0
	for range rounds {
		msgs := make([]Message, clients)
		for c := range msgs {
			msgs[c] = numbered(1, ids[c], i, 60)
			i++
		}
		for len(msgs) > 0 {
			n := min(len(msgs), 100)
			r.put(msgs[:n]...)
			msgs = msgs[n:]
		}
		r.checkpointAll()
		check()
	}
	if n := len(r.handles.open); n > maxHandles {
		t.Errorf("%d handles are open", n)
	}
	if n := len(r.Store.flusher.writers); n > maxWriters {
		t.Errorf("%d writers are open", n)
	}
	r.kill()
	r = start(t, o)
	check()
}
