package store

import (
	"slices"
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
