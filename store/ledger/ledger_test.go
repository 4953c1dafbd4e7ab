package ledger

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "rewrite the golden files")

// entry is what the tests write at an offset. Every seventh record has the time of the one before.
func entry(offset uint64) Entry {
	return Entry{
		Topic: uint32(offset % 5), Client: 9, Segment: uint32(offset/10 + 1), Pos: uint32(offset * 3), Length: 100, Expiry: 7,
		PacketID: uint16(offset), Flags: record.FlagRetain, Time: timeOf(offset),
	}
}

func timeOf(offset uint64) int64 {
	if offset%7 == 0 {
		offset--
	}
	return int64(offset) * 10
}

func entries(from, to uint64) []Entry {
	var all []Entry
	for o := from; o < to; o++ {
		all = append(all, entry(o))
	}
	return all
}

// newDisk is an empty disk with the data directory.
func newDisk() *vfstest.Disk {
	disk := vfstest.NewDisk(vfstest.Never)
	if err := errors.Join(disk.MkdirAll("data", 0o750), disk.SyncDir(".")); err != nil {
		panic(err)
	}
	return disk
}

// numbers prints as its length and its first elements.
type numbers []uint64

func (n numbers) String() string {
	return fmt.Sprintf("%d offsets %d…", len(n), []uint64(n[:min(len(n), 10)]))
}

// perFile is what the tests' files hold, but for the golden one.
const perFile = 3000

func start(t testing.TB, fsys vfs.FS, first, next uint64) *Ledger {
	return sized(t, fsys, first, next, perFile)
}

