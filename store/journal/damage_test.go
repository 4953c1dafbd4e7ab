package journal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/edgemq/edgemq/store/record"
)

// image is a journal file read whole.
type image []byte

func (b image) group(n int) image     { return b[n*BlockSize : (n+1)*BlockSize] } // groups of the tests take one block each
func (b image) flip(at int, bit byte) { b[at] ^= bit }
func (b image) zero()                 { clear(b) }
func edit(t *testing.T, path string, fn func(b image)) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fn(b)
	if err := os.WriteFile(path, b, 0o640); err != nil {
		t.Fatal(err)
	}
}

func TestDamage(t *testing.T) {
	const first, second = "001.jrn", "002.jrn"
	in := func(name string, fn func(b image)) func(*testing.T, string) {
		return func(t *testing.T, dir string) { edit(t, filepath.Join(dir, name), fn) }
	}
	unsyncedFrom := func(first uint64) func(uint64) bool { return func(n uint64) bool { return n < first } }
	tests := []struct {
		name    string
		synced  func(uint64) bool // nil: every group
		last    uint64            // groups 1 to last are written, 15 in a file
		hurt    func(t *testing.T, dir string)
		want    []uint64
		damaged int
		torn    bool
		dropped int
		rebuilt int
		err     error
	}{
		{name: "sound", last: 20, hurt: in(first, func(image) {}), want: upTo(1, 20)},
		{name: "torn tail: the end is zeros", last: 20, hurt: in(second, func(b image) { b.group(5)[80:].zero() }), want: upTo(1, 19), torn: true},
		{name: "torn tail: nothing got there", last: 20, hurt: in(second, func(b image) { b.group(5).zero() }), want: upTo(1, 19)},
		{name: "torn tail: garbage", last: 20, hurt: in(second, func(b image) { copy(b.group(5), bytes.Repeat([]byte{0xA5}, BlockSize)) }), want: upTo(1, 19)},
		{
			name: "torn tail: later groups got to the disk first", synced: unsyncedFrom(17), last: 20,
			hurt: in(second, func(b image) { b.group(2).zero() }), want: upTo(1, 16), torn: true, dropped: 3,
		},
		{
			name: "torn tail: one unsynced group before a synced one that was never acknowledged", synced: func(n uint64) bool { return n != 18 && n != 19 }, last: 20,
			hurt: in(second, func(b image) { b.group(3).flip(100, 1) }), want: upTo(1, 17), torn: true, dropped: 2,
		},
		{name: "damage in the middle of a file", last: 20, hurt: in(first, func(b image) { b.group(7).flip(150, 4) }), want: append(upTo(1, 6), upTo(8, 20)...), damaged: 1},
		{name: "damage to several groups", last: 20, hurt: in(first, func(b image) { b[3*BlockSize : 6*BlockSize].zero() }), want: append(upTo(1, 2), upTo(6, 20)...), damaged: 3},
		{
			name: "damage, then sound, then damage", last: 20,
			hurt: in(first, func(b image) { b.group(3).flip(70, 1); b.group(5).flip(70, 1) }),
			want: append(append(upTo(1, 2), 4), upTo(6, 20)...), damaged: 2,
		},
		{name: "damage to the last but one", last: 20, hurt: in(second, func(b image) { b.group(4).zero() }), want: append(upTo(1, 18), 20), damaged: 1},
		{name: "damage to the first group", last: 20, hurt: in(first, func(b image) { b.group(1).flip(9, 1) }), want: upTo(2, 20), damaged: 1},
		{name: "damage to the end of a file", last: 20, hurt: in(first, func(b image) { b.group(15).zero() }), want: append(upTo(1, 14), upTo(16, 20)...), damaged: 1},
		{name: "damage across files", last: 20, hurt: func(t *testing.T, dir string) {
			in(first, func(b image) { b.group(15).zero() })(t, dir)
			in(second, func(b image) { b.group(1).zero() })(t, dir)
		}, want: append(upTo(1, 14), upTo(17, 20)...), damaged: 2},
		{name: "damage, and a torn tail", last: 20, hurt: in(second, func(b image) { b.group(2).flip(64, 1); b.group(5).flip(99, 1) }), want: append(upTo(1, 16), 18, 19), damaged: 1, torn: true},
		{name: "a file is missing", last: 40, hurt: func(t *testing.T, dir string) { remove(t, dir, second) }, want: append(upTo(1, 15), upTo(31, 40)...), damaged: 15},
		{name: "a file is cut short", last: 20, hurt: in(first, func(b image) { b[4*BlockSize:].zero() }), want: append(upTo(1, 3), upTo(16, 20)...), damaged: 12},
		{name: "header block is zeros", last: 20, hurt: in(second, func(b image) { b[:BlockSize].zero() }), want: upTo(1, 20), rebuilt: 1},
		{name: "header block is garbage", last: 20, hurt: in(first, func(b image) { copy(b, bytes.Repeat([]byte("EMQJ"), BlockSize/4)) }), want: upTo(1, 20), rebuilt: 1},
		{name: "header block and the first group are damaged", last: 20, hurt: in(first, func(b image) { b.flip(20, 1); b.group(1).zero() }), want: upTo(2, 20), rebuilt: 1, damaged: 1},
		{name: "version with a flipped bit", last: 20, hurt: in(first, func(b image) { b.flip(4, 2) }), want: upTo(1, 20), rebuilt: 1},
		{name: "newer version", last: 20, hurt: in(second, func(b image) {
			h := record.FileHeader{Magic: fileMagic, Version: version + 1, HeaderSize: BlockSize}
			copy(b, h.Append(nil))
		}), err: ErrVersion},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := options(t.TempDir())
			j, _, _ := open(t, o, Position{})
			write(t, j, tt.last, tt.synced)
			j.Close()
			tt.hurt(t, o.Dir)

			if tt.err != nil {
				if _, err := Open(o, Position{}); !errors.Is(err, tt.err) {
					t.Fatalf("Open returned %v, want %v", err, tt.err)
				}
				return
			}
			look := o
			look.ReadOnly = true
			_, seqs, report := open(t, look, Position{})
			check := func() {
				t.Helper()
				if !slices.Equal(seqs, tt.want) {
					t.Errorf("groups %v, want %v", seqs, tt.want)
				}
				if report.Damaged != tt.damaged || (report.TornPath != "") != tt.torn || report.Dropped != tt.dropped || report.Rebuilt != tt.rebuilt {
					t.Errorf("report %+v, want damaged %d, torn %v, dropped %d, rebuilt %d", report, tt.damaged, tt.torn, tt.dropped, tt.rebuilt)
				}
			}
			check()
			j, seqs, report = open(t, o, Position{})
			check()
			for _, d := range report.Damage {
				if d.Len == 0 {
					continue
				}
				if b, err := os.ReadFile(d.Aside); err != nil || int64(len(b)) > d.Len {
					t.Errorf("damage %+v is not set aside: %v", d, err)
				}
			}

			// What is appended now must be read behind what survived, and nothing of what was dropped.
			next := tt.want[len(tt.want)-1] + 1
			for _, last := range []uint64{next, next + 20} {
				write(t, j, last, nil)
				j.Close()
				want := slices.Concat(tt.want, upTo(next, last))
				if j, seqs, report = open(t, o, Position{}); !slices.Equal(seqs, want) || report.Rebuilt != 0 || report.TornPath != "" {
					t.Errorf("after new appends: groups %v, want %v, report %+v", seqs, want, report)
				}
			}
		})
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// A flipped bit anywhere in a group, be it in a header field, a record or a mutation, loses that
// group and no other; in the padding it does no harm.
func TestFlippedBits(t *testing.T) {
	o := options(t.TempDir())
	j, _, _ := open(t, o, Position{})
	write(t, j, 5, nil)
	j.Close()
	path := filepath.Join(o.Dir, "001.jrn")
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	records, mutations := text(3)
	size := HeaderSize + len(records) + len(mutations)
	for at := range size + 8 {
		b := image(slices.Clone(sound))
		b.group(3).flip(at, 1<<(at%8))
		if err := os.WriteFile(path, b, 0o640); err != nil {
			t.Fatal(err)
		}
		want := []uint64{1, 2, 4, 5}
		if at >= size {
			want = upTo(1, 5)
		}
		look := o
		look.ReadOnly = true
		if _, seqs, _ := open(t, look, Position{}); !slices.Equal(seqs, want) {
			t.Fatalf("bit flipped in byte %d: groups %v, want %v", at, seqs, want)
		}
	}
}

