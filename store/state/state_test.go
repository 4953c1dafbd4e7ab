package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "rewrite the golden files")

func open(t testing.TB, fsys vfs.FS, path string) *DB {
	t.Helper()
	d, err := Open(fsys, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func put(key, value string) record.Mutation {
	return record.Put(record.BucketCursors, []byte(key), []byte(value))
}

func del(key string) record.Mutation { return record.Delete(record.BucketCursors, []byte(key)) }

// contents reads a bucket as "key=value key=value", by Range, and checks that Get says the same.
func contents(t testing.TB, d *DB, prefix string) string {
	t.Helper()
	var all []string
	err := d.Range(record.BucketCursors, []byte(prefix), func(k, v []byte) bool {
		all = append(all, string(k)+"="+string(v))
		got, ok, err := d.Get(record.BucketCursors, k)
		if err != nil || !ok || !bytes.Equal(got, v) {
			t.Errorf("Range has %s = %q, Get says %q, %v, %v", k, v, got, ok, err)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

func save(t testing.TB, d *DB, cp Checkpoint, extra ...record.Mutation) {
	t.Helper()
	d.Freeze()
	if err := d.Save(cp, extra); err != nil {
		t.Fatal(err)
	}
}

func TestOverlayAndSave(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	d := open(t, vfs.OS, path)
	if _, ok := d.Checkpoint(); ok {
		t.Error("a new state has a checkpoint")
	}
	d.Apply([]record.Mutation{put("a", "1"), put("b", "2"), put("c", ""), put("x", "9")})
	save(t, d, Checkpoint{Next: 1})
	d.Apply([]record.Mutation{del("a"), put("b", "3"), put("aa", "4")})
	d.Freeze()
	d.Apply([]record.Mutation{put("a", "5"), del("aa"), del("never"), put("z", "6")})
	const want = "a=5 b=3 c= x=9 z=6"
	if got := contents(t, d, ""); got != want {
		t.Errorf("bbolt, frozen and active: %s, want %s", got, want)
	}
	if got := contents(t, d, "a"); got != "a=5" {
		t.Errorf("prefix a: %s", got)
	}
	if _, ok, err := d.Get(record.BucketCursors, []byte("aa")); ok || err != nil {
		t.Errorf("a deleted key: %v, %v", ok, err)
	}
	cp := Checkpoint{JournalFile: 1, JournalGroup: 2, First: 3, Next: 4, Time: 5, Saved: 6}
	if err := d.Save(cp, []record.Mutation{record.Put(record.BucketSegments, []byte("s"), []byte("meta"))}); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, d, ""); got != want {
		t.Errorf("after Save: %s, want %s", got, want)
	}
	if got, ok := d.Checkpoint(); !ok || got != cp {
		t.Errorf("checkpoint %+v, %v", got, ok)
	}
	if st := d.Stats(); st.Pending != 4 || st.FileBytes == 0 {
		t.Errorf("stats %+v", st)
	}
	d.Close()

	d = open(t, vfs.OS, path)
	if got := contents(t, d, ""); got != "aa=4 b=3 c= x=9" {
		t.Errorf("opened again: %s", got)
	}
	if got, ok := d.Checkpoint(); !ok || got != cp {
		t.Errorf("opened again: checkpoint %+v, %v", got, ok)
	}
	if v, ok, err := d.Get(record.BucketSegments, []byte("s")); !ok || err != nil || string(v) != "meta" {
		t.Errorf("extra: %q, %v, %v", v, ok, err)
	}
	if err := d.Check(); err != nil {
		t.Errorf("Check: %v", err)
	}
}

// Against a plain map, with keys enough for several pages.
func TestLikeAMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	path := filepath.Join(t.TempDir(), "state.db")
	d := open(t, vfs.OS, path)
	model := make(map[string]string)
	for round := range 60 {
		var ms []record.Mutation
		for range rng.IntN(200) {
			k := fmt.Sprintf("%03d", rng.IntN(800))
			if rng.IntN(3) == 0 {
				ms = append(ms, del(k))
				delete(model, k)
				continue
			}
			v := fmt.Sprint(rng.IntN(100000))
			ms = append(ms, put(k, v))
			model[k] = v
		}
		d.Apply(ms)
		switch rng.IntN(4) {
		case 0:
			d.Freeze() // as if Save had failed
		case 1:
			save(t, d, Checkpoint{})
		}
		if round%20 == 19 {
			save(t, d, Checkpoint{})
			d.Close()
			d = open(t, vfs.OS, path)
		}
		prefix := []string{"", "1", "40", "zzz"}[rng.IntN(4)]
		var want []string
		for _, k := range slices.Sorted(maps.Keys(model)) {
			if strings.HasPrefix(k, prefix) {
				want = append(want, k+"="+model[k])
			}
		}
		if got := contents(t, d, prefix); got != strings.Join(want, " ") {
			t.Fatalf("round %d, prefix %q:\n%s\nwant\n%s", round, prefix, got, strings.Join(want, " "))
		}
	}
}

func TestRangeStopsAndLetsSaveGrowTheFile(t *testing.T) {
	d := open(t, vfs.OS, filepath.Join(t.TempDir(), "state.db"))
	for i := range 1000 {
		d.Apply([]record.Mutation{put(fmt.Sprintf("%04d", i), "v")})
	}
	save(t, d, Checkpoint{})
	seen := 0
	err := d.Range(record.BucketCursors, nil, func(k, v []byte) bool {
		seen++
		if seen == 300 {
			d.Apply([]record.Mutation{put("big", string(make([]byte, 4<<20)))})
			save(t, d, Checkpoint{Next: 7})
		}
		return seen < 500
	})
	if err != nil || seen != 500 {
		t.Fatalf("saw %d keys, %v", seen, err)
	}
}

func TestUnknownBucketIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	d := open(t, vfs.OS, path)
	d.Apply([]record.Mutation{record.Put(200, []byte("k"), []byte("v"))})
	save(t, d, Checkpoint{})
	d.Close()
	d = open(t, vfs.OS, path)
	if v, ok, err := d.Get(200, []byte("k")); !ok || err != nil || string(v) != "v" {
		t.Fatalf("%q, %v, %v", v, ok, err)
	}
}

func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenReadOnly(vfs.OS, filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	d.Apply([]record.Mutation{put("a", "1")})
	if got := contents(t, d, ""); got != "a=1" {
		t.Errorf("without a file: %s", got)
	}
	d.Close()
	if names, _ := os.ReadDir(dir); len(names) != 0 {
		t.Errorf("made %v", names)
	}
	d = open(t, vfs.OS, filepath.Join(dir, "state.db"))
	d.Apply([]record.Mutation{put("b", "2")})
	save(t, d, Checkpoint{Next: 5})
	d.Close()
	if d, err = OpenReadOnly(vfs.OS, filepath.Join(dir, "state.db")); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.Apply([]record.Mutation{put("a", "1")})
	if got := contents(t, d, ""); got != "a=1 b=2" {
		t.Errorf("with a file: %s", got)
	}
	if err := d.Save(Checkpoint{}, nil); err == nil {
		t.Error("Save succeeds")
	}
	if err := d.Check(); err != nil {
		t.Errorf("Check: %v", err)
	}
}

func TestDamagedFile(t *testing.T) {
	made := filepath.Join(t.TempDir(), "state.db")
	d := open(t, vfs.OS, made)
	for i := range 2000 {
		d.Apply([]record.Mutation{put(fmt.Sprintf("%04d", i), strings.Repeat("v", 50))})
	}
	save(t, d, Checkpoint{Next: 1})
	save(t, d, Checkpoint{Next: 2})
	d.Close()
	sound, err := os.ReadFile(made)
	if err != nil {
		t.Fatal(err)
	}
	change := func(fn func(tx *bolt.Tx) error) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			db, err := bolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(db.Update(fn), db.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	bytewise := func(fn func(b []byte) []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, fn(slices.Clone(sound)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := []struct {
		name string
		hurt func(t *testing.T, path string)
		want error // nil: *CorruptError
	}{
		{"newer version", change(func(tx *bolt.Tx) error {
			return tx.Bucket(metaName).Put(formatKey, binary.LittleEndian.AppendUint16(nil, version+1))
		}), ErrVersion},
		{"newer checkpoint", change(func(tx *bolt.Tx) error {
			return tx.Bucket(metaName).Put(checkpointKey, newerCheckpoint())
		}), ErrVersion},
		{"damaged checkpoint", change(func(tx *bolt.Tx) error {
			b := Checkpoint{Next: 9}.append(nil)
			b[20] ^= 1
			return tx.Bucket(metaName).Put(checkpointKey, b)
		}), nil},
		{"no format", change(func(tx *bolt.Tx) error { return tx.Bucket(metaName).Delete(formatKey) }), nil},
		{"no meta bucket", change(func(tx *bolt.Tx) error { return tx.DeleteBucket(metaName) }), nil},
		{"not bbolt", bytewise(func(b []byte) []byte { return bytes.Repeat([]byte("hello"), 10000) }), nil},
		{"both metas damaged", bytewise(func(b []byte) []byte { b[20] ^= 1; b[4096+20] ^= 1; return b }), nil},
		{"cut short", bytewise(func(b []byte) []byte { return b[:3*4096] }), nil},
		{"pages are zeros", bytewise(func(b []byte) []byte { clear(b[2*4096:]); return b }), nil},
		{"pages are garbage", bytewise(func(b []byte) []byte {
			for i := 2 * 4096; i < len(b); i++ {
				b[i] = byte(i * 7)
			}
			return b
		}), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			bytewise(func(b []byte) []byte { return b })(t, path)
			tt.hurt(t, path)
			d, err := Open(vfs.OS, path)
			if err == nil { // bbolt has not looked at the damaged page yet
				err = errors.Join(d.Range(record.BucketCursors, nil, func(k, v []byte) bool { return true }), d.Close())
			}
			var corrupt *CorruptError
			switch {
			case tt.want != nil && !errors.Is(err, tt.want):
				t.Fatalf("error %v, want %v", err, tt.want)
			case tt.want == nil && (!errors.As(err, &corrupt) || corrupt.Path != path):
				t.Fatalf("error %v, want a CorruptError with the path", err)
			}
		})
	}
}

// newerCheckpoint is sound, and of a version to come.
func newerCheckpoint() []byte {
	b := append(Checkpoint{Next: 9}.append(nil)[:checkpointSize-4], "more"...)
	b[0] = checkpointVersion + 1
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// Power is cut at every write-like operation: the state is one that was saved, no older than the last Save that returned.
func TestPowerCuts(t *testing.T) {
	for cut := 0; ; cut++ {
		disk := vfstest.NewDisk(vfstest.Never)
		if err := errors.Join(disk.MkdirAll("data", 0o750), disk.SyncDir(".")); err != nil {
			t.Fatal(err)
		}
		disk.CutAfter(cut)
		saved, tried := uint64(0), uint64(0)
		d, err := Open(disk, "data/state.db")
		for err == nil && tried < 5 {
			tried++
			d.Apply([]record.Mutation{put("n", fmt.Sprint(tried)), put(fmt.Sprint(tried), "x")})
			d.Freeze()
			if err = d.Save(Checkpoint{Next: tried}, nil); err == nil {
				saved = tried
			}
		}
		if d != nil {
			d.Close()
		}
		if err != nil && !errors.Is(err, vfstest.ErrPowerCut) {
			t.Fatalf("cut %d: %v", cut, err)
		}
		for seed := range uint64(8) {
			image := disk.AfterCut(seed)
			d := open(t, image, "data/state.db")
			cp, ok := d.Checkpoint()
			if ok != (cp.Next > 0) || cp.Next < saved || cp.Next > tried {
				t.Fatalf("cut %d, seed %d: checkpoint %+v, saved %d, tried %d", cut, seed, cp, saved, tried)
			}
			v, ok, err := d.Get(record.BucketCursors, []byte("n"))
			if err != nil || ok != (cp.Next > 0) || ok && string(v) != fmt.Sprint(cp.Next) {
				t.Fatalf("cut %d, seed %d: n is %q, checkpoint %+v, %v", cut, seed, v, cp, err)
			}
			d.Close()
		}
		done := !disk.Cut()
		if err := disk.Close(); err != nil {
			t.Fatal(err)
		}
		if done {
			return
		}
	}
}

func TestFailedSaveLosesNothing(t *testing.T) {
	disk := vfstest.NewDisk(vfstest.Never)
	defer disk.Close()
	if err := disk.MkdirAll("data", 0o750); err != nil {
		t.Fatal(err)
	}
	d := open(t, disk, "data/state.db")
	defer d.Close()
	d.Apply([]record.Mutation{put("a", "1"), put("b", "1")})
	broken := errors.New("no space")
	stop := disk.Inject(vfstest.On(vfstest.Commit, "state.db", broken))
	d.Freeze()
	if err := d.Save(Checkpoint{Next: 1}, nil); !errors.Is(err, broken) {
		t.Fatalf("Save returned %v", err)
	}
	if _, ok := d.Checkpoint(); ok {
		t.Error("a failed Save moved the checkpoint")
	}
	d.Apply([]record.Mutation{put("b", "2"), put("c", "2")})
	if got := contents(t, d, ""); got != "a=1 b=2 c=2" {
		t.Errorf("after the failure: %s", got)
	}
	stop()
	save(t, d, Checkpoint{Next: 2})
	if st := d.Stats(); st.Pending != 0 || st.PendingBytes != 0 {
		t.Errorf("after Save: %+v", st)
	}
	if got := contents(t, d, ""); got != "a=1 b=2 c=2" {
		t.Errorf("after Save: %s", got)
	}
}

// testdata/v1/state.db was written by version 1, testdata/v2/state.db by version 2.
func TestGolden(t *testing.T) {
	for _, v := range []string{"v1", "v2"} {
		t.Run(v, func(t *testing.T) { golden(t, filepath.Join("testdata", v, "state.db"), v == "v2") })
	}
}

func golden(t *testing.T, golden string, newest bool) {
	cp := Checkpoint{JournalFile: 3, JournalGroup: 77, First: 10, Next: 1000, Time: 1_700_000_000_000_000, Saved: 1_700_000_001_000_000}
	if *update && newest {
		os.Remove(golden)
		if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
			t.Fatal(err)
		}
		d := open(t, vfs.OS, golden)
		d.Apply([]record.Mutation{put("a", "1"), put("b", "")})
		save(t, d, cp, record.Put(record.BucketTopics, []byte{0, 0, 0, 1}, []byte("a/b")))
		d.Close()
	}
	d, err := OpenReadOnly(vfs.OS, golden)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if got, ok := d.Checkpoint(); !ok || got != cp {
		t.Errorf("checkpoint %+v, %v", got, ok)
	}
	if got := contents(t, d, ""); got != "a=1 b=" {
		t.Errorf("contents %s", got)
	}
	if v, ok, err := d.Get(record.BucketTopics, []byte{0, 0, 0, 1}); !ok || err != nil || string(v) != "a/b" {
		t.Errorf("topic: %q, %v, %v", v, ok, err)
	}
	if newest {
		return
	}
	b, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is upgraded, and then of the newest version
		d := open(t, vfs.OS, path)
		if got := contents(t, d, ""); got != "a=1 b=" {
			t.Errorf("contents after the upgrade %s", got)
		}
		if got, ok := d.Checkpoint(); !ok || got != cp {
			t.Errorf("checkpoint after the upgrade %+v, %v", got, ok)
		}
		d.Close()
	}
}

// A flipped bit in a value, or in a key, is a damaged value; a key that is gone, or as it was, is an error. Neither passes for data.
func TestDamagedValues(t *testing.T) {
	made := filepath.Join(t.TempDir(), "state.db")
	d := open(t, vfs.OS, made)
	d.Apply([]record.Mutation{put("victim", "its old value"), put("other", "value")})
	save(t, d, Checkpoint{Next: 1})
	d.Apply([]record.Mutation{put("victim", "its new value")})
	save(t, d, Checkpoint{Next: 2})
	d.Close()
	inBucket := func(fn func(t *bolt.Bucket) error) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			db, err := bolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = db.Update(func(tx *bolt.Tx) error { return fn(tx.Bucket([]byte("cursors"))) })
			if err := errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := []struct {
		name string
		hurt func(t *testing.T, path string)
		want string // the error, or the damaged keys
	}{
		{"a bit of the value", inBucket(func(t *bolt.Bucket) error {
			v := bytes.Clone(t.Get([]byte("victim")))
			v[3] ^= 8
			return t.Put([]byte("victim"), v)
		}), "victim"},
		{"a bit of the checksum", inBucket(func(t *bolt.Bucket) error {
			v := bytes.Clone(t.Get([]byte("victim")))
			v[len(v)-1] ^= 8
			return t.Put([]byte("victim"), v)
		}), "victim"},
		{"a bit of the key", inBucket(func(t *bolt.Bucket) error {
			v := bytes.Clone(t.Get([]byte("victim")))
			return errors.Join(t.Delete([]byte("victim")), t.Put([]byte("vicuim"), v))
		}), "vicuim"},
		{"cut short", inBucket(func(t *bolt.Bucket) error { return t.Put([]byte("victim"), []byte("abc")) }), "victim"},
		{"an old value", inBucket(func(t *bolt.Bucket) error {
			return t.Put([]byte("victim"), seal("cursors", []byte("victim"), []byte("its old value")))
		}), "bucket cursors: keys are missing, or of another time: it has 2, it had 2"},
		{"gone", inBucket(func(t *bolt.Bucket) error { return t.Delete([]byte("victim")) }), "bucket cursors: keys are missing, or of another time: it has 1, it had 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			b, err := os.ReadFile(made)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			tt.hurt(t, path)
			d, err := Open(vfs.OS, path)
			if err != nil {
				if !strings.HasSuffix(err.Error(), tt.want) {
					t.Fatalf("error %v, want %s", err, tt.want)
				}
				return
			}
			bad := d.Damaged()
			if len(bad) != 1 || string(bad[0].Key) != tt.want || bad[0].Bucket != record.BucketCursors {
				t.Fatalf("damaged: %v", bad)
			}
			var corrupt *CorruptError
			if _, _, err := d.Get(record.BucketCursors, bad[0].Key); !errors.As(err, &corrupt) {
				t.Errorf("Get: %v", err)
			}
			if err := d.Range(record.BucketCursors, nil, func(k, v []byte) bool { return true }); !errors.As(err, &corrupt) {
				t.Errorf("Range: %v", err)
			}
			d.Apply([]record.Mutation{del(tt.want)})
			if got := contents(t, d, ""); got != "other=value" {
				t.Errorf("without it: %s", got)
			}
			save(t, d, Checkpoint{Next: 3})
			d.Close()
			d = open(t, vfs.OS, path)
			if got := contents(t, d, ""); got != "other=value" || len(d.Damaged()) > 0 {
				t.Errorf("opened again: %s", got)
			}
		})
	}
}

func FuzzParseSums(f *testing.F) {
	f.Add(sums{"a": {1, 2}, "bucket": {3, 4}}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSums(b)
		if err != nil {
			return
		}
		if again, err := parseSums(s.append(nil)); err != nil || !maps.Equal(s, again) {
			t.Fatalf("decode then encode changed %x", b)
		}
	})
}

func FuzzParseCheckpoint(f *testing.F) {
	f.Add(Checkpoint{1, 2, 3, 4, 5, 6}.append(nil))
	f.Add(newerCheckpoint())
	f.Fuzz(func(t *testing.T, b []byte) {
		cp, err := parseCheckpoint(b)
		if err == nil && !bytes.Equal(cp.append(nil), b) {
			t.Fatalf("decode then encode changed %x", b)
		}
	})
}

func BenchmarkApply(b *testing.B) {
	d := open(b, vfs.OS, filepath.Join(b.TempDir(), "state.db"))
	ms := []record.Mutation{put("cursor of a feed", "0123456789abcdef")}
	b.ReportAllocs()
	for b.Loop() {
		d.Apply(ms)
	}
}
