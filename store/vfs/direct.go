package vfs

import "unsafe"

// directAlign is what the address, the length and the position of a write past the cache have to be multiples of. Drives want 512 bytes or 4 KiB.
const directAlign = 4096

// directWriter is a File that can write past the system's cache.
type directWriter interface {
	WriteDirectAt(b []byte, pos int64) (n int, err error)
}

// WriteDirect is f.WriteAt, past the system's cache if that can be done: it spares the copy, the memory and the work of writing it back, at
// the price of waiting for the drive here rather than in Datasync, which is needed all the same. It is for what is synced at once and
// hardly ever read. Only whole blocks of 4 KiB in memory that begins at a multiple of 4 KiB go that way (what Go allocates of 32 KiB or more
// does), and only if the file system takes them; all others go through the cache. The two may be mixed.
func WriteDirect(f File, b []byte, pos int64) (n int, err error) {
	if d, ok := f.(directWriter); ok && len(b) > 0 && aligned(b, pos) {
		return d.WriteDirectAt(b, pos)
	}
	return f.WriteAt(b, pos)
}

func aligned(b []byte, pos int64) bool {
	return (uintptr(unsafe.Pointer(unsafe.SliceData(b)))|uintptr(len(b))|uintptr(pos))%directAlign == 0
}

// Zero overwrites n bytes from pos on, a multiple of 4 KiB, with zeros.
func Zero(f File, pos, n int64) error {
	for n > 0 {
		m, err := WriteDirect(f, zeros[:min(n, int64(len(zeros)))], pos)
		if err != nil {
			return err
		}
		pos += int64(m)
		n -= int64(m)
	}
	return nil
}

// zeros is what Preallocate writes: large enough that few calls are needed. It stays untouched, and so takes no memory.
var zeros = func() []byte {
	at := uintptr(unsafe.Pointer(&zeroed)) % directAlign
	return zeroed[(directAlign-at)%directAlign:][:1<<20]
}()

var zeroed [1<<20 + directAlign]byte