func sized(t testing.TB, fsys vfs.FS, first, next, perFile uint64) *Ledger {
	t.Helper()
	l, err := open(fsys, "data/ledger", first, next, perFile)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// fill appends entries up to an offset.
func fill(t testing.TB, l *Ledger, to uint64) {
	t.Helper()
	for l.Next() < to {
		if err := l.Append(entries(l.Next(), min(to, l.Next()+50_000))); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
}

// read reads [from, to) and checks that all but the bad ones are what the tests write. It returns the bad offsets.
func read(t testing.TB, l *Ledger, from, to uint64) (bad numbers) {
	t.Helper()
	dst := make([]Entry, to-from)
	n, err := l.Read(from, dst)
	if err != nil || n != len(dst) {
		t.Fatalf("Read of [%d, %d) gave %d entries, %v", from, to, n, err)
	}
	for i, e := range dst {
		switch o := from + uint64(i); {
		case e == Entry{Bad: true}:
			bad = append(bad, o)
		case e != entry(o):
			t.Fatalf("entry %d is %+v, want %+v", o, e, entry(o))
		}
	}
	return bad
}

func TestAppendAndRead(t *testing.T) {
	disk := newDisk()
	const first, next = 1, 2*perFile + 100 // three files
	l := start(t, disk, first, first)
	if n, err := l.Read(1, make([]Entry, 5)); n != 0 || err != nil {
		t.Fatalf("an empty ledger has %d entries, %v", n, err)
	}
	fill(t, l, next)
	for _, r := range [][2]uint64{{first, first + 1}, {5, 5000}, {perFile - 3, perFile + 3}, {next - 10, next}, {3, 2*perFile + 3}} {
		if bad := read(t, l, r[0], r[1]); bad != nil {
			t.Errorf("in [%d, %d) these are bad: %v", r[0], r[1], bad)
		}
	}
	if n, err := l.Read(next-4, make([]Entry, 9)); n != 4 || err != nil {
		t.Errorf("Read at the end gave %d, %v", n, err)
	}
	if n, err := l.Read(next+4, make([]Entry, 9)); n != 0 || err != nil {
		t.Errorf("Read behind the end gave %d, %v", n, err)
	}
	if want := int64(3*headerSize + next*EntrySize); l.Bytes() != want {
		t.Errorf("%d bytes, want %d", l.Bytes(), want)
	}
	l.Close()
	l = start(t, disk.AfterCut(vfstest.LoseAll), first, next)
	if bad := read(t, l, first, next); bad != nil || l.Damaged() != 0 {
		t.Errorf("after a power cut these are bad: %v", bad)
	}
}

// After a crash the entries behind the checkpoint are on the disk already, possibly in a file with a torn header.
func TestEntriesBehindTheCheckpoint(t *testing.T) {
	for _, next := range []uint64{10, perFile - 5, perFile} {
		disk := newDisk()
		l := start(t, disk, 1, 1)
		fill(t, l, perFile+20)
		l.Close()
		if err := disk.Corrupt("data/ledger/00000001.ldg", 3, 0xFF); err != nil {
			t.Fatal(err)
		}
		l = start(t, disk, 1, next)
		if n, err := l.Read(next-1, make([]Entry, 5)); n != 1 || err != nil {
			t.Fatalf("Read at the checkpoint %d gave %d, %v", next, n, err)
		}
		fill(t, l, perFile+30)
		if bad := read(t, l, 1, perFile+30); bad != nil {
			t.Fatalf("checkpoint %d: these are bad: %v", next, bad)
		}
		if b, err := disk.ReadFile("data/ledger/00000001.ldg"); err != nil || string(b[:4]) != magic {
			t.Fatalf("the torn header is still there: %q, %v", b[:4], err)
		}
	}
}

func TestDamage(t *testing.T) {
	made := newDisk()
	l := start(t, made, 1, 1)
	fill(t, l, 100)
	const path = "data/ledger/00000000.ldg"
	sound, err := made.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := func(offset, field int) int { return headerSize + offset*EntrySize + field }
	tests := []struct {
		name string
		hurt func(b []byte) []byte
		bad  numbers
		err  error
	}{
		{"sound", func(b []byte) []byte { return b }, nil, nil},
		{"zeros", func(b []byte) []byte { clear(b[at(40, 0):at(43, 0)]); return b }, offsets(40, 43), nil},
		{"file cut in an entry", func(b []byte) []byte { return b[:at(97, 33)] }, offsets(97, 100), nil},
		{"file empty", func(b []byte) []byte { return nil }, offsets(1, 100), nil},
		{"an entry in the wrong place", func(b []byte) []byte { copy(b[at(50, 0):at(51, 0)], b[at(51, 0):]); return b }, offsets(50, 51), nil},
		{"header", func(b []byte) []byte { clear(b[:headerSize]); return b }, nil, nil},
		{"newer version", func(b []byte) []byte {
			h := record.FileHeader{Magic: magic, Version: version + 1, HeaderSize: headerSize}
			copy(b, h.Append(nil))
			return b
		}, nil, ErrVersion},
	}
	for field, name := range map[int]string{0: "crc", 4: "topic", 8: "client", 12: "segment", 16: "pos", 20: "length", 24: "expiry", 28: "packet id", 30: "flags", 32: "time", 39: "time"} {
		tests = append(tests, struct {
			name string
			hurt func(b []byte) []byte
			bad  numbers
			err  error
		}{"flipped bit in " + name, func(b []byte) []byte { b[at(60, field)] ^= 2; return b }, offsets(60, 61), nil})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			disk := newDisk()
			disk.WriteFile(path, tt.hurt(bytes.Clone(sound)))
			l, err := Open(disk, "data/ledger", 1, 100)
			if !errors.Is(err, tt.err) {
				t.Fatalf("Open: %v, want %v", err, tt.err)
			}
			if err != nil {
				return
			}
			defer l.Close()
			if bad := read(t, l, 1, 100); !slices.Equal(bad, tt.bad) || l.Damaged() != uint64(len(tt.bad)) {
				t.Errorf("bad are %v, counted %d, want %v", bad, l.Damaged(), tt.bad)
			}
			// It goes on, and the rest is still there.
			fill(t, l, 120)
			if bad := read(t, l, 1, 120); !slices.Equal(bad, tt.bad) {
				t.Errorf("after an Append bad are %v, want %v", bad, tt.bad)
			}
		})
	}
	disk := newDisk()
	l = start(t, disk, 1, 2*perFile+5)
	if bad := read(t, l, perFile-2, perFile+2); len(bad) != 4 {
		t.Errorf("of missing files these are bad: %v", bad)
	}
}

