package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var sample = Record{
	Offset: 0x0102030405060708, Time: 1_700_000_000_123_456, Topic: 7, Client: 0xDEADBEEF, Expiry: 3600, PacketID: 513,
	Flags:   FlagRetain | FlagExpiry | FlagUTF8 | 1,
	Props:   []byte{0x26, 0, 1, 'k', 0, 1, 'v'},
	Payload: []byte("21.5 °C"),
}

func TestRoundTrip(t *testing.T) {
	records := []Record{
		sample,
		{Props: []byte{}, Payload: []byte{}},
		{Offset: 1, Time: -1, Flags: Flags(0).WithQoS(2) | FlagTransient, Props: []byte{}, Payload: make([]byte, 100_000)},
	}
	var b []byte
	for i := range records {
		b = Append(b, &records[i])
	}
	for _, want := range records {
		got, n, err := Parse(b)
		if err != nil || !reflect.DeepEqual(got, want) || n != Size(len(want.Props), len(want.Payload)) {
			t.Fatalf("Parse gave %+v, %d, %v, want %+v", got, n, err, want)
		}
		b = b[n:]
	}
	if _, _, err := Parse(b); !errors.Is(err, ErrShort) {
		t.Fatalf("at the end: %v", err)
	}
}

// reseal makes the checksum right again, so that what it guards is reached.
func reseal(b []byte) []byte {
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return b
}

func TestParseDamage(t *testing.T) {
	set32 := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[at:], v); return b }
	}
	tests := []struct {
		name string
		hurt func(b []byte) []byte
		want error
	}{
		{"nothing", func(b []byte) []byte { return nil }, ErrShort},
		{"cut in the length", func(b []byte) []byte { return b[:7] }, ErrShort},
		{"cut in the header", func(b []byte) []byte { return b[:HeaderSize-1] }, ErrShort},
		{"cut in the payload", func(b []byte) []byte { return b[:len(b)-1] }, ErrShort},
		{"zeros", func(b []byte) []byte { clear(b); return b }, ErrEmpty},
		{"length too small", set32(4, HeaderSize-1), ErrChecksum},
		{"length too large", set32(4, MaxSize+1), ErrChecksum},
		{"length negative", set32(4, 0xFFFFFFFF), ErrChecksum},
		{"props longer than the record", func(b []byte) []byte { return reseal(set32(40, uint32(len(b)-HeaderSize+1))(b)) }, ErrMalformed},
		{"props length negative", func(b []byte) []byte { return reseal(set32(40, 0xFFFFFFFF)(b)) }, ErrMalformed},
		{"reserved flag", func(b []byte) []byte { b[39] |= 0x80; return reseal(b) }, ErrMalformed},
		{"QoS 3", func(b []byte) []byte { b[38] |= 3; return reseal(b) }, ErrMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, n, err := Parse(tt.hurt(Append(nil, &sample)))
			if !errors.Is(err, tt.want) || n != 0 || !reflect.DeepEqual(r, Record{}) {
				t.Fatalf("Parse gave %+v, %d, %v, want %v", r, n, err, tt.want)
			}
		})
	}
}

func TestFlippedBits(t *testing.T) {
	sound := Append(nil, &sample)
	for bit := range 8 * len(sound) {
		b := slices.Clone(sound)
		b[bit/8] ^= 1 << (bit % 8)
		if _, _, err := Parse(b); err == nil {
			t.Errorf("bit %d of byte %d flipped: no error", bit%8, bit/8)
		}
	}
	sound = AppendMutation(nil, Put(BucketCursors, []byte("key"), []byte("value")))
	for bit := range 8 * len(sound) {
		b := slices.Clone(sound)
		b[bit/8] ^= 1 << (bit % 8)
		if _, _, err := ParseMutation(b); err == nil {
			t.Errorf("mutation, bit %d of byte %d flipped: no error", bit%8, bit/8)
		}
	}
}

func TestMutations(t *testing.T) {
	all := []Mutation{
		Put(BucketTopics, []byte("k"), []byte("v")),
		Put(BucketTopics, []byte("k"), nil),
		Delete(BucketTopics, []byte("k")),
		Put(255, make([]byte, MaxKey), make([]byte, 70_000)),
	}
	var b []byte
	for _, m := range all {
		b = AppendMutation(b, m)
	}
	for _, want := range all {
		got, n, err := ParseMutation(b)
		if err != nil || !reflect.DeepEqual(got, want) || n != MutationSize(len(want.Key), len(want.Value)) {
			t.Fatalf("ParseMutation gave %.50v, %d, %v, want %.50v", got, n, err, want)
		}
		b = b[n:]
	}

	for _, m := range []Mutation{{}, {Bucket: 1}, {Key: []byte("k")}, {Bucket: 1, Key: make([]byte, MaxKey+1)}} {
		if !errors.Is(m.Check(), ErrMalformed) {
			t.Errorf("Check of bucket %d with a key of %d bytes: %v", m.Bucket, len(m.Key), m.Check())
		}
	}
	tests := []struct {
		name string
		hurt func(b []byte) []byte
		want error
	}{
		{"cut in the header", func(b []byte) []byte { return b[:MutationHeaderSize-1] }, ErrShort},
		{"cut in the value", func(b []byte) []byte { return b[:len(b)-1] }, ErrShort},
		{"zeros", func(b []byte) []byte { clear(b); return b }, ErrEmpty},
		{"no key", func(b []byte) []byte { b[6] = 0; return b }, ErrChecksum},
		{"key too long", func(b []byte) []byte { b[7] = 0xFF; return b }, ErrChecksum},
		{"value too long", func(b []byte) []byte { b[11] = 0xFF; return b }, ErrChecksum},
		{"no bucket", func(b []byte) []byte { b[4] = 0; return reseal(b) }, ErrMalformed},
		{"unknown op", func(b []byte) []byte { b[5] = 3; return reseal(b) }, ErrMalformed},
		{"delete with a value", func(b []byte) []byte { b[5] = opDelete; return reseal(b) }, ErrMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, n, err := ParseMutation(tt.hurt(AppendMutation(nil, Put(BucketMeta, []byte("k"), []byte("v")))))
			if !errors.Is(err, tt.want) || n != 0 || !reflect.DeepEqual(m, Mutation{}) {
				t.Fatalf("ParseMutation gave %+v, %d, %v, want %v", m, n, err, tt.want)
			}
		})
	}
}

