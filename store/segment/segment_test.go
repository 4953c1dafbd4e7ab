package segment

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
	"strings"
	"syscall"
	"testing"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var header = Header{ID: 5, Client: 0x1234, Base: 100, Created: 1_700_000_000_000_000}

// message encodes a record whose payload has a length of its own.
func message(offset uint64) []byte {
	return record.Append(nil, &record.Record{Offset: offset, Topic: 3, Client: header.Client, Payload: bytes.Repeat([]byte{'m'}, int(offset%50))})
}

// scan returns the offsets that Scan finds, and their poses.
func scan(fsys vfs.FS, path string, length int64) (offsets []uint64, at []int64, err error) {
	err = Scan(fsys, path, length, func(pos int64, r record.Record) error {
		offsets = append(offsets, r.Offset)
		at = append(at, pos)
		return nil
	})
	return offsets, at, err
}

// write makes a segment with five records and returns their poses and its length.
func write(t testing.TB, fsys vfs.FS) (at []int64, length int64) {
	t.Helper()
	w, err := Create(fsys, "segments", header)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(5) {
		pos, err := w.Append(message(100 + i))
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, pos)
	}
	if err := errors.Join(w.Sync(), w.Close()); err != nil {
		t.Fatal(err)
	}
	return at, w.Size()
}

var path = Path("segments", header.Client, header.ID)

func TestPaths(t *testing.T) {
	if got := filepath.ToSlash(Path("s", 0x1A2B, 0xC)); got != "s/00001a2b/0000000c.seg" {
		t.Error(got)
	}
	if got := filepath.ToSlash(Path("s", Shared, 1)); got != "s/shared/00000001.seg" {
		t.Error(got)
	}
}

func TestWriteAndRead(t *testing.T) {
	disk := vfstest.NewDisk(vfstest.Never)
	at, length := write(t, disk)
	r, err := OpenRead(disk, path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if size, err := r.Size(); r.Header() != header || r.Path() != path || size != length || err != nil {
		t.Fatalf("header %+v, path %s, size %d, %v", r.Header(), r.Path(), size, err)
	}
	b := make([]byte, at[3]-at[2])
	if _, err := r.ReadAt(b, at[2]); err != nil || !bytes.Equal(b, message(102)) {
		t.Fatalf("record 102 reads %x, %v", b, err)
	}
	offsets, poses, err := scan(disk, path, length)
	if err != nil || !slices.Equal(offsets, []uint64{100, 101, 102, 103, 104}) || !slices.Equal(poses, at) {
		t.Fatalf("Scan gave %v at %v, %v", offsets, poses, err)
	}
	if offsets, _, err = scan(disk, path, at[2]); err != nil || len(offsets) != 2 {
		t.Fatalf("Scan up to the third record gave %v, %v", offsets, err)
	}
	stop := errors.New("stop")
	if err := Scan(disk, path, -1, func(int64, record.Record) error { return stop }); err != stop {
		t.Fatalf("Scan returned %v", err)
	}
}

// What lies behind the valid length is a leftover of a time after the checkpoint.
func TestWriteAfterCheckpoint(t *testing.T) {
	disk := vfstest.NewDisk(vfstest.Never)
	at, _ := write(t, disk)
	w, err := OpenWrite(disk, "segments", header.Client, header.ID, at[3])
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if pos, err := w.Append(message(200)); err != nil || pos != at[3] {
		t.Fatalf("appended at %d, %v, want %d", pos, err, at[3])
	}
	if offsets, _, err := scan(disk, path, w.Size()); err != nil || !slices.Equal(offsets, []uint64{100, 101, 102, 200}) {
		t.Fatalf("Scan gave %v, %v", offsets, err)
	}
	// And a whole segment that no checkpoint knows of.
	again, err := Create(disk, "segments", header)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if offsets, _, err := scan(disk, path, -1); err != nil || len(offsets) != 0 {
		t.Fatalf("a new segment has %v, %v", offsets, err)
	}
}

func TestLargeRecords(t *testing.T) {
	disk := vfstest.NewDisk(vfstest.Never)
	w, err := Create(disk, "segments", header)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i, size := range []int{10, scanBytes, 3 * scanBytes, 100, scanBytes - record.HeaderSize} {
		if _, err := w.Append(record.Append(nil, &record.Record{Offset: uint64(i), Payload: make([]byte, size)})); err != nil {
			t.Fatal(err)
		}
	}
	if offsets, _, err := scan(disk, path, -1); err != nil || len(offsets) != 5 {
		t.Fatalf("Scan gave %v, %v", offsets, err)
	}
	w.size = MaxBytes
	if _, err := w.Append([]byte{0}); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("a segment past 4 GiB: %v", err)
	}
}

