package store

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// testKeys finds keys of the form k=<value>; in properties.
func testKeys(props []byte, yield func(kind byte, value []byte) bool) {
	for p := range bytes.SplitSeq(props, []byte{';'}) {
		if k, v, ok := bytes.Cut(p, []byte{'='}); ok && len(k) == 1 && !yield(k[0], v) {
			return
		}
	}
}

// indexed is a store with blocks of 64 offsets.
func indexed(dir string) Options {
	o := small(dir)
	o.indexBlock, o.Keys = 64, testKeys
	return o
}

// checkpointed waits until the index knows all that was appended.
func (r *running) indexAll() {
	r.t.Helper()
	poke(r.checkpointNow)
	poke(r.flusher.wake)
	r.await("checkpoint", func() bool { return r.checkpointedNext.Load() == r.Committed() })
	if err := r.index.catchUp(context.Background()); err != nil {
		r.t.Fatal(err)
	}
}

// fillKeyed appends n messages to random topics; some are transient, some have keys.
func (r *running) fillKeyed(rnd *rand.Rand, n, topics int) {
	r.t.Helper()
	for n > 0 {
		batch := make([]Message, min(n, 1+rnd.IntN(20)))
		for i := range batch {
			m := numbered(r.topic(fmt.Sprint("t/", rnd.IntN(topics))), r.client(fmt.Sprint("c", rnd.IntN(3))), i, 8+rnd.IntN(100))
			if rnd.IntN(10) == 0 {
				m.Flags |= record.FlagTransient
			} else if rnd.IntN(3) == 0 {
				m.Props = fmt.Appendf(nil, "a=%d;b=%d", rnd.IntN(20), rnd.IntN(1000))
			}
			batch[i] = m
		}
		r.put(batch...)
		n -= len(batch)
	}
}

// compare asks through the index and without it.
func (r *running) compare(rnd *rand.Rand) {
	r.t.Helper()
	records := slices.DeleteFunc(r.read(1), func(rec Record) bool { return rec.Flags.Has(record.FlagTransient) })
	for range 20 {
		from := 1 + rnd.Uint64N(r.Committed())
		to := from + rnd.Uint64N(r.Committed()-from+1)
		wanted := map[uint32]bool{}
		for range 1 + rnd.IntN(3) {
			wanted[1+rnd.Uint32N(r.Topics())] = true
		}
		want := func(topic uint32) bool { return wanted[topic] }
		var expect []Record
		var tally Tally
		for _, rec := range records {
			if !wanted[rec.Topic] || rec.Offset < from {
				continue
			}
			expect = append(expect, rec)
			if rec.Offset < to {
				tally.add(1, uint64(record.Size(len(rec.Props), len(rec.Payload))))
			}
		}
		if got, err := r.Count(from, to, want); err != nil || got != tally {
			r.t.Fatalf("count [%d,%d): %+v, %v; want %+v", from, to, got, err, tally)
		}
		got := r.readTopics(from, want, Limits{MaxRecords: 1 + rnd.IntN(50), MaxScan: 1 + rnd.IntN(200)})
		if !slices.EqualFunc(got, expect, sameRecord) {
			r.t.Fatalf("read from %d of %v: %d records, want %d", from, wanted, len(got), len(expect))
		}
	}
	for range 20 {
		kind, value := byte('a'+rnd.IntN(2)), fmt.Append(nil, rnd.IntN(20))
		from := rnd.Uint64N(r.Committed())
		var expect []Record
		for _, rec := range records {
			if rec.Offset >= from && bytes.Contains(append(append([]byte(";"), rec.Props...), ';'), fmt.Appendf(nil, ";%c=%s;", kind, value)) {
				expect = append(expect, rec)
			}
		}
		limit := 1 + rnd.IntN(40)
		expect = expect[:min(limit, len(expect))]
		got, err := r.Lookup(nil, kind, value, from, limit)
		if err != nil || !slices.EqualFunc(got, expect, sameRecord) {
			r.t.Fatalf("lookup %c=%s from %d: %d records, %v; want %d", kind, value, from, len(got), err, len(expect))
		}
	}
}

func sameRecord(a, b Record) bool {
	return a.Offset == b.Offset && a.Topic == b.Topic && bytes.Equal(a.Payload, b.Payload) && bytes.Equal(a.Props, b.Props)
}

