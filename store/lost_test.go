package store

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
