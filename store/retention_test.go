package store

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store/segment"
)

// clock is a time that a test moves.
type clock struct{ micros atomic.Int64 }

func (c *clock) now() time.Time          { return time.UnixMicro(c.micros.Load()) }
func (c *clock) advance(d time.Duration) { c.micros.Add(d.Microseconds()) }

// aged is a store of small segments with a clock.
func aged(t *testing.T, change func(o *Options)) (*running, *clock) {
	t.Helper()
	c := &clock{}
	c.micros.Store(1_000_000_000)
	o := small(t.TempDir())
	o.SegmentBytes, o.SharedBelow, o.TailBytes, o.Now = 8<<10, 1, 1, c.now
	change(&o)
	return start(t, o), c
}

// fillAged puts n messages of 1 KiB from one client, a minute apart.
func fillAged(r *running, c *clock, topic, client string, n int) {
	r.t.Helper()
	for i := range n {
		r.put(numbered(r.topic(topic), r.client(client), i, 1000))
		c.advance(time.Minute)
	}
	r.checkpointAll()
}

func (r *running) segmentFiles() []string {
	r.t.Helper()
	names, err := filepath.Glob(filepath.Join(r.opt.Dir, "segments", "*", "*.seg"))
	if err != nil {
		r.t.Fatal(err)
	}
	return names
}

func TestRetentionByAge(t *testing.T) {
	r, c := aged(t, func(o *Options) { o.RetainAge = 24 * time.Hour })
	fillAged(r, c, "a", "one", 70) // 10 segments of 7, the last open
	c.advance(time.Hour)
	time.Sleep(100 * time.Millisecond)
	if r.First() != 1 || len(r.read(1)) != 70 {
		t.Fatalf("deleted before its time: first %d", r.First())
	}
	c.advance(22*time.Hour + 30*time.Minute)
	r.await("the first to be deleted", func() bool { return r.First() > 1 })
	c.advance(24 * time.Hour)
	r.await("all to be deleted, the open one too", func() bool { return r.First() == 71 && len(r.segmentFiles()) == 0 })
	if recs := r.read(1); len(recs) != 0 {
		t.Errorf("%d records left", len(recs))
	}
	r.put(numbered(1, 1, 5, 10))
	if recs := r.read(1); len(recs) != 1 || recs[0].Offset != 71 {
		t.Errorf("the next is %v", recs)
	}
	if st := r.Stats(); st.Damaged != 0 {
		t.Errorf("deleted records count as damaged: %d", st.Damaged)
	}
}

func TestRetentionByBytes(t *testing.T) {
	r, c := aged(t, func(o *Options) { o.RetainBytes = 40 << 10 })
	fillAged(r, c, "a", "one", 200)
	r.await("bytes to fall", func() bool { return r.Stats().SegmentBytes <= 40<<10 })
	var recs []Record
	r.await("First to follow", func() bool { recs = r.read(1); return recs[0].Offset == r.First() })
	if n := len(recs); n < 25 || n > 40 || recs[n-1].Offset != 200 {
		t.Errorf("%d records left, from %d to %d, first %d", n, recs[0].Offset, recs[n-1].Offset, r.First())
	}
	o := r.opt
	r.end()
	if report, err := Verify(o); err != nil {
		t.Errorf("%v: %+v", err, report)
	}
	r = start(t, o)
	if again := r.read(1); len(again) != len(recs) {
		t.Errorf("%d records after a restart, %d before", len(again), len(recs))
	}
}

// Much in many open segments is not out of reach: who was silent longest loses first.
func TestRetentionByBytesOfOpenSegments(t *testing.T) {
	r, c := aged(t, func(o *Options) { o.RetainBytes, o.SegmentBytes = 100<<10, 1<<20 })
	for i := range 40 {
		fillAged(r, c, "a", fmt.Sprint("c", i), 10)
	}
	r.await("bytes to fall", func() bool { return r.Stats().SegmentBytes <= 100<<10 })
	var recs []Record
	r.await("First to follow", func() bool { recs = r.read(1); return recs[0].Offset == r.First() })
	if n := len(recs); n < 80 || n > 100 || recs[n-1].Offset != 400 {
		t.Errorf("%d records left, from %d to %d", n, recs[0].Offset, recs[n-1].Offset)
	}
}