// readTopics reads to the end, transient messages left out, which may be in memory or not.
func (r *running) readTopics(from uint64, want func(uint32) bool, lim Limits) []Record {
	r.t.Helper()
	lim.Topics = want
	var recs []Record
	for reader := r.NewReader(); ; {
		var err error
		before := from
		recs, from, err = reader.Read(recs, from, lim, func(_ uint64, topic uint32) bool { return want(topic) })
		if err != nil {
			r.t.Fatal(err)
		}
		if from >= r.Committed() {
			return slices.DeleteFunc(recs, func(rec Record) bool { return rec.Flags.Has(record.FlagTransient) })
		}
		if from == before {
			r.t.Fatalf("no progress at offset %d", from)
		}
	}
}

func TestIndexAgreesWithTheLog(t *testing.T) {
	for _, topics := range []int{3, 50, 400} {
		t.Run(fmt.Sprint("topics=", topics), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, uint64(topics)))
			dir := t.TempDir()
			r := start(t, indexed(dir))
			for range 4 {
				r.fillKeyed(rnd, 100+rnd.IntN(400), topics)
				r.compare(rnd)
				r.indexAll()
				r.compare(rnd)
			}
			if blocks := len(r.index.have); blocks < 5 {
				t.Fatalf("%d blocks have an index", blocks)
			}
			r.fillKeyed(rnd, 30, topics)
			r.kill()
			r = start(t, indexed(dir))
			r.compare(rnd)
			r.indexAll()
			r.compare(rnd)
		})
	}
}

// Whatever happens to the files, answers are right, and the files come back.
func TestIndexDamaged(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 3))
	dir := t.TempDir()
	r := start(t, indexed(dir))
	r.fillKeyed(rnd, 1000, 50)
	r.indexAll()
	r.end()
	files, err := filepath.Glob(filepath.Join(dir, "index", "*.idx"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for i, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		switch i % 4 {
		case 0:
			b[rnd.IntN(len(b))] ^= 1
		case 1:
			b = b[:rnd.IntN(len(b))]
		case 2:
			if b, err = os.ReadFile(files[(i+1)%len(files)]); err != nil {
				t.Fatal(err)
			}
		case 3:
			if err = os.Remove(file); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err = os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r = start(t, indexed(dir))
	r.compare(rnd)
	r.indexAll()
	r.compare(rnd)
	r.indexAll()
	if got := len(r.index.have); got != len(files) {
		t.Errorf("%d of %d files", got, len(files))
	}
}

// A block whose offsets belong to other records by now is not believed.
func TestIndexOfAnotherLife(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 5))
	old, dir := t.TempDir(), t.TempDir()
	r := start(t, indexed(old))
	r.fillKeyed(rnd, 300, 10)
	r.indexAll()
	r.end()
	r = start(t, indexed(dir))
	r.fillKeyed(rnd, 400, 10)
	r.end()
	if err := os.RemoveAll(filepath.Join(dir, "index")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "index"), os.DirFS(filepath.Join(old, "index"))); err != nil {
		t.Fatal(err)
	}
	r = start(t, indexed(dir))
	r.compare(rnd)
	r.indexAll()
	r.compare(rnd)
}

func TestIndexFollowsRetention(t *testing.T) {
	rnd := rand.New(rand.NewPCG(6, 7))
	o := indexed(t.TempDir())
	o.RetainBytes, o.SharedBelow = 200<<10, 1
	r := start(t, o)
	r.fillKeyed(rnd, 1000, 10)
	r.indexAll()
	for r.First() < 200 {
		r.fillKeyed(rnd, 200, 10)
		r.indexAll()
	}
	r.indexAll()
	if r.has(0) {
		t.Error("the first block has a file still")
	}
}

func (r *running) has(block uint64) bool {
	_, err := os.Stat(r.index.path(block))
	return r.index.has(block) || err == nil
}

// A file that reads without an error says what was written.
func FuzzIndexFile(f *testing.F) {
	o := &openBlock{base: 64, topics: make([]uint32, 64), sizes: make([]uint32, 64), clients: []uint32{3, 4, 3, 900}, keys: []indexKey{{1, 2}, {1, 3}, {9, 60}}}
	for i := range o.topics {
		o.topics[i], o.sizes[i] = uint32(i%5), 100
	}
	f.Add(encodeIndex(o, 7), uint16(3))
	f.Add([]byte("EMQI"), uint16(0))
	path := filepath.Join(f.TempDir(), "fuzz.idx")
	f.Fuzz(func(t *testing.T, b []byte, topic uint16) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readIndex(vfs.OS, path, 64, 64)
		if err != nil {
			return
		}
		file, err := vfs.OS.OpenFile(path, os.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if i, ok := got.topic(uint32(topic)); ok {
			if offs, err := got.postings(file, nil, i, 0); err == nil && len(offs) != int(got.dir[i].records) {
				t.Errorf("%d offsets of %d", len(offs), got.dir[i].records)
			}
		}
		for _, hash := range []uint64{0, 1, 9, ^uint64(0)} {
			_, _ = got.find(vfs.OS, nil, hash)
		}
		_, _, _ = got.clients(vfs.OS)
	})
}