func TestBuckets(t *testing.T) {
	names := make(map[string]bool)
	for _, b := range append(Buckets(), 0, 200) {
		if names[b.String()] {
			t.Errorf("two buckets of the name %s", b)
		}
		names[b.String()] = true
	}
}

func TestFileHeader(t *testing.T) {
	h := FileHeader{Magic: "EMQT", Version: 2, HeaderSize: 64}
	h.Fields[51] = 9
	sound := h.Append([]byte("before"))[6:]
	if got, err := ParseFileHeader(sound, "EMQT", 2, 64); err != nil || got != h {
		t.Fatalf("ParseFileHeader gave %+v, %v", got, err)
	}
	seal := func(b []byte) []byte {
		binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
		return b
	}
	tests := []struct {
		name string
		hurt func(b []byte) []byte
		want error
	}{
		{"cut", func(b []byte) []byte { return b[:63] }, ErrShort},
		{"another kind", func(b []byte) []byte { b[3] = 'X'; return seal(b) }, ErrMagic},
		{"flipped bit in the version", func(b []byte) []byte { b[4] ^= 4; return b }, ErrChecksum},
		{"flipped bit in the fields", func(b []byte) []byte { b[8] ^= 4; return b }, ErrChecksum},
		{"newer version", func(b []byte) []byte { b[4] = 3; return seal(b) }, ErrVersion},
		{"newer version with a larger header", func(b []byte) []byte { b[4], b[6] = 3, 128; return seal(b) }, ErrVersion},
		{"version 0", func(b []byte) []byte { b[4] = 0; return seal(b) }, ErrMalformed},
		{"another header size", func(b []byte) []byte { b[6] = 65; return seal(b) }, ErrMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := ParseFileHeader(tt.hurt(slices.Clone(sound)), "EMQT", 2, 64); !errors.Is(err, tt.want) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
		})
	}
	err := error(&CorruptError{Path: "p", Pos: 3, Err: ErrChecksum})
	if !errors.Is(err, ErrChecksum) || err.Error() != "p: corrupt at byte 3: record: checksum mismatch" {
		t.Errorf("CorruptError: %v", err)
	}
}

func TestGolden(t *testing.T) {
	got := Append(nil, &sample)
	got = AppendMutation(got, Put(BucketCursors, []byte("feed"), []byte{1, 2, 3}))
	got = AppendMutation(got, Delete(BucketRetained, []byte("topic")))
	path := filepath.Join("testdata", "v1", "record.bin")
	if *update {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, got, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("encoded differently today, %v:\n%x\n%x", err, got, want)
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	buf := make([]byte, 0, 4096)
	m := Put(BucketCursors, []byte("feed"), []byte{1, 2, 3})
	if n := testing.AllocsPerRun(100, func() { buf = AppendMutation(Append(buf[:0], &sample), m) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Append(nil, &sample), false)
	f.Add(make([]byte, 60), true)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) >= 8 {
			b = slices.Clone(b)
			if n, err := Length(b); err == nil && n <= len(b) {
				reseal(b[:n])
			}
		}
		r, n, err := Parse(b)
		if err == nil && !bytes.Equal(Append(nil, &r), b[:n]) {
			t.Fatalf("decode then encode changed %x", b[:n])
		}
	})
}

func FuzzParseMutation(f *testing.F) {
	f.Add(AppendMutation(nil, Put(BucketMeta, []byte("k"), []byte("v"))), false)
	f.Add(AppendMutation(nil, Delete(BucketMeta, []byte("k"))), true)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) >= MutationHeaderSize {
			b = reseal(slices.Clone(b))
		}
		m, n, err := ParseMutation(b)
		if err == nil && (m.Check() != nil || !bytes.Equal(AppendMutation(nil, m), b[:n])) {
			t.Fatalf("decode then encode changed %x", b[:n])
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{16, 128, 1024, 65536} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			r := sample
			r.Payload = make([]byte, size)
			var buf []byte
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				buf = Append(buf[:0], &r)
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, size := range []int{16, 128, 1024, 65536} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			r := sample
			r.Payload = make([]byte, size)
			buf := Append(nil, &r)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := Parse(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
