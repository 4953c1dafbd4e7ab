package store

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// The file is appended to, and made anew if it is not what state.db has.
func TestNames(t *testing.T) {
	o := small(t.TempDir())
	path := filepath.Join(o.Dir, "names")
	read := func() string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	life := func(topics ...string) {
		r := start(t, o)
		for _, name := range topics {
			r.topic(name)
		}
		r.end()
	}
	life("a", "b")
	first := read()
	life()
	if read() != first {
		t.Error("written again without need")
	}
	life("c")
	second := read()
	if second[:len(first)] != first || len(second) <= len(first) {
		t.Error("not appended to")
	}
	for _, row := range []struct {
		name string
		hurt func() error
	}{
		{"missing", func() error { return os.Remove(path) }},
		{"cut", func() error { return os.Truncate(path, int64(len(second)-3)) }},
		{"longer", func() error { return os.WriteFile(path, []byte(second+"more"), 0o600) }},
		{"damaged", func() error {
			return os.WriteFile(path, bytes.Replace([]byte(second), []byte("\x00b"), []byte("\x00x"), 1), 0o600)
		}},
		{"of before", func() error { return os.WriteFile(path, []byte(first), 0o600) }},
	} {
		if err := row.hurt(); err != nil {
			t.Fatal(err)
		}
		life()
		got := map[string]bool{}
		if damaged, err := readNames(&o, vfs.OS, func(m Mutation) { got[string(m.Value)] = true }); damaged != 0 || err != nil || len(got) != 3 || !got["a"] || !got["b"] || !got["c"] {
			t.Errorf("%s: %v, %v, %d bytes damaged", row.name, got, err, damaged)
		}
	}
}

func FuzzNames(f *testing.F) {
	h := record.FileHeader{Magic: namesMagic, Version: namesVersion, HeaderSize: record.FileHeaderSize}
	b := record.AppendMutation(h.Append(nil), record.Put(record.BucketTopics, topicKey(7), []byte("a/b")))
	b = record.AppendMutation(b, record.Delete(record.BucketClients, clientIDKey(1)))
	f.Add(b)
	f.Add(append(b[:len(b)-3:len(b)-3], b...))
	f.Fuzz(func(t *testing.T, b []byte) {
		found := int64(0)
		r := namesReader{size: int64(len(b)), fn: func(m Mutation) {
			again := record.AppendMutation(nil, m)
			if !bytes.Contains(b, again) {
				t.Fatalf("%x is not in %x", again, b)
			}
			found += int64(len(again))
		}}
		if err := r.scan(bytes.NewReader(b)); err == nil && found+r.damaged > int64(len(b))+record.FileHeaderSize {
			t.Fatalf("%d bytes are sound and %d damaged of %d", found, r.damaged, len(b))
		}
	})
}