func TestDamage(t *testing.T) {
	disk := vfstest.NewDisk(vfstest.Never)
	at, length := write(t, disk)
	sound, err := disk.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flip := func(pos int64) func([]byte) []byte { return func(b []byte) []byte { b[pos] ^= 0x10; return b } }
	tests := []struct {
		name  string
		hurt  func(b []byte) []byte
		want  int   // records that Scan finds
		pos   int64 // where CorruptError points
		cause error
	}{
		{"torn tail", func(b []byte) []byte { return b[:len(b)-1] }, 0, length - 1, nil}, // the length is the checkpoint's
		{"record cut by zeros", func(b []byte) []byte { clear(b[at[4]:]); return b }, 4, at[4], record.ErrEmpty},
		{"crc", flip(at[2]), 2, at[2], record.ErrChecksum},
		{"length", flip(at[2] + 4), 2, at[2], record.ErrChecksum},
		{"length beyond the end", func(b []byte) []byte { b[at[4]+5] = 0x7F; return b }, 4, at[4], record.ErrShort},
		{"offset", flip(at[2] + 8), 2, at[2], record.ErrChecksum},
		{"time", flip(at[2] + 16), 2, at[2], record.ErrChecksum},
		{"topic", flip(at[2] + 24), 2, at[2], record.ErrChecksum},
		{"flags", flip(at[2] + 38), 2, at[2], record.ErrChecksum},
		{"props length", flip(at[2] + 40), 2, at[2], record.ErrChecksum},
		{"payload", flip(at[3] - 1), 2, at[2], record.ErrChecksum},
		{"first record", flip(at[0] + 9), 0, at[0], record.ErrChecksum},
		{"magic", flip(1), 0, 0, record.ErrMagic},
		{"version", flip(4), 0, 0, record.ErrChecksum},
		{"header size", flip(6), 0, 0, record.ErrChecksum},
		{"id", flip(8), 0, 0, record.ErrChecksum},
		{"base", flip(16), 0, 0, record.ErrChecksum},
		{"reserved", flip(50), 0, 0, record.ErrChecksum},
		{"header crc", flip(63), 0, 0, record.ErrChecksum},
		{"empty file", func(b []byte) []byte { return nil }, 0, 0, record.ErrShort},
		{"newer version", func(b []byte) []byte {
			h := record.FileHeader{Magic: magic, Version: version + 1, HeaderSize: 80}
			copy(b, h.Append(nil))
			return b
		}, 0, -1, ErrVersion},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			disk.WriteFile(path, tt.hurt(bytes.Clone(sound)))
			offsets, _, err := scan(disk, path, length)
			if len(offsets) != tt.want || err == nil || tt.cause != nil && !errors.Is(err, tt.cause) {
				t.Errorf("Scan gave %v, %v, want %d records and %v", offsets, err, tt.want, tt.cause)
			}
			var corrupt *CorruptError
			if tt.pos < 0 {
				if errors.As(err, &corrupt) || !strings.Contains(err.Error(), path) {
					t.Errorf("a newer version is called corrupt, or not named: %v", err)
				}
			} else if !errors.As(err, &corrupt) || corrupt.Pos != tt.pos || corrupt.Path != path {
				t.Errorf("error %v, want a CorruptError at %d", err, tt.pos)
			}
			if tt.pos <= 0 {
				if _, err := OpenWrite(disk, "segments", header.Client, header.ID, HeaderSize); !errors.Is(err, tt.cause) {
					t.Errorf("OpenWrite: %v, want %v", err, tt.cause)
				}
			}
		})
	}

	disk.WriteFile(path, sound)
	if _, err := OpenWrite(disk, "segments", header.Client, header.ID, length+1); !errors.As(err, new(*CorruptError)) {
		t.Errorf("OpenWrite of a file that lost its end: %v", err)
	}
	disk.WriteFile(Path("segments", 9, 9), sound)
	if _, err := OpenWrite(disk, "segments", 9, 9, length); !errors.As(err, new(*CorruptError)) {
		t.Errorf("OpenWrite of another segment's file: %v", err)
	}
}

