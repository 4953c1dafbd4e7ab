package record

import (
	"bytes"
	"hash/crc32"
	"testing"
)

func TestConcat(t *testing.T) {
	b := bytes.Repeat([]byte("what a group holds "), 1<<14)
	for _, n := range []int{0, 1, 3, 4, 255, 256, 4096, 65_536, 65_536, len(b) - 7} {
		for _, m := range []int{0, 1, 7} {
			got := Concat(crc32.Checksum(b[:m], castagnoli), crc32.Checksum(b[m:m+n], castagnoli), n)
			if want := crc32.Checksum(b[:m+n], castagnoli); got != want {
				t.Errorf("%d and %d bytes: %08x, want %08x", m, n, got, want)
			}
		}
	}
}

func TestExtend(t *testing.T) {
	all := []byte("before")
	sum := crc32.Checksum(all, castagnoli)
	for i, size := range []int{0, 1, 100, 65_536, 65_536, 100_000} {
		at := len(all)
		all = Append(all, &Record{Offset: uint64(i), Topic: 7, Props: []byte("p"), Payload: bytes.Repeat([]byte{byte(i + 1)}, size)})
		sum = Extend(sum, all[at:])
		if want := crc32.Checksum(all, castagnoli); sum != want {
			t.Fatalf("after a payload of %d bytes: %08x, want %08x", size, sum, want)
		}
	}
}

func BenchmarkExtend(b *testing.B) {
	rec := Append(nil, &Record{Payload: make([]byte, 64<<10)})
	var sum uint32
	for b.Loop() {
		sum = Extend(sum, rec)
	}
}