// A recycled file is full of sound groups of its earlier life, some exactly where the next ones will be.
func TestStaleGroups(t *testing.T) {
	o := options(t.TempDir())
	j, _, _ := open(t, o, Position{})
	from := write(t, j, 31, nil) // files 1, 2, and one group in 3
	j.Release(from)
	if st := j.Stats(); st.Files != 1 || st.Free != 2 {
		t.Fatalf("after Release: %+v", st)
	}
	end := write(t, j, 48, nil) // the rest of 3, and three groups in a recycled one
	path := j.cur.path
	j.Close()
	stale := 0
	edit(t, path, func(b image) {
		for n := 1; n <= 15; n++ {
			if h, ok := parseGroupHeader(b.group(n)); ok && h.seq != end.File {
				stale++
			}
		}
	})
	if stale != 12 {
		t.Fatalf("%d stale groups, the test needs 12", stale)
	}
	_, seqs, report := open(t, o, from)
	if !slices.Equal(seqs, upTo(32, 48)) || report.Damaged != 0 || report.TornPath != "" {
		t.Fatalf("groups %v, report %+v", seqs, report)
	}
	// Its header torn while it was being recycled: the groups of the new life still say what it is.
	edit(t, path, func(b image) { b[:512].zero() })
	if _, seqs, report = open(t, o, from); !slices.Equal(seqs, upTo(32, 48)) || report.Rebuilt != 1 {
		t.Fatalf("with a torn header: groups %v, report %+v", seqs, report)
	}
}