func TestRetentionByTopic(t *testing.T) {
	r, c := aged(t, func(o *Options) {
		o.RetainAge = time.Hour
		o.MaxAge = func(topic string) time.Duration {
			switch topic {
			case "keep":
				return -1
			case "long":
				return 48 * time.Hour
			}
			return 0
		}
	})
	fillAged(r, c, "short", "a", 7)
	fillAged(r, c, "long", "b", 7)
	fillAged(r, c, "keep", "c", 7)
	fillAged(r, c, "short", "d", 3)
	fillAged(r, c, "keep", "d", 4) // in a segment with the one before
	byTopic := func() string {
		counts := make(map[string]int)
		for _, rec := range r.read(1) {
			counts[r.TopicName(rec.Topic)]++
		}
		return fmt.Sprint(counts)
	}
	c.advance(3 * time.Hour)
	r.await("the short ones to go", func() bool { return byTopic() == "map[keep:11 long:7 short:3]" })
	c.advance(50 * time.Hour)
	r.await("the long ones to go", func() bool { return byTopic() == "map[keep:11 short:3]" })
}

func TestRetentionProtects(t *testing.T) {
	var protect atomic.Uint64
	protect.Store(30)
	r, c := aged(t, func(o *Options) { o.RetainAge, o.RetainBytes, o.Protect = time.Minute, 1, protect.Load })
	fillAged(r, c, "a", "one", 70)
	r.await("what is not protected to go", func() bool { return r.First() > 22 })
	time.Sleep(100 * time.Millisecond)
	if recs := r.read(30); r.First() > 30 || len(recs) != 41 {
		t.Errorf("protected from 30 on, first is %d, %d left", r.First(), len(recs))
	}
	protect.Store(1000)
	r.await("the rest to go", func() bool { return r.First() > 60 })
}

// A reader that has a segment open, and one that has yet to open it, both get along with its deletion.
func TestReadDeleted(t *testing.T) {
	r, c := aged(t, func(o *Options) { o.RetainAge = time.Hour })
	fillAged(r, c, "a", "one", 70)
	r.read(1) // open and in the cache
	g := r.table.sorted()[0]
	h, err := r.handles.acquire(g)
	if err != nil {
		t.Fatal(err)
	}
	c.advance(10 * time.Hour)
	r.await("deletion", func() bool { return r.table.get(g.id) == nil && len(r.segmentFiles()) == 0 })
	if n, err := h.r.ReadAt(make([]byte, 100), segment.HeaderSize); n != 100 || err != nil {
		t.Errorf("read of an open deleted segment: %d, %v", n, err)
	}
	r.handles.release(h)
}

// A crash leaves files that no table knows: they go at the next start, and nothing else does.
func TestSweep(t *testing.T) {
	r, c := aged(t, func(*Options) {})
	fillAged(r, c, "a", "one", 20)
	o := r.opt
	before := r.segmentFiles()
	r.end()
	copyOf := func(from, to string) {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o700)
		}
		if err == nil {
			err = os.WriteFile(to, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(o.Dir, "segments")
	first := filepath.Base(before[0])
	copyOf(before[0], filepath.Join(root, "00000077", first)) // the same number, another client
	copyOf(before[0], filepath.Join(root, "notes.d", "readme.txt"))
	if err := os.Remove(before[0]); err != nil { // as if it were deleted, and the state did not know: reads skip it
		t.Fatal(err)
	}
	r = start(t, o)
	r.await("the sweep", func() bool {
		return !slices.ContainsFunc(r.segmentFiles(), func(name string) bool { return strings.Contains(name, "00000077") })
	})
	if after := r.segmentFiles(); !slices.Equal(after, before[1:]) {
		t.Errorf("files are %v, want %v", after, before[1:])
	}
	if _, err := os.Stat(filepath.Join(root, "notes.d", "readme.txt")); err != nil {
		t.Error(err)
	}
	if n := len(r.read(1)); n != 13 || r.Stats().Damaged == 0 {
		t.Errorf("%d records left of 20, damaged %d", n, r.Stats().Damaged)
	}
}
