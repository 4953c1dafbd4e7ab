package store

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
)

// Without its state a store cannot tell what the other files hold. It must not begin anew and take them for leftovers.
func TestStateMissing(t *testing.T) {
	for _, row := range []struct {
		name string
		also []string // what else is gone
	}{
		{"alone", nil},
		{"with the journal", []string{"journal"}},
		{"with ledger and segments", []string{"ledger", "segments"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := offline(t)
			for _, name := range append(row.also, "state.db") {
				if err := os.RemoveAll(filepath.Join(o.Dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			_, err := Open(o)
			var c *record.CorruptError
			if !errors.As(err, &c) || c.Path != filepath.Join(o.Dir, "state.db") {
				t.Fatalf("Open: %v", err)
			}
			if _, err := Verify(o); !errors.Is(err, ErrDamaged) {
				t.Errorf("Verify: %v", err)
			}
		})
	}
}

// A file that is lost has the records in it counted and its name logged, but not a line for each of them.
func TestLostFilesDoNotFloodTheLog(t *testing.T) {
	const records = 3000
	for _, row := range []struct{ name, file string }{{"segment", "segments/00000001/*.seg"}, {"ledger", "ledger/*.ldg"}} {
		t.Run(row.name, func(t *testing.T) {
			o := small(t.TempDir())
			o.SharedBelow, o.SegmentBytes = 1, 16<<20
			s := start(t, o)
			topic, client := s.topic("t"), s.client("c")
			for range records / 100 {
				var msgs []Message
				for range 100 {
					msgs = append(msgs, Message{Topic: topic, Client: client, Payload: make([]byte, 10)})
				}
				s.put(msgs...)
			}
			s.end()
			names, err := filepath.Glob(filepath.Join(o.Dir, row.file))
			if err != nil || len(names) != 1 {
				t.Fatal(names, err)
			}
			if err := os.Remove(names[0]); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
			r, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			reader := r.NewReader()
			for from := uint64(1); from < r.Committed(); {
				recs, next, err := reader.Read(nil, from, Limits{}, func(uint64, uint32) bool { return true })
				if err != nil || len(recs) > 0 || next <= from {
					t.Fatalf("read from %d: %d records, %d, %v", from, len(recs), next, err)
				}
				from = next
			}
			if n := r.count.damaged.Load(); n != records {
				t.Errorf("%d damaged records were counted, want %d", n, records)
			}
			if n := strings.Count(log.String(), "\n"); n == 0 || n > 5 || !strings.Contains(log.String(), names[0]) {
				t.Errorf("%d lines:\n%.1000s", n, log.String())
			}
		})
	}
}

// The index knows the topic of a record whose entry in the ledger is damaged.
func TestDamagedEntryOfAnIndexedBlock(t *testing.T) {
	o := small(t.TempDir())
	o.indexBlock = 64
	r := start(t, o)
	for i := range 200 {
		r.put(numbered(r.topic([]string{"a", "b"}[i%2]), r.client("c"), i, 10))
	}
	r.checkpointAll()
	r.await("the index", func() bool { return r.index.until.Load() > 192 })
	r.end()
	path := filepath.Join(o.Dir, "ledger", "00000000.ldg")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []int{80, 81} { // of b and a
		b[record.FileHeaderSize+offset*ledger.EntrySize+8] ^= 1
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	r.await("the index", func() bool { return r.index.until.Load() > 192 })
	wanted := r.topic("a")
	var gap Gap
	recs, _, err := r.NewReader().Read(nil, 1, Limits{Dropped: &gap}, func(_ uint64, topic uint32) bool { return topic == wanted })
	if err != nil || len(recs) != 99 || gap != (Gap{81, 82, 1}) {
		t.Errorf("%d records, gap %+v, %v", len(recs), gap, err)
	}
}

// An index that was made when the ledger was damaged already has no topic for the damaged entries: who asks it for a few topics still comes by them, in
// a block that is whole and in the newest.
func TestDamagedEntryBeforeTheIndex(t *testing.T) {
	o := small(t.TempDir())
	o.indexBlock = 64
	r := start(t, o)
	for i := range 200 {
		topic := "b"
		if i%50 == 0 {
			topic = "a"
		}
		r.put(numbered(r.topic(topic), r.client("c"), i, 10))
	}
	r.checkpointAll()
	r.end()
	path := filepath.Join(o.Dir, "ledger", "00000000.ldg")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []int{80, 195} {
		b[record.FileHeaderSize+offset*ledger.EntrySize+8] ^= 1
	}
	if err := errors.Join(os.WriteFile(path, b, 0o600), os.RemoveAll(filepath.Join(o.Dir, "index"))); err != nil {
		t.Fatal(err)
	}
	r = start(t, o)
	r.await("the index", func() bool { return r.index.until.Load() > 195 })
	wanted := r.topic("a")
	only := func(topic uint32) bool { return topic == wanted }
	var gap Gap
	var recs []Record
	for next := uint64(1); next < r.Committed(); {
		lim := Limits{Dropped: &gap, Topics: only}
		if recs, next, err = r.NewReader().Read(recs, next, lim, func(_ uint64, topic uint32) bool { return only(topic) }); err != nil {
			t.Fatal(err)
		}
	}
	if len(recs) != 4 || gap != (Gap{80, 196, 2}) {
		t.Errorf("%d records, gap %+v", len(recs), gap)
	}
}