// A payload holds what looks like a group with all the power over the state that groups have. Behind
// damage, replay reads that payload block by block.
func TestPayloadThatImitatesAGroup(t *testing.T) {
	o := options(t.TempDir())
	j, _, _ := open(t, o, Position{})
	write(t, j, 2, nil)
	forged := make([]byte, BlockSize)
	h := groupHeader{life: life{1, 12345}, group: 4, synced: 3, records: 100, mutations: 100}
	h.put(forged[:HeaderSize+200], 0, 0)
	buf := make([]byte, BlockSize, 4*BlockSize) // so that it lies on a block boundary
	buf = append(buf, forged...)
	if _, err := j.Append(buf, GroupHeader{RecordsLen: len(buf) - HeaderSize}); err != nil {
		t.Fatal(err)
	}
	j.Close()
	edit(t, filepath.Join(o.Dir, "001.jrn"), func(b image) { b.group(3).flip(2000, 1) })
	if _, seqs, report := open(t, o, Position{}); !slices.Equal(seqs, upTo(1, 2)) || report.Damaged != 0 {
		t.Fatalf("groups %v, report %+v", seqs, report)
	}
}

func TestCheckpointFileMissing(t *testing.T) {
	o := options(t.TempDir())
	j, _, _ := open(t, o, Position{})
	from := write(t, j, 35, nil)
	j.Close()
	if err := os.RemoveAll(o.Dir); err != nil {
		t.Fatal(err)
	}
	j, seqs, report := open(t, o, from)
	if len(seqs) != 0 || report.Damaged != 1 {
		t.Fatalf("groups %v, report %+v", seqs, report)
	}
	write(t, j, 40, nil)
	j.Close()
	if _, seqs, report = open(t, o, from); fmt.Sprint(seqs) != "[36 37 38 39 40]" || report.Damaged != 0 {
		t.Fatalf("groups %v, report %+v", seqs, report)
	}
}

