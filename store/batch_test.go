package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/edgemq/edgemq/store/journal"
)

// What is written past the system's cache (vfs.WriteDirect) has to begin at a multiple of 4 KiB.
func TestGroupsBeginAtAPage(t *testing.T) {
	b := newBatch()
	for range 12 {
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(b.buf))); at%journal.BlockSize != 0 {
			t.Fatalf("a buffer of %d bytes is at %x", cap(b.buf), at)
		}
		b.buf = slices.Grow(b.buf, cap(b.buf)+1)
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