func TestFailedWritesAndSyncs(t *testing.T) {
	disk := vfstest.NewDisk(vfstest.Never)
	w, err := Create(disk, "segments", header)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	b := record.Append(nil, &record.Record{Offset: 1, Payload: make([]byte, 20000)})
	disk.SetCapacity(disk.Used() + 8192)
	if _, err := w.Append(b); !errors.Is(err, syscall.ENOSPC) || w.Size() != HeaderSize {
		t.Fatalf("on a full disk: %v, size %d", err, w.Size())
	}
	disk.SetCapacity(0)
	if pos, err := w.Append(b); err != nil || pos != HeaderSize {
		t.Fatalf("with room again: %d, %v", pos, err)
	}
	broken := errors.New("broken")
	stop := disk.Inject(vfstest.On(vfstest.Datasync, ".seg", broken))
	if err := w.Sync(); !errors.Is(err, broken) {
		t.Fatalf("Sync: %v", err)
	}
	stop()
	if err := w.Sync(); !errors.Is(err, broken) {
		t.Fatalf("the Sync after a failed one: %v", err)
	}
	if _, err := w.Append(b); !errors.Is(err, broken) {
		t.Fatalf("Append after a failed Sync: %v", err)
	}
}

var metas = []Meta{
	{},
	{
		ID: 1, Client: Shared, Bytes: 1 << 31, Base: 7, Last: 1 << 40, FirstTime: -5, LastTime: 1_700_000_000_000_000,
		Records: 12, Sealed: true, Topics: []uint32{1, 2, 3, 200, 100_000, 1<<32 - 1},
	},
	{ID: 2, Topics: []uint32{0}},
}

