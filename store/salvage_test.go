package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/store/record"
)

// salvageable makes a store of several clients and topics, with segments, shared ones among them, a journal and a dropped offset, and stops it as a crash
// does. It returns what a reader gets of it.
func salvageable(t *testing.T) (o Options, want []string) {
	t.Helper()
	o = small(t.TempDir())
	r := start(t, o)
	clients := []uint32{r.client("alice"), r.client("bob"), r.client("carol")}
	topics := []string{"x", "y/z", "ü/1", "$queue/q"}
	number := 0
	put := func(n int) {
		for range n {
			m := numbered(r.topic(topics[number%4]), clients[number%2], number, 400+number%50)
			if number%10 == 0 {
				m.Flags = 1 | record.FlagRetain
			}
			if number%30 == 0 {
				m.Client = clients[2]
			}
			r.put(m)
			number++
		}
	}
	put(300)
	r.put(Message{Topic: r.topic("x"), Client: clients[0], Flags: record.FlagTransient})
	r.checkpointAll()
	put(100)
	r.checkpointAll()
	if _, err := r.tryPut([]Mutation{record.Put(record.BucketQueues, []byte("q"), []byte{2, 0})}, Message{Topic: r.topic("late"), Client: r.client("dave"), Payload: []byte("last"), Flags: 1}); err != nil {
		t.Fatal(err)
	}
	r.kill()
	again := start(t, o)
	want = again.lines()
	again.kill()
	return o, want
}

// lines is what a store has, one line a message.
func (r *running) lines() (out []string) {
	for _, m := range r.read(0) {
		out = append(out, line(&m, r.TopicName(m.Topic), r.ClientName(m.Client)))
	}
	return out
}

func line(m *Record, topic, client string) string {
	return fmt.Sprintf("%d %s %s %d %d %x", m.Offset, topic, client, m.Time, m.Flags, m.Payload)
}

