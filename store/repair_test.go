package store

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/store/record"
)

// hurtState flips a bit in every place of state.db that holds some text.
func hurtState(t *testing.T, dir, text string) {
	t.Helper()
	path := filepath.Join(dir, "state.db")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	hurt := bytes.ReplaceAll(b, []byte(text), append([]byte{text[0] ^ 1}, text[1:]...))
	if bytes.Equal(b, hurt) {
		t.Fatalf("no %q in the state", text)
	}
	if err := os.WriteFile(path, hurt, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedState: a damaged value of the state is done without where that is safe. Otherwise the store does not open, and says which it is and what
// can be done; Repair does that.
func TestDamagedState(t *testing.T) {
	cursor := func(key []byte) Mutation {
		return record.Put(record.BucketCursors, key, []byte("begin at the beginning"))
	}
	for _, tt := range []struct {
		name, text string
		opens      bool
		says       string
		repairs    bool
	}{
		{"a cursor", "cursor value", true, "", true},
		{"a session", "session value", false, `bucket sessions, key "client"`, true},
		{"a key", "other client", false, `bucket sessions, key "nther client"`, true},
		{"a floor", "floor value", true, "", true},
		{"a topic", "some/topic", false, `bucket topics, key "\x00\x00\x00\x01"`, true},
		{"a segment", "\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00", false, `bucket segments`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := small(t.TempDir())
			o.Mend = func(b record.Bucket, key []byte) (Mutation, bool) { return cursor(key), b == record.BucketCursors }
			r := start(t, o)
			topic := r.topic("some/topic")
			muts := []Mutation{
				record.Put(record.BucketCursors, []byte("q/x"), []byte("cursor value")),
				record.Put(record.BucketSessions, []byte("client"), []byte("session value")),
				record.Put(record.BucketSessions, []byte("other client"), []byte("value")),
			}
			if tt.name == "a floor" {
				muts = append(muts, record.Put(record.BucketFloors, []byte{0, 0, 0, 9}, []byte("floor value")))
			}
			if _, err := r.tryPut(muts, numbered(topic, r.client("c"), 1, 100)); err != nil {
				t.Fatal(err)
			}
			r.end()
			if tt.name == "a segment" {
				damageSegmentEntry(t, o.Dir)
			} else {
				hurtState(t, o.Dir, tt.text)
			}
			if _, err := Verify(o); !errors.Is(err, ErrDamaged) {
				t.Errorf("Verify: %v", err)
			}
			s, err := Open(o)
			if tt.opens {
				if err != nil {
					t.Fatal(err)
				}
				if n := s.Stats().Damaged; n != 1 {
					t.Errorf("%d damaged", n)
				}
				if v, _, err := s.Get(record.BucketCursors, []byte("q/x")); err != nil || tt.name == "a cursor" && string(v) != "begin at the beginning" {
					t.Errorf("the cursor is %q, %v", v, err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			} else if err == nil {
				t.Fatal("the store opens")
			} else if text := err.Error(); !strings.Contains(text, tt.says) || !strings.Contains(text, "state.db") || !strings.Contains(text, "edgemq store repair") {
				t.Errorf("the error is %v", err)
			}
			rep, err := Repair(o)
			if (err == nil) != tt.repairs {
				t.Fatalf("Repair: %+v, %v", rep, err)
			}
			if !tt.repairs {
				if !errors.Is(err, errSegments) {
					t.Errorf("Repair: %v", err)
				}
				return
			}
			if n := len(rep.Deleted); (n == 1) == tt.opens {
				t.Errorf("Repair: %+v", rep)
			}
			r = start(t, o)
			if recs := r.read(1); len(recs) != 1 || r.Stats().Damaged != 0 {
				t.Errorf("%d messages after the repair, %d damaged", len(recs), r.Stats().Damaged)
			}
		})
	}
}

// damageSegmentEntry flips a bit in the entry of the first segment.
func damageSegmentEntry(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "state.db")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// version, flags, segment 1, client ffffffff (shared)
	entry := []byte{1, 0, 1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF}
	at := bytes.Index(b, entry)
	if at < 0 {
		t.Fatal("no entry")
	}
	for ; at >= 0; at = bytes.Index(b, entry) {
		b[at+3] ^= 1
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