func TestMeta(t *testing.T) {
	for _, want := range metas {
		b := AppendMeta([]byte("before"), want)[6:]
		if got, err := ParseMeta(b); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("ParseMeta gave %+v, %v, want %+v", got, err, want)
		}
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			if _, err := ParseMeta(b); err == nil || errors.Is(err, ErrVersion) {
				t.Errorf("bit %d of byte %d flipped: %v", bit%8, bit/8, err)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
	newer := resealMeta(append(AppendMeta(nil, metas[1]), "more"...), metaVersion+1)
	if _, err := ParseMeta(newer); !errors.Is(err, ErrVersion) {
		t.Errorf("newer version: %v", err)
	}
	if _, err := ParseMeta(resealMeta(AppendMeta(nil, metas[1]), 0)); !errors.Is(err, errMeta) {
		t.Errorf("version 0: %v", err)
	}
}

// resealMeta sets the version and makes the checksum right again.
func resealMeta(b []byte, version byte) []byte {
	b[0] = version
	n := len(b) - 4
	binary.LittleEndian.PutUint32(b[n:], crc32.Checksum(b[:n], castagnoli))
	return b
}

func TestGolden(t *testing.T) {
	disk := vfstest.NewDisk(vfstest.Never)
	_, length := write(t, disk)
	made, err := disk.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join("testdata", "v1")
	files := map[string][]byte{Path(dir, header.Client, header.ID): made, filepath.Join(dir, "meta.bin"): AppendMeta(nil, metas[1])}
	for path, got := range files {
		if *update {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, got, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is written differently today, %v", path, err)
		}
	}
	if offsets, _, err := scan(vfs.OS, Path(dir, header.Client, header.ID), length); err != nil || len(offsets) != 5 {
		t.Errorf("Scan gave %v, %v", offsets, err)
	}
}

// Whatever is in the file: no panic, records back to back from the start, each one whole, and an error where they end
// unless that is the end of the file.
func FuzzScan(f *testing.F) {
	disk := vfstest.NewDisk(vfstest.Never)
	write(f, disk)
	sound, err := disk.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sound, int64(-1))
	f.Add(sound[:len(sound)-3], int64(200))
	f.Fuzz(func(t *testing.T, b []byte, length int64) {
		disk := vfstest.NewDisk(vfstest.Never)
		disk.WriteFile(path, b)
		end := int64(HeaderSize)
		err := Scan(disk, path, length, func(pos int64, r record.Record) error {
			enc := record.Append(nil, &r)
			if pos != end || !bytes.HasPrefix(b[pos:], enc) {
				t.Fatalf("record at %d, want one at %d", pos, end)
			}
			end += int64(len(enc))
			return nil
		})
		if err == nil && length >= 0 && end != length {
			t.Fatalf("no error, records end at %d of %d", end, length)
		}
		var corrupt *CorruptError
		if err != nil && !errors.Is(err, ErrVersion) && !errors.As(err, &corrupt) {
			t.Fatalf("error %v", err)
		}
	})
}

// survey lists what Survey finds, as pos+length, bad stretches with an exclamation mark.
func survey(fsys vfs.FS, length int64) (out []string, err error) {
	last := uint64(0)
	err = Survey(fsys, path, length, func(offset uint64, client uint32) bool {
		return offset > last && client == header.Client
	}, func(pos int64, r record.Record) {
		last = r.Offset
		out = append(out, fmt.Sprintf("%d+%d", pos, record.Size(len(r.Props), len(r.Payload))))
	}, func(pos, length int64, _ error) {
		out = append(out, fmt.Sprintf("!%d+%d", pos, length))
	})
	return out, err
}

// Every damaged place is named, and every record between them read.
func TestSurvey(t *testing.T) {
	disk := vfstest.NewDisk(vfstest.Never)
	at, length := write(t, disk) // records of 44, 45, 46, 47 and 48 bytes from 64 on
	sound, err := disk.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		hurt func(b []byte) []byte
		want string
	}{
		{"nothing", func(b []byte) []byte { return b }, "64+44 108+45 153+46 199+47 246+48"},
		{"two payloads", func(b []byte) []byte { b[at[2]-1] ^= 1; b[at[4]+45] ^= 1; return b }, "64+44 !108+45 153+46 199+47 !246+48"},
		{"lengths", func(b []byte) []byte { b[at[1]+4] ^= 1; b[at[3]+6] ^= 1; return b }, "64+44 !108+45 153+46 !199+47 246+48"},
		{"neighbours are one place", func(b []byte) []byte { b[at[1]+40] ^= 1; b[at[2]+4] ^= 1; return b }, "64+44 !108+91 199+47 246+48"},
		{"zeros", func(b []byte) []byte { clear(b[at[1]+3 : at[4]-2]); return b }, "64+44 !108+138 246+48"},
		{"the first, and the end cut off", func(b []byte) []byte { b[at[0]+8] ^= 1; return b[:len(b)-5] }, "!64+44 108+45 153+46 199+47 !246+48"},
		{"cut where a record ends", func(b []byte) []byte { return b[:at[4]] }, "64+44 108+45 153+46 199+47 !246+48"},
		{"a record of somebody else in a damaged one", func(b []byte) []byte {
			b[at[1]+4] ^= 1
			record.Append(b[at[2]:at[2]], &record.Record{Offset: 7, Client: 1, Payload: []byte("mm")})
			return b
		}, "64+44 !108+91 199+47 246+48"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			disk.WriteFile(path, tt.hurt(bytes.Clone(sound)))
			got, err := survey(disk, length)
			if strings.Join(got, " ") != tt.want || err != nil {
				t.Errorf("%v, %v, want %s", got, err, tt.want)
			}
		})
	}
}