func offsets(from, to uint64) numbers {
	var all numbers
	for o := from; o < to; o++ {
		all = append(all, o)
	}
	return all
}

func TestSearch(t *testing.T) {
	disk := newDisk()
	const first, next = 20, 3000
	l := start(t, disk, first, first)
	fill(t, l, next)
	plain := func(time int64) uint64 {
		for o := uint64(first); o < next; o++ {
			if timeOf(o) >= time {
				return o
			}
		}
		return next
	}
	times := []int64{-1, 0, timeOf(first), timeOf(first) + 1, timeOf(next - 1), timeOf(next-1) + 1, 1 << 60}
	for range 500 {
		times = append(times, rand.Int64N(31_000))
	}
	for _, time := range times {
		if got := l.Search(time, asIs); got != plain(time) {
			t.Fatalf("Search(%d) = %d, want %d", time, got, plain(time))
		}
	}

	// With damage the answer is at most too early, by the damaged entries in front of the right one.
	bad := make(map[uint64]bool)
	for _, o := range append(offsets(500, 1100), 20, 276, 1555, 2999) {
		bad[o] = true
		if err := disk.Corrupt("data/ledger/00000000.ldg", headerSize+int64(o)*EntrySize, 1); err != nil {
			t.Fatal(err)
		}
	}
	for _, time := range times {
		want := plain(time)
		for want < next && bad[want] {
			want++
		}
		got := l.Search(time, asIs)
		for got < want && bad[got] {
			got++
		}
		if got != want {
			t.Fatalf("with damage: Search(%d) leads to %d, want %d", time, got, want)
		}
	}
	if empty := start(t, newDisk(), 7, 7); empty.Search(0, asIs) != 7 {
		t.Fatal("Search in an empty ledger")
	}
}

func TestDropBefore(t *testing.T) {
	disk := newDisk()
	l := start(t, disk, 1, 1)
	fill(t, l, 2*perFile)
	read(t, l, 1, 2*perFile) // so that the files are open
	steps := []struct {
		before uint64
		files  int
	}{{10, 2}, {perFile - 1, 2}, {perFile, 1}, {5, 1}, {2*perFile - 1, 1}, {1 << 50, 0}}
	for _, s := range steps {
		if err := l.DropBefore(s.before); err != nil {
			t.Fatal(err)
		}
		if got := len(disk.List()); got != s.files {
			t.Fatalf("DropBefore(%d) leaves %d files, want %d", s.before, got, s.files)
		}
	}
	if l.First() != 2*perFile || l.Next() != 2*perFile || l.Bytes() != 0 {
		t.Fatalf("first %d, next %d, %d bytes", l.First(), l.Next(), l.Bytes())
	}
	dst := make([]Entry, 3)
	if n, err := l.Read(100, dst); n != 3 || err != nil || dst[0] != (Entry{}) || l.Damaged() != 0 {
		t.Fatalf("Read of dropped entries: %d, %v, %+v, %d damaged", n, err, dst[0], l.Damaged())
	}
	fill(t, l, 2*perFile+10)
	if bad := read(t, l, 2*perFile, 2*perFile+10); bad != nil {
		t.Fatalf("bad are %v", bad)
	}
}

func TestFullDisk(t *testing.T) {
	disk := newDisk()
	l := start(t, disk, perFile-10, perFile-10)
	fill(t, l, perFile-5)
	disk.SetCapacity(disk.Used())
	more := entries(perFile-5, perFile+1000) // the first file has room, the second has not
	if err := l.Append(more); !errors.Is(err, syscall.ENOSPC) || l.Next() != perFile-5 {
		t.Fatalf("on a full disk: %v, next %d", err, l.Next())
	}
	disk.SetCapacity(0)
	if err := errors.Join(l.Append(more), l.Sync()); err != nil {
		t.Fatal(err)
	}
	if bad := read(t, l, perFile-10, perFile+1000); bad != nil {
		t.Fatalf("bad are %v", bad)
	}
}

