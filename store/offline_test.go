package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/store/ledger"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/segment"
)

// offline makes a store with records on disk and in the journal, and stops it as a crash does.
func offline(t *testing.T) Options {
	t.Helper()
	o := small(t.TempDir())
	r := start(t, o)
	a, b := r.client("alice"), r.client("bob")
	for i := range 30 {
		r.put(numbered(r.topic("x"), a, i, 1000))
	}
	r.put(Message{Topic: r.topic("y/z"), Client: b, Payload: []byte("héllo"), Props: []byte{1, 2}, Flags: 2 | record.FlagRetain | record.FlagExpiry, Expiry: 60, PacketID: 9})
	r.checkpointAll()
	r.put(Message{Topic: r.topic("y/z"), Client: b, Payload: []byte{0xFF, 0xFE}, Flags: 1})
	r.put(Message{Topic: r.topic("new"), Client: r.client("carol"), Payload: []byte{}})
	r.put(Message{Topic: r.topic("new"), Client: a, Payload: []byte("live"), Flags: record.FlagTransient})
	r.kill()
	return o
}

func TestVerify(t *testing.T) {
	flip := func(pos int64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[pos] ^= 4
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(t *testing.T, path string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	const recordSize = record.HeaderSize + 1000
	for _, row := range []struct {
		name string
		file string // that is hurt, a pattern; the damage must be reported there
		hurt func(*testing.T, string)
		pos  int64
	}{
		{"sound", "", nil, 0},
		{"payload", "segments/00000001/*.seg", flip(segment.HeaderSize + 5*recordSize + 500), segment.HeaderSize + 5*recordSize},
		{"record header", "segments/00000001/*.seg", flip(segment.HeaderSize + 3*recordSize + 9), segment.HeaderSize + 3*recordSize},
		{"segment header", "segments/00000001/*.seg", flip(2), 0},
		{"segment cut", "segments/00000001/*.seg", func(t *testing.T, path string) {
			if err := os.Truncate(path, 7000); err != nil {
				t.Fatal(err)
			}
		}, segment.HeaderSize + 6*recordSize},
		{"segment missing", "segments/00000001/*.seg", remove, 0},
		{"ledger entry", "ledger/*.ldg", flip(segment.HeaderSize + 12*ledger.EntrySize + 7), segment.HeaderSize + 12*ledger.EntrySize},
		{"ledger header", "ledger/*.ldg", flip(3), 0},
		{"state missing", "state.db", remove, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := offline(t)
			var path string
			if row.hurt != nil {
				names, err := filepath.Glob(filepath.Join(o.Dir, row.file))
				if err != nil || len(names) != 1 {
					t.Fatal(names, err)
				}
				path = names[0]
				row.hurt(t, path)
			}
			before := snapshot(t, o.Dir)
			report, err := Verify(o)
			if snapshot(t, o.Dir) != before {
				t.Error("Verify has changed something")
			}
			if path == "" {
				if err != nil || report.Records != 34 || report.Groups == 0 || report.Files < 4 || len(report.Damage) != 0 {
					t.Fatalf("%v, %+v", err, report)
				}
				return
			}
			if !errors.Is(err, ErrDamaged) || len(report.Damage) == 0 {
				t.Fatalf("%v, %+v", err, report)
			}
			if d := report.Damage[0]; d.Path != path || d.Pos != row.pos || d.Err == nil {
				t.Errorf("damage is %+v, want %s at %d", d, path, row.pos)
			}
		})
	}
}

// All of several places in one file are named, up to MaxPlaces; of more there is the number.
func TestVerifyNamesAll(t *testing.T) {
	const recordSize = record.HeaderSize + 1000
	o := small(t.TempDir())
	r := start(t, o)
	for i := range 150 {
		r.put(numbered(r.topic("x"), r.client("alice"), i, 1000))
	}
	r.checkpointAll()
	r.kill()
	hurt := func(pattern string, positions ...int64) {
		t.Helper()
		names, err := filepath.Glob(filepath.Join(o.Dir, pattern))
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		b, err := os.ReadFile(names[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, pos := range positions {
			b[pos] ^= 4
		}
		if err := os.WriteFile(names[0], b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	entry := func(i int64) int64 { return record.FileHeaderSize + i*ledger.EntrySize + 9 }
	hurt("ledger/*.ldg", entry(3), entry(4), entry(5), entry(9))
	hurt("segments/00000001/*.seg", segment.HeaderSize+2*recordSize+100, segment.HeaderSize+7*recordSize+4, segment.HeaderSize+20*recordSize)
	report, err := Verify(o)
	var got []string
	for _, d := range report.Damage {
		got = append(got, fmt.Sprintf("%s:%d+%d", filepath.Ext(d.Path), d.Pos, d.Length))
	}
	want := fmt.Sprintf(".ldg:%d+120 .ldg:%d+40 .seg:%d+1044 .seg:%d+1044 .seg:%d+1044", entry(3)-9, entry(9)-9,
		segment.HeaderSize+2*recordSize, segment.HeaderSize+7*recordSize, segment.HeaderSize+20*recordSize)
	if !errors.Is(err, ErrDamaged) || strings.Join(got, " ") != want || report.Places() != 5 || report.Records != 147 {
		t.Errorf("%v, %d records\ngot  %v\nwant %s", err, report.Records, got, want)
	}

	var many Report
	for i := range MaxPlaces + 23 {
		many.damaged("x", int64(i), 1, ErrDamaged)
	}
	many.damaged("y", 0, 1, ErrDamaged)
	if len(many.Damage) != MaxPlaces+1 || many.Places() != MaxPlaces+24 || many.More["x"] != 23 {
		t.Errorf("%d named of %d, more %v", len(many.Damage), many.Places(), many.More)
	}
}

// snapshot says what is in a directory, names, sizes and times.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			fmt.Fprintln(&out, path, info.Size(), info.ModTime())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestStat(t *testing.T) {
	o := offline(t)
	s, err := Stat(o)
	if err != nil {
		t.Fatal(err)
	}
	if s.First != 1 || s.Next != 35 || s.Checkpoint != 32 || s.Segments != 2 || s.JournalBytes == 0 || s.StateBytes == 0 || s.LedgerBytes == 0 || s.CheckpointTime == 0 {
		t.Errorf("%+v", s)
	}
	names := func(counts []Count) (out string) {
		for _, c := range counts {
			out += fmt.Sprintf("%s=%d ", c.Name, c.Records)
		}
		return out
	}
	if got := names(s.Topics); got != "x=30 y/z=2 new=2 " {
		t.Errorf("topics: %s", got)
	}
	if got := names(s.Clients); got != "alice=31 bob=2 carol=1 " {
		t.Errorf("clients: %s", got)
	}
}

func TestDump(t *testing.T) {
	o := offline(t)
	dump := func(f Filter) (lines []map[string]any) {
		t.Helper()
		var out bytes.Buffer
		if err := Dump(&out, o, f); err != nil {
			t.Fatal(err)
		}
		for dec := json.NewDecoder(&out); dec.More(); {
			var line map[string]any
			if err := dec.Decode(&line); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, line)
		}
		return lines
	}
	for _, row := range []struct {
		name        string
		f           Filter
		n           int
		first, last float64
	}{
		{"all", Filter{}, 33, 1, 33},
		{"topic", Filter{Topic: "y/z"}, 2, 31, 32},
		{"topic in the journal only", Filter{Topic: "new"}, 1, 33, 33},
		{"unknown topic", Filter{Topic: "nothing"}, 0, 0, 0},
		{"client", Filter{Client: "alice"}, 30, 1, 30},
		{"from, limit", Filter{From: 29, Limit: 4}, 4, 29, 32},
		{"limit on disk", Filter{Limit: 2}, 2, 1, 2},
		{"from in the journal", Filter{From: 33}, 1, 33, 33},
	} {
		lines := dump(row.f)
		if len(lines) != row.n || row.n > 0 && (lines[0]["offset"] != row.first || lines[row.n-1]["offset"] != row.last) {
			t.Errorf("%s: %d lines, %v", row.name, len(lines), lines)
		}
	}
	lines := dump(Filter{From: 31, Limit: 2})
	text, binary := lines[0], lines[1]
	if text["payload"] != "héllo" || text["props"] != "AQI=" || text["topic"] != "y/z" || text["client"] != "bob" || text["qos"] != 2.0 ||
		text["retain"] != true || text["expiry"] != 60.0 || text["packet_id"] != 9.0 {
		t.Errorf("%v", text)
	}
	if binary["payload"] != nil || binary["payload_base64"] != "//4=" || binary["expiry"] != nil {
		t.Errorf("%v", binary)
	}
}

func TestOfflineOfNothing(t *testing.T) {
	o := small(t.TempDir())
	if r, err := Verify(o); err != nil {
		t.Errorf("%v, %+v", err, r)
	}
	if err := Dump(new(bytes.Buffer), o, Filter{}); err != nil {
		t.Error(err)
	}
}