// A sector that cannot be read costs the records in it.
func TestSurveyBadSector(t *testing.T) {
	disk := vfstest.NewDisk(vfstest.Never)
	w, err := Create(disk, "segments", header)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(2000) {
		if _, err := w.Append(record.Append(nil, &record.Record{Offset: 100 + i, Client: header.Client, Payload: make([]byte, 500)})); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := survey(badSector{disk}, w.Size())
	bad := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return s[0] != '!' })
	if err != nil || len(bad) != 1 || len(got) < 1990 {
		t.Errorf("%d places, bad %v, %v", len(got), bad, err)
	}
}

// badSector is a disk that cannot read bytes 40960 to 45055 of any file.
type badSector struct{ vfs.FS }

func (b badSector) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	f, err := b.FS.OpenFile(name, flag, perm)
	return badFile{f}, err
}

type badFile struct{ vfs.File }

func (f badFile) ReadAt(p []byte, pos int64) (int, error) {
	const from, to = 40960, 45056
	if pos >= to || pos+int64(len(p)) <= from {
		return f.File.ReadAt(p, pos)
	}
	n := max(0, from-pos)
	if n > 0 {
		if _, err := f.File.ReadAt(p[:n], pos); err != nil {
			return 0, err
		}
	}
	return int(n), syscall.EIO
}

// Whatever is in the file: records and bad stretches follow each other without a gap up to the length, and a record is one.
func FuzzSurvey(f *testing.F) {
	disk := vfstest.NewDisk(vfstest.Never)
	_, length := write(f, disk)
	sound, err := disk.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sound, length)
	f.Add(append(bytes.Clone(sound[:150]), sound[180:]...), length)
	f.Add(sound[:len(sound)-3], int64(200))
	f.Fuzz(func(t *testing.T, b []byte, length int64) {
		disk := vfstest.NewDisk(vfstest.Never)
		disk.WriteFile(path, b)
		got, err := survey(disk, length)
		if err != nil {
			return
		}
		end := int64(HeaderSize)
		for _, s := range got {
			var pos, n int64
			if _, err := fmt.Sscanf(strings.TrimPrefix(s, "!"), "%d+%d", &pos, &n); err != nil || pos != end || n <= 0 {
				t.Fatalf("%v: %s does not follow %d", got, s, end)
			}
			if s[0] != '!' {
				if _, size, err := record.Parse(b[pos:]); err != nil || int64(size) != n {
					t.Fatalf("%s is no record: %v", s, err)
				}
			}
			end += n
		}
		if length < 0 {
			length = int64(len(b))
		}
		if end != max(length, HeaderSize) {
			t.Fatalf("%v ends at %d of %d", got, end, length)
		}
	})
}

func FuzzParseMeta(f *testing.F) {
	for _, m := range metas {
		f.Add(AppendMeta(nil, m), false)
		f.Add(AppendMeta(nil, m), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) > 4 {
			b = resealMeta(slices.Clone(b), b[0])
		}
		m, err := ParseMeta(b)
		if err == nil && !bytes.Equal(AppendMeta(nil, m), b) {
			t.Fatalf("decode then encode changed %x", b)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	for _, size := range []int{128, 4096} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			root := b.TempDir()
			w, err := Create(vfs.OS, root, header)
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			rec := record.Append(nil, &record.Record{Payload: make([]byte, size)})
			if _, err := w.Append(bytes.Repeat(rec, (4<<20)/len(rec))); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(w.Size())
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := scan(vfs.OS, w.Path(), -1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
