package store

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/edgemq/edgemq/store/journal"
	"github.com/edgemq/edgemq/store/record"
)

// What is written past the system's cache (vfs.WriteDirect) has to begin at a multiple of 4 KiB.
func TestGroupsBeginAtAPage(t *testing.T) {
	b := newBatch()
	b.grow(1)
	for range 12 {
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(b.buf))); at%journal.BlockSize != 0 {
			t.Fatalf("a buffer of %d bytes is at %x", cap(b.buf), at)
		}
		b.grow(cap(b.buf) + 1 - len(b.buf))
	}
}

// Numbers of clients that publish nothing make no group of their own, but no group that the journal does not take either.
func TestManyClientsThatPublishNothing(t *testing.T) {
	r := start(t, small(t.TempDir()))
	name := strings.Repeat("x", 1000)
	for i := range 400 {
		r.client(fmt.Sprint(name, i))
	}
	r.put(numbered(r.topic("t"), r.client("c"), 1, 8))
}

// Large appends come beside small ones; the groups that come of it read as what was appended, from memory, from the
// journal after a kill, and from segments.
func TestLargeAppendsBesideOthers(t *testing.T) {
	o := small(t.TempDir())
	o.JournalFileBytes, o.CheckpointBytes, o.TailBytes = 16<<20, 64<<20, 64<<20
	r := start(t, o)
	sizes := []int{100, 70_000, 9, 300_000, 2000, 1 << 20, 64 << 10}
	const writers, each = 6, 20
	topic := r.topic("t")
	var wg sync.WaitGroup
	for w := range writers {
		client := r.client(fmt.Sprint("c", w))
		wg.Go(func() {
			done := make(based, each)
			for i := range each {
				n := 2 * (w*each + i)
				msgs := []Message{numbered(topic, client, n, sizes[(w+i)%len(sizes)]), numbered(topic, client, n+1, sizes[i%2])}
				if err := r.Append(msgs, nil, true, done); err != nil {
					t.Error(err)
				}
				if i%3 == 0 {
					if a := <-done; a.err != nil {
						t.Error(a.err)
					}
				}
			}
			for range each - (each+2)/3 {
				if a := <-done; a.err != nil {
					t.Error(a.err)
				}
			}
		})
	}
	wg.Wait()
	check := func(where string) {
		t.Helper()
		recs := r.read(1)
		if len(recs) != 2*writers*each {
			t.Errorf("%s: %d messages", where, len(recs))
		}
		last := make(map[uint32]int)
		for _, rec := range recs {
			n, err := number(rec)
			if err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			if before, ok := last[rec.Client]; ok && n != before+1 {
				t.Fatalf("%s: number %d follows %d", where, n, before)
			}
			last[rec.Client] = n
		}
	}
	check("in memory")
	r.kill()
	r = start(t, o)
	check("from the journal")
	r.end()
	if report, err := Verify(o); err != nil {
		t.Errorf("%v: %+v", err, report)
	}
}

// The sum that is made of the records' own is that of their bytes, whatever is between the large ones.
func TestSumOfAGroup(t *testing.T) {
	for _, sizes := range [][]int{{}, {10}, {largeSum}, {10, 5000, 20, 30, 70_000, 70_000}, {9000, 1}, {0, 9000, 0}} {
		b := newBatch()
		for i, size := range sizes {
			b.add([]Message{numbered(1, 2, i, size)}, uint64(i), 3, false, func([]byte) bool { return false })
		}
		sum, n := b.sum()
		if want := record.Sum(0, b.buf[journal.HeaderSize:][:n]); sum != want {
			t.Errorf("%v: %08x of %d bytes, want %08x", sizes, sum, n, want)
		}
	}
}