func TestSalvage(t *testing.T) {
	o, want := salvageable(t)
	overwrite := func(t *testing.T, path string, change func(b []byte) []byte) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, change(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stateDB := func(change func(b []byte) []byte) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) { overwrite(t, filepath.Join(dir, "state.db"), change) }
	}
	remove := func(names ...string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			for _, name := range names {
				if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	scribble := stateDB(func(b []byte) []byte { // over both meta pages: what else is there can be found
		return append(bytes.Repeat([]byte{0xA5}, 2*4096), b[2*4096:]...)
	})
	for _, row := range []struct {
		name   string
		hurt   func(t *testing.T, dir string)
		state  StateLeft
		names  bool // are there
		queues bool // are there
	}{
		{"sound", func(*testing.T, string) {}, StateWhole, true, true},
		{"state deleted", remove("state.db"), StateLost, true, false},
		{"state emptied", stateDB(func([]byte) []byte { return nil }), StateLost, true, false},
		{"state cut", stateDB(func(b []byte) []byte { return b[:len(b)/2] }), StateLost, true, false},
		{"state scribbled", scribble, StateLost, true, false},
		{"state scribbled, no names", func(t *testing.T, dir string) {
			scribble(t, dir)
			remove("names", "journal")(t, dir)
		}, StateLost, true, false},
		{"state and ledger deleted", remove("state.db", "ledger"), StateLost, true, false},
		{"state, ledger and index deleted", remove("state.db", "ledger", "index", "LOCK"), StateLost, true, false},
		{"state and names deleted", remove("state.db", "names", "journal"), StateLost, false, false},
		{"names scribbled", func(t *testing.T, dir string) {
			remove("state.db", "journal")(t, dir)
			overwrite(t, filepath.Join(dir, "names"), func(b []byte) []byte {
				b[7] ^= 1 // header
				return append(b[:len(b):len(b)], 1, 2, 3)
			})
		}, StateLost, true, false},
		{"a value damaged", stateDB(func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte("\x00\x00\x00\x02y/z"), []byte("\x00\x00\x00\x02Y/z"))
		}), StateDamaged, true, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(o.Dir)); err != nil {
				t.Fatal(err)
			}
			row.hurt(t, dir)
			hurt := o
			hurt.Dir = dir
			before := snapshot(t, dir)
			var got []string
			r, err := Salvage(hurt, SalvageOptions{Each: func(m *SalvagedMessage) error {
				got = append(got, line(&m.Record, m.Topic, m.Client))
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			if r.State != row.state || int(r.Records) != len(got) || r.Missing != 0 {
				t.Errorf("%+v", r)
			}
			expect := want
			if !row.names {
				expect = got
				for i, l := range want {
					f, w := strings.Fields(got[i]), strings.Fields(l)
					if f[0] != w[0] || !slices.Equal(f[3:], w[3:]) || !strings.HasPrefix(f[1], "$lost/topic-") || !strings.HasPrefix(f[2], "$lost/client-") {
						t.Fatalf("%s, want %s", got[i], l)
					}
				}
			}
			same(t, "lines", got, expect)

			to := hurt
			to.Dir = filepath.Join(t.TempDir(), "new")
			kept := map[string]string{}
			_, err = Salvage(hurt, SalvageOptions{To: to.Dir, Retain: func(r *Record, topic string) (Mutation, bool) {
				kept[topic] = fmt.Sprint(r.Offset)
				return record.Put(record.BucketRetained, []byte(topic), binary.BigEndian.AppendUint64(nil, r.Offset)), true
			}})
			if err != nil {
				t.Fatal(err)
			}
			if snapshot(t, dir) != before {
				t.Error("Salvage has changed something")
			}
			if _, err := Salvage(hurt, SalvageOptions{To: to.Dir}); err == nil {
				t.Error("a directory that is there was taken")
			}
			if row.state == StateLost && len(kept) == 0 {
				t.Error("nothing is retained")
			}
			if rep, err := Verify(to); err != nil {
				t.Errorf("%v %+v", err, rep)
			}
			n := start(t, to)
			if got := n.lines(); row.names {
				same(t, "new directory", got, want)
			} else if len(got) != len(want) || !strings.Contains(got[0], "$lost/topic-") {
				t.Errorf("%d messages, %s", len(got), got[0])
			}
			if _, ok, err := n.Get(record.BucketQueues, []byte("q")); err != nil || ok != row.queues {
				t.Errorf("queue: %v %v", ok, err)
			}
			for topic, offset := range kept {
				v, ok, err := n.Get(record.BucketRetained, []byte(topic))
				if err != nil || !ok || fmt.Sprint(binary.BigEndian.Uint64(v)) != offset {
					t.Errorf("retained of %s: %x, want %s", topic, v, offset)
				}
			}
			last := n.Next()
			if got := n.put(numbered(n.topic("x"), n.client("alice"), 1, 10)); got != last {
				t.Errorf("offset %d, want %d", got, last)
			}
			if a, b := n.client("alice"), n.client("someone"); a == b {
				t.Error("a client's number was given twice")
			}
			n.kill()
		})
	}
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("%s: message %d of %d (%d wanted) is\n%.100s\nand not\n%.100s", what, i, len(got), len(want), got[i], want[i])
		}
	}
	t.Fatalf("%s: %d messages, %d wanted", what, len(got), len(want))
}

// What is damaged beside state.db is told, and costs no more than itself.
func TestSalvageOfDamagedSegments(t *testing.T) {
	o, want := salvageable(t)
	if err := errors.Join(os.Remove(filepath.Join(o.Dir, "state.db")), os.RemoveAll(filepath.Join(o.Dir, "journal"))); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(o.Dir, "segments/00000001/*.seg"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	b[1] ^= 1           // the header
	b[64+44+100] ^= 1   // the first record
	b[len(b)/2] ^= 0x10 // another
	if err := os.WriteFile(names[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	last := uint64(0)
	r, err := Salvage(o, SalvageOptions{Each: func(m *SalvagedMessage) error {
		if m.Offset <= last {
			t.Errorf("%d follows %d", m.Offset, last)
		}
		last = m.Offset
		got[line(&m.Record, m.Topic, m.Client)] = true
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	lacks := 0
	for _, l := range want {
		if !got[l] {
			lacks++
		}
	}
	// The last checkpoint is that of the second start, so the journal had nothing that segments have not.
	if lacks != 2 || len(got) != len(want)-2 || r.Missing != 2 && r.Missing != 1 || r.Places() != 4 {
		t.Errorf("%d are missing, %d came of %d: %+v", lacks, len(got), len(want), r)
	}
}