// TestNewestFileCut: the file that was being written has become shorter. That is told once, and is no news after it.
func TestNewestFileCut(t *testing.T) {
	for _, row := range []struct {
		size int64
		want int // groups in it that are left
	}{
		{0, 0},
		{10, 0},
		{100, 0},
		{BlockSize, 0},
		{2 * BlockSize, 1},
		{2*BlockSize + 100, 1}, // within a group
		{6 * BlockSize, 5},     // behind the last: nobody can say that there was no other
	} {
		for i := range 4 {
			prepared, reserved := i&1 != 0, i&2 != 0
			o := options(t.TempDir())
			j, _, _ := open(t, o, Position{})
			if reserved {
				j.recent.Store(1 << 40) // the next files will be, as if groups were large
			}
			write(t, j, 20, nil) // 15 in a file
			if prepared {
				if err := j.Prepare(); err != nil {
					t.Fatal(err)
				}
			}
			newest := j.cur.path
			j.Close()
			if err := os.Truncate(newest, row.size); err != nil {
				t.Fatal(err)
			}
			told := 1
			if !prepared && row.size < 64 {
				told = 0 // it may just have been begun to be made: nothing tells
			}
			j, seqs, report := open(t, o, Position{})
			if !slices.Equal(seqs, upTo(1, uint64(15+row.want))) || report.Damaged != told || len(report.Damage) != told {
				t.Fatalf("%d bytes, prepared %v, reserved %v: groups %v, report %+v", row.size, prepared, reserved, seqs, report)
			}
			j.Close()
			if j, seqs, report = open(t, o, j.Position()); len(seqs) != 0 || report.Damaged != 0 {
				t.Fatalf("%d bytes, prepared %v, reserved %v, after a checkpoint: groups %v, report %+v", row.size, prepared, reserved, seqs, report)
			}
			from := j.Position()
			write(t, j, 60, nil)
			j.Close()
			if _, seqs, report = open(t, o, from); !slices.Equal(seqs, upTo(uint64(16+row.want), 60)) || report.Damaged != 0 {
				t.Fatalf("%d bytes, prepared %v, reserved %v, after it was reported: groups %v, report %+v", row.size, prepared, reserved, seqs, report)
			}
		}
	}
}

// TestInterruptedPreparation: a file that was being made when the power went is no damage, whatever its length.
func TestInterruptedPreparation(t *testing.T) {
	for _, size := range []int64{0, 10, 100, BlockSize, 3 * BlockSize} {
		o := options(t.TempDir())
		j, _, _ := open(t, o, Position{})
		write(t, j, 20, nil)
		j.Close()
		if err := os.WriteFile(filepath.Join(o.Dir, "003.jrn"), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		j, seqs, report := open(t, o, Position{})
		if !slices.Equal(seqs, upTo(1, 20)) || report.Damaged != 0 {
			t.Fatalf("%d bytes: groups %v, report %+v", size, seqs, report)
		}
		write(t, j, 60, nil)
		j.Close()
	}
}

// TestNewestFileMissing: the file that was being written is gone, with all its groups. Nothing behind it tells of them but the header of the file
// that was made ready to follow it.
func TestNewestFileMissing(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		o := options(t.TempDir())
		j, _, _ := open(t, o, Position{})
		if restarted {
			if err := j.Prepare(); err != nil {
				t.Fatal(err)
			}
			write(t, j, 5, nil)
			j.Close()
			j, _, _ = open(t, o, Position{})
		}
		write(t, j, 20, nil) // 15 in a file
		if err := j.Prepare(); err != nil {
			t.Fatal(err)
		}
		newest := j.cur.path
		j.Close()
		if _, _, report := open(t, o, Position{}); report.Damaged != 0 {
			t.Fatalf("nothing is missing, report %+v", report)
		}
		if err := os.Remove(newest); err != nil {
			t.Fatal(err)
		}
		j, seqs, report := open(t, o, Position{})
		if !slices.Equal(seqs, upTo(1, 15)) || report.Damaged != 1 || len(report.Damage) != 1 || report.Damage[0].First != 16 {
			t.Fatalf("groups %v, report %+v", seqs, report)
		}
		write(t, j, 40, nil)
		j.Close()
		if _, seqs, report = open(t, o, Position{}); !slices.Equal(seqs, upTo(1, 40)) || report.Damaged != 0 {
			t.Fatalf("after it was reported: groups %v, report %+v", seqs, report)
		}
	}
}
