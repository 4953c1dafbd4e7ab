package journal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/edgemq/edgemq/store/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small is a file of 16 blocks: the header and at most 15 groups.
const small = 16 * BlockSize

func options(dir string) Options {
	return Options{Dir: filepath.Join(dir, "journal"), DamagedDir: filepath.Join(dir, "damaged"), FileBytes: small, FS: vfs.OS}
}

// text is what group n holds in the tests.
func text(n uint64) (records, mutations string) {
	return fmt.Sprintf("group %d: ", n) + string(bytes.Repeat([]byte{'r'}, 100)), fmt.Sprintf("mutation %d", n)
}

// open opens and replays, and checks that every group holds what the test wrote. It returns their seqs.
func open(t testing.TB, o Options, from Position) (*Journal, []uint64, Report) {
	t.Helper()
	j, err := Open(o, from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	var seqs []uint64
	report, err := j.Replay(func(g Group) error {
		records, mutations := text(g.Seq)
		if string(g.Records) != records || string(g.Mutations) != mutations || g.Base != 10*g.Seq || g.Count != 2 {
			t.Errorf("group %d reads base %d, count %d, records %q, mutations %q", g.Seq, g.Base, g.Count, g.Records, g.Mutations)
		}
		seqs = append(seqs, g.Seq)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return j, seqs, report
}

// write appends groups up to seq last and syncs after those that synced names.
func write(t testing.TB, j *Journal, last uint64, synced func(n uint64) bool) Position {
	t.Helper()
	var p Position
	for n := j.group + 1; n <= last; n++ {
		records, mutations := text(n)
		buf := append(make([]byte, HeaderSize, BlockSize), records+mutations...)
		var err error
		if p, err = j.Append(buf, GroupHeader{Base: 10 * n, Count: 2, RecordsLen: len(records)}); err != nil {
			t.Fatal(err)
		}
		if p.Group != n+1 {
			t.Fatalf("position behind group %d is %+v", n, p)
		}
		if synced == nil || synced(n) {
			if err := j.Sync(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return p
}

func upTo(first, last uint64) []uint64 {
	var s []uint64
	for n := first; n <= last; n++ {
		s = append(s, n)
	}
	return s
}

func TestReplayAcrossFiles(t *testing.T) {
	o := options(t.TempDir())
	j, seqs, _ := open(t, o, Position{})
	if len(seqs) != 0 {
		t.Fatalf("a new journal has groups %v", seqs)
	}
	mid := write(t, j, 20, nil)
	end := write(t, j, 50, nil)
	if want := (Position{4, 51}); end != want {
		t.Fatalf("position %+v, want %+v", end, want)
	}
	j.Close()

	j, seqs, report := open(t, o, Position{})
	if !slices.Equal(seqs, upTo(1, 50)) || report.Next != end || report.Records != 100 || report.Damaged != 0 || report.TornPath != "" {
		t.Fatalf("replay gave %v, %+v", seqs, report)
	}
	j.Release(mid) // of the file that mid is in, the end is still needed
	write(t, j, 95, nil)
	j.Close()
	_, seqs, _ = open(t, o, mid)
	if !slices.Equal(seqs, upTo(21, 95)) {
		t.Fatalf("replay from %+v gave %v", mid, seqs)
	}
}

// What the caller has in its buffer behind the group is not for the disk.
func TestPadding(t *testing.T) {
	o := options(t.TempDir())
	j, _, _ := open(t, o, Position{})
	buf := bytes.Repeat([]byte("secret"), BlockSize)
	if _, err := j.Append(buf[:5000], GroupHeader{RecordsLen: 5000 - HeaderSize}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(j.cur.path)
	if err != nil || bytes.Count(b[BlockSize+5000:], []byte{0}) != len(b)-BlockSize-5000 {
		t.Fatalf("there is something behind the group, %v", err)
	}
}

func TestRecycling(t *testing.T) {
	o := options(t.TempDir())
	j, _, _ := open(t, o, Position{})
	var from Position
	for last := uint64(20); last <= 400; last += 20 {
		from = write(t, j, last, nil)
		j.Release(from)
		if err := j.Prepare(); err != nil {
			t.Fatal(err)
		}
	}
	if st := j.Stats(); st.Files > 2 || st.Files+st.Free > 4 {
		t.Fatalf("many files after releases: %+v", st)
	}
	write(t, j, 425, nil)
	j.Close()
	_, seqs, report := open(t, o, from)
	if !slices.Equal(seqs, upTo(401, 425)) || report.Damaged != 0 {
		t.Fatalf("replay gave %v, %+v", seqs, report)
	}
}

func TestAppendRefusals(t *testing.T) {
	o := options(t.TempDir())
	j, err := Open(o, Position{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if _, err := j.Append(make([]byte, 100), GroupHeader{}); err == nil {
		t.Error("Append before Replay succeeds")
	}
	if _, err := j.Replay(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(make([]byte, j.MaxGroup()+1), GroupHeader{}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("oversized group: %v", err)
	}
	if _, err := j.Append(make([]byte, j.MaxGroup()), GroupHeader{}); err != nil {
		t.Errorf("the largest group: %v", err)
	}
	j.Close()
	o.ReadOnly = true
	j, err = Open(o, Position{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if report, err := j.Replay(func(Group) error { return nil }); err != nil || report.Groups != 1 {
		t.Errorf("read-only replay: %+v, %v", report, err)
	}
	if _, err := j.Append(make([]byte, HeaderSize), GroupHeader{}); !errors.Is(err, ErrReadOnly) {
		t.Errorf("read-only Append: %v", err)
	}
}

func TestReplayErrorStops(t *testing.T) {
	o := options(t.TempDir())
	j, _, _ := open(t, o, Position{})
	write(t, j, 3, nil)
	j.Close()
	j, err := Open(o, Position{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	stop := errors.New("stop")
	if _, err := j.Replay(func(Group) error { return stop }); !errors.Is(err, stop) {
		t.Fatalf("Replay returned %v", err)
	}
}

func TestPartlyMadeFileIsReplaced(t *testing.T) {
	o := options(t.TempDir())
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{"001.jrn": 0, "002.jrn": 3 * BlockSize, "003.jrn": small, "notes.txt": 1} {
		if err := os.WriteFile(filepath.Join(o.Dir, name), make([]byte, size), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	j, seqs, report := open(t, o, Position{})
	if len(seqs) != 0 || report.Damaged != 0 {
		t.Fatalf("replay gave %v, %+v", seqs, report)
	}
	write(t, j, 40, nil)
	j.Close()
	if _, seqs, _ = open(t, o, Position{}); !slices.Equal(seqs, upTo(1, 40)) {
		t.Fatalf("replay gave %v", seqs)
	}
}

func TestFilesOfAnotherSize(t *testing.T) {
	o := options(t.TempDir())
	j, _, _ := open(t, o, Position{})
	p := write(t, j, 40, nil)
	j.Close()
	o.FileBytes = 2 * small
	j, seqs, _ := open(t, o, Position{})
	if !slices.Equal(seqs, upTo(1, 40)) {
		t.Fatalf("replay gave %v", seqs)
	}
	j.Release(p)
	if st := j.Stats(); st.Files != 1 || st.Free != 0 {
		t.Fatalf("files of the old size are kept: %+v", st)
	}
	write(t, j, 100, nil)
	j.Close()
	if _, seqs, _ = open(t, o, p); !slices.Equal(seqs, upTo(41, 100)) {
		t.Fatalf("replay gave %v", seqs)
	}
}
