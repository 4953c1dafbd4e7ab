package journal

import (
	"bytes"
	"encoding/binary"
	"flag"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/edgemq/edgemq/store/vfs"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden makes the journal that testdata/v1-prev holds, and testdata/v1 from before headers knew of the file before: 17 groups in two files, of which the first is
// recycled and has stale groups.
func golden(t testing.TB, dir string) Position {
	salt := uint64(0x1122334455667700)
	defer func(old func() uint64) { newSalt = old }(newSalt)
	newSalt = func() uint64 { salt++; return salt }
	o := options(dir)
	o.FileBytes = 8 * BlockSize
	j, _, _ := open(t, o, Position{})
	from := write(t, j, 10, nil)
	j.Release(from)
	write(t, j, 17, nil)
	j.Close()
	return from
}

func TestGolden(t *testing.T) {
	dir := filepath.Join("testdata", "v1-prev")
	made := t.TempDir()
	from := golden(t, made)
	if *update {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(made, "journal"))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"001.jrn", "002.jrn"} {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(made, "journal", name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is written differently today, %v", name, err)
		}
	}
	for _, dir := range []string{filepath.Join("testdata", "v1"), dir} {
		_, seqs, report := open(t, Options{Dir: dir, FS: vfs.OS, ReadOnly: true}, from)
		if !slices.Equal(seqs, upTo(11, 17)) || report.Damaged != 0 || report.TornPath != "" {
			t.Errorf("%s: groups %v, report %+v", dir, seqs, report)
		}
	}
}

// edit changes the bytes of two files: each four bytes of edits are a position and what to xor there. With reseal the
// checksums are made right again, so that what they guard is reached.
func (b image) edit(edits []byte, reseal bool) {
	for ; len(edits) >= 4; edits = edits[4:] {
		at := int(binary.LittleEndian.Uint16(edits)) % len(b)
		b[at] ^= edits[2]
		b[(at+1)%len(b)] ^= edits[3]
	}
	for at := 0; reseal && at < len(b); at += BlockSize {
		if string(b[at:at+4]) == fileMagic {
			binary.LittleEndian.PutUint32(b[at+60:], crc32.Checksum(b[at:at+60], castagnoli))
		}
		if h, ok := parseGroupHeader(b[at:]); ok && h.size() <= int64(len(b)-at) {
			binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(b[at+8:at+int(h.size())], castagnoli))
		}
	}
}

// Whatever is in the files: no panic, groups come in order and are whole, and a second replay tells the same as
// the first, plus what was appended in between.
func FuzzReplay(f *testing.F) {
	dir := f.TempDir()
	golden(f, dir)
	var sound image
	for _, name := range []string{"001.jrn", "002.jrn"} {
		b, err := os.ReadFile(filepath.Join(dir, "journal", name))
		if err != nil {
			f.Fatal(err)
		}
		sound = append(sound, b...)
	}
	f.Add([]byte{}, false, uint64(0), uint64(0))
	f.Add([]byte{0, 0x10, 1, 1, 20, 0x20, 1, 0}, true, uint64(2), uint64(11))
	f.Add([]byte{8, 0, 3, 0, 9, 0x80, 1, 1, 16, 0x40, 0xFF, 0}, true, uint64(1), uint64(3))
	f.Fuzz(func(t *testing.T, edits []byte, reseal bool, file, group uint64) {
		if file >= maxSeq || group >= maxSeq {
			t.Skip("no checkpoint is that far")
		}
		b := slices.Clone(sound)
		b.edit(edits, reseal)
		disk := vfstest.NewDisk(vfstest.Never)
		defer disk.Close()
		disk.WriteFile("data/journal/001.jrn", b[:len(b)/2])
		disk.WriteFile("data/journal/002.jrn", b[len(b)/2:])
		o := Options{Dir: "data/journal", DamagedDir: "data/damaged", FileBytes: 8 * BlockSize, FS: disk}
		type got struct {
			seq      uint64
			contents string
		}
		replay := func() (*Journal, []got) {
			j, err := Open(o, Position{file, group})
			if err != nil {
				return nil, nil
			}
			var all []got
			_, err = j.Replay(func(g Group) error {
				if g.Seq < group || len(all) > 0 && g.Seq <= all[len(all)-1].seq {
					t.Fatalf("group %d after %d groups, replay from %d", g.Seq, len(all), group)
				}
				all = append(all, got{g.Seq, string(g.Records) + "|" + string(g.Mutations)})
				return nil
			})
			if err != nil {
				j.Close()
				return nil, nil
			}
			return j, all
		}
		j, before := replay()
		if j == nil {
			return
		}
		p, err := j.Append(append(make([]byte, HeaderSize), "new"...), GroupHeader{RecordsLen: 3})
		if err != nil {
			t.Fatal(err)
		}
		j.Close()
		j, after := replay()
		if j == nil {
			t.Fatal("the second replay fails")
		}
		defer j.Close()
		if want := append(before, got{p.Group - 1, "new|"}); !slices.Equal(after, want) {
			t.Fatalf("first replay and a new group: %v, second replay: %v", want, after)
		}
	})
}

func BenchmarkAppendSync(b *testing.B) {
	for _, bb := range []struct {
		name string
		size int
		sync bool
	}{
		{"group=4KiB/sync=no", 4000, false},
		{"group=4KiB/sync=yes", 4000, true},
		{"group=128KiB/sync=no", 128 << 10, false},
		{"group=128KiB/sync=yes", 128 << 10, true},
	} {
		b.Run(bb.name, func(b *testing.B) {
			o := options(b.TempDir())
			o.FileBytes = 16 << 20
			j, _, _ := open(b, o, Position{})
			buf := make([]byte, bb.size, padded(int64(bb.size)))
			b.SetBytes(int64(bb.size))
			b.ReportAllocs()
			for b.Loop() {
				p, err := j.Append(buf[:bb.size], GroupHeader{RecordsLen: bb.size - HeaderSize})
				if err == nil && bb.sync {
					err = j.Sync()
				}
				if err != nil {
					b.Fatal(err)
				}
				j.Release(p)
			}
		})
	}
}