func TestFailedSyncStops(t *testing.T) {
	for _, kind := range []vfstest.Kind{vfstest.Datasync, vfstest.SyncDir} {
		disk := newDisk()
		l := start(t, disk, 1, 1)
		broken := errors.New("broken")
		stop := disk.Inject(vfstest.On(kind, "ledger", broken))
		if err := errors.Join(l.Append(entries(1, 5)), l.Sync()); !errors.Is(err, broken) {
			t.Fatalf("%v fails, Sync: %v", kind, err)
		}
		stop()
		if err := l.Sync(); !errors.Is(err, broken) {
			t.Fatalf("the next Sync: %v", err)
		}
		if err := l.Append(entries(5, 6)); !errors.Is(err, broken) {
			t.Fatalf("the next Append: %v", err)
		}
	}
}

// Power is cut at every operation; what was synced is there.
func TestPowerCuts(t *testing.T) {
	for cut := 0; ; cut++ {
		disk := newDisk()
		const perFile = 500
		const first = perFile - 25
		l := sized(t, disk, first, first, perFile)
		disk.CutAfter(cut)
		var err error
		synced := l.Next()
		for err == nil && l.Next() < perFile+25 {
			if err = l.Append(entries(l.Next(), l.Next()+10)); err == nil {
				if err = l.Sync(); err == nil {
					synced = l.Next()
				}
			}
		}
		if err != nil && !errors.Is(err, vfstest.ErrPowerCut) {
			t.Fatalf("cut %d: %v", cut, err)
		}
		for seed := range uint64(8) {
			l := sized(t, disk.AfterCut(seed), first, synced, perFile)
			if bad := read(t, l, first, synced); bad != nil {
				t.Fatalf("cut %d, seed %d: bad are %v, synced up to %d", cut, seed, bad, synced)
			}
			fill(t, l, perFile+40)
			if bad := read(t, l, first, perFile+40); bad != nil {
				t.Fatalf("cut %d, seed %d: after new appends bad are %v", cut, seed, bad)
			}
		}
		if !disk.Cut() {
			return
		}
	}
}

// Readers, an appender and drops at the same time, over more files than are kept open.
func TestConcurrentReaders(t *testing.T) {
	disk := newDisk()
	const perFile, begin = 20_000, 5 * 20_000
	l := sized(t, disk, begin, begin, perFile)
	fill(t, l, begin+10)
	var readers sync.WaitGroup
	done := make(chan struct{})
	for range 3 {
		readers.Go(func() {
			dst := make([]Entry, 100)
			for {
				select {
				case <-done:
					return
				default:
				}
				first := l.First()
				from := first + rand.Uint64N(l.Next()-first)
				n, err := l.Read(from, dst)
				for i, e := range dst[:n] {
					if o := from + uint64(i); err != nil || e != entry(o) && o >= l.First() {
						t.Errorf("entry %d is %+v, %v", o, e, err)
						return
					}
				}
			}
		})
	}
	for i := range uint64(4) {
		fill(t, l, begin+(i+1)*perFile/2+3)
		if err := l.DropBefore(l.Next() - 5); err != nil {
			t.Error(err)
		}
	}
	close(done)
	readers.Wait()
	if l.Damaged() != 0 {
		t.Errorf("%d damaged", l.Damaged())
	}
}