// BenchmarkSparse reads 10 topics of 10,000 out of a million messages.
func BenchmarkSparse(b *testing.B) {
	const topics, n = 10_000, 1 << 20
	o := Options{Dir: b.TempDir(), TailBytes: 1, CheckpointInterval: 100 * time.Millisecond}
	r := start(b, o)
	ids := make([]uint32, topics)
	for i := range ids {
		ids[i] = r.topic(fmt.Sprint("t/", i))
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	client := r.client("c")
	for i := 0; i < n; i += 1024 {
		msgs := make([]Message, 1024)
		for k := range msgs {
			msgs[k] = Message{Topic: ids[rnd.IntN(topics)], Client: client, Payload: make([]byte, 128), Flags: 1}
		}
		r.put(msgs...)
	}
	r.flushAll()
	r.await("checkpoint", func() bool { return r.checkpointedNext.Load() == r.Committed() })
	began := time.Now()
	if err := r.index.catchUp(b.Context()); err != nil {
		b.Fatal(err)
	}
	built := time.Since(began)
	wanted := map[uint32]bool{}
	for _, id := range ids[:10] {
		wanted[id] = true
	}
	want := func(topic uint32) bool { return wanted[topic] }
	for _, row := range []struct {
		name   string
		topics func(uint32) bool
	}{{"by=index", want}, {"by=scan", nil}} {
		b.Run(row.name, func(b *testing.B) {
			for b.Loop() {
				found := 0
				for reader, from := r.NewReader(), uint64(1); from < r.Committed(); {
					recs, next, err := reader.Read(nil, from, Limits{MaxRecords: 1024, MaxScan: 1 << 18, Topics: row.topics}, func(_ uint64, t uint32) bool { return want(t) })
					if err != nil {
						b.Fatal(err)
					}
					found += len(recs)
					from = next
				}
				b.ReportMetric(float64(found), "records")
				b.ReportMetric(float64(built.Nanoseconds())/n, "build-ns/msg")
			}
		})
	}
	b.Run("count", func(b *testing.B) {
		for b.Loop() {
			if _, err := r.Count(1, r.Committed(), want); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestIndexFileVersions: a file of version 1 is read as it is, and does not tell who published.
func TestIndexFileVersions(t *testing.T) {
	o := &openBlock{base: 64, topics: []uint32{7, 0, 7, 9}, sizes: []uint32{50, 0, 60, 70}, clients: []uint32{5, 3, 5, 300}, keys: []indexKey{{1 << 40, 2}}}
	b := encodeIndex(o, 11)
	clients := len(encodeClients(o.clients))
	old := record.FileHeader{Magic: indexMagic, Version: 1, HeaderSize: record.FileHeaderSize}
	copy(old.Fields[:32], b[8:40])
	for _, row := range []struct {
		name string
		b    []byte
		want []uint32
		ok   bool
	}{
		{"2", b, []uint32{3, 5, 300}, true},
		{"1", append(old.Append(nil), b[record.FileHeaderSize:len(b)-clients]...), nil, false},
	} {
		path := filepath.Join(t.TempDir(), "x.idx")
		if err := os.WriteFile(path, row.b, 0o600); err != nil {
			t.Fatal(err)
		}
		x, err := readIndex(vfs.OS, path, 64, 4)
		if err != nil {
			t.Fatalf("version %s: %v", row.name, err)
		}
		got, ok, err := x.clients(vfs.OS)
		if err != nil || ok != row.ok || !slices.Equal(got, row.want) || len(x.dir) != 2 {
			t.Errorf("version %s: clients %v, %v, %v; %d topics", row.name, got, ok, err, len(x.dir))
		}
		if at, err := x.find(vfs.OS, nil, 1<<40); err != nil || !slices.Equal(at, []uint64{66}) {
			t.Errorf("version %s: the key is at %v, %v", row.name, at, err)
		}
	}
	b[len(b)-1] ^= 1
	path := filepath.Join(t.TempDir(), "x.idx")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if x, err := readIndex(vfs.OS, path, 64, 4); err != nil {
		t.Error(err)
	} else if _, _, err := x.clients(vfs.OS); err == nil {
		t.Error("damage of the clients passes")
	}
}