func TestHandles(t *testing.T) {
	disk := newDisk()
	for i := range uint64(3 * maxOpen) {
		disk.WriteFile(fmt.Sprintf("data/ledger/%08x.ldg", i), appendEntry(appendHeader(nil, i, perFile), i*perFile, &Entry{Topic: uint32(i)}))
	}
	l := start(t, disk, 0, 3*maxOpen*perFile)
	var e [1]Entry
	for i := range uint64(3 * maxOpen) {
		if _, err := l.Read(i*perFile, e[:]); err != nil || e[0].Topic != uint32(i) || e[0].Bad {
			t.Fatalf("entry in file %d: %+v, %v", i, e[0], err)
		}
		if len(l.files) > maxOpen {
			t.Fatalf("%d files open", len(l.files))
		}
	}
	if l.files[3*maxOpen-1] == nil || l.files[0] != nil {
		t.Error("not the one unused for longest was closed")
	}
}

func TestGolden(t *testing.T) {
	disk := newDisk()
	l := sized(t, disk, 1, 1, FileEntries)
	fill(t, l, 30)
	made, err := disk.ReadFile("data/ledger/00000000.ldg")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "v1", "00000000.ldg")
	if *update {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, made, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || !bytes.Equal(made, want) {
		t.Errorf("%s is written differently today, %v", path, err)
	}
	if l, err = Open(vfs.OS, filepath.Dir(path), 1, 30); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if bad := read(t, l, 1, 30); bad != nil {
		t.Errorf("bad are %v", bad)
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	e := entry(5)
	buf := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() { buf = appendEntry(buf[:0], 5, &e) }); n != 0 {
		t.Errorf("appendEntry: %v allocations", n)
	}
	if n := testing.AllocsPerRun(100, func() { parseEntry(buf, 5) }); n != 0 {
		t.Errorf("parseEntry: %v allocations", n)
	}
}

// Whatever is in the file, an entry read from it is bad, or it is those bytes.
func FuzzRead(f *testing.F) {
	disk := newDisk()
	l := start(f, disk, 1, 1)
	fill(f, l, 10)
	sound, err := disk.ReadFile("data/ledger/00000000.ldg")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sound, uint16(1), uint16(10), int64(50))
	f.Add(sound[:300], uint16(3), uint16(100), int64(50))
	f.Fuzz(func(t *testing.T, b []byte, first, next uint16, time int64) {
		disk := newDisk()
		disk.WriteFile("data/ledger/00000000.ldg", b)
		l, err := Open(disk, "data/ledger", uint64(first), uint64(next))
		if err != nil {
			return
		}
		defer l.Close()
		dst := make([]Entry, next-first+5)
		n, err := l.Read(uint64(first), dst)
		if err != nil || n != int(next-first) {
			t.Fatalf("%d entries, %v", n, err)
		}
		bad := 0
		for i, e := range dst[:n] {
			o := uint64(first) + uint64(i)
			at := headerSize + int(o)*EntrySize
			switch {
			case e == Entry{Bad: true}:
				bad++
			case at+EntrySize > len(b) || !bytes.Equal(appendEntry(nil, o, &e), b[at:at+EntrySize]):
				t.Fatalf("entry %d is %+v, not what is in the file", o, e)
			}
		}
		if l.Damaged() != uint64(bad) {
			t.Fatalf("%d bad, %d counted", bad, l.Damaged())
		}
		if o := l.Search(time, asIs); o < uint64(first) || o > uint64(next) {
			t.Fatalf("Search gave %d", o)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	for _, batch := range []int{1, 1000} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			l, err := Open(vfs.OS, filepath.Join(b.TempDir(), "ledger"), 1, 1)
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			all := entries(1, uint64(batch)+1)
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Append(all); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/entry")
		})
	}
}

func BenchmarkRead(b *testing.B) {
	l, err := Open(vfs.OS, filepath.Join(b.TempDir(), "ledger"), 1, 1)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	fill(b, l, 100_000)
	dst := make([]Entry, 1000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Read(1+rand.Uint64N(99_000), dst); err != nil || dst[0].Bad {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(dst)), "ns/entry")
}

// asIs takes times for what they say.
func asIs(_ uint64, time int64) int64 { return time }
