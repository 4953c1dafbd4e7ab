package vfstest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/edgemq/edgemq/store/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newDisk(t *testing.T) *Disk {
	t.Helper()
	d := NewDisk(Never)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, f vfs.File, pos int64, content string) {
	t.Helper()
	if _, err := f.WriteAt([]byte(content), pos); err != nil {
		t.Fatal(err)
	}
}

// everything does each write-like operation once.
func everything(d *Disk) []func() error {
	var f vfs.File
	open := func(name string) error {
		var err error
		f, err = d.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		return err
	}
	return []func() error{
		func() error { return d.MkdirAll("x/y", 0o700) },
		func() error { return open("x/a") },
		func() error { _, err := f.WriteAt([]byte("1"), 0); return err },
		func() error { return f.Truncate(100) },
		func() error { return f.Preallocate(200) },
		func() error { return f.Datasync() },
		func() error { return f.Sync() },
		func() error { return d.SyncDir("x") },
		func() error { return d.Rename("x/a", "x/b") },
		func() error { return d.Remove("x/b") },
		func() error { _, err := d.Lock("x/LOCK"); return err },
		func() error { return d.Commit("s", func() error { return nil }) },
	}
}

func TestCutCountsEveryKindOfWrite(t *testing.T) {
	n := len(everything(newDisk(t)))
	for k := range n + 1 {
		d := NewDisk(k)
		for i, do := range everything(d) {
			err := do()
			if i < k && err != nil {
				t.Fatalf("cut %d: operation %d: %v", k, i, err)
			}
			if i >= k {
				wantErr(t, "after the cut", err, ErrPowerCut)
				break
			}
		}
		if d.Cut() != (k < n) || d.Ops() != min(k+1, n) {
			t.Errorf("cut %d: cut is %v after %d operations", k, d.Cut(), d.Ops())
		}
	}
	d := newDisk(t)
	for _, do := range everything(d) {
		must(t, do())
	}
	for kind := Create; kind <= Commit; kind++ {
		want := 1
		if kind == Create {
			want = 2 // the lock file
		}
		if got := d.Count(kind); got != want {
			t.Errorf("%v counted %d times, want %d", kind, got, want)
		}
	}
	if got := d.Count(Datasync, Sync); got != 2 {
		t.Errorf("%d syncs", got)
	}
}

// TestNothingWorksAfterTheCut: reads and locks too, though the test itself can look.
func TestNothingWorksAfterTheCut(t *testing.T) {
	d := newDisk(t)
	f := put(t, d, "a", "x")
	lock, err := d.Lock("LOCK")
	must(t, err)
	real, err := d.External("s")
	must(t, err)
	d.CutAfter(0)
	wantErr(t, "the one at the cut", d.Remove("a"), ErrPowerCut)
	n := d.Ops()

	_, err = f.ReadAt(make([]byte, 1), 0)
	wantErr(t, "read", err, ErrPowerCut)
	_, err = f.WriteAt([]byte("y"), 0)
	wantErr(t, "write", err, ErrPowerCut)
	_, err = f.Size()
	wantErr(t, "size", err, ErrPowerCut)
	wantErr(t, "sync", f.Datasync(), ErrPowerCut)
	_, err = d.OpenFile("b", os.O_RDWR|os.O_CREATE, 0)
	wantErr(t, "create", err, ErrPowerCut)
	_, err = d.OpenFile("b", os.O_RDWR, 0)
	wantErr(t, "open", err, ErrPowerCut)
	_, err = d.Stat("a")
	wantErr(t, "stat", err, ErrPowerCut)
	_, err = d.ReadDir(".")
	wantErr(t, "readdir", err, ErrPowerCut)
	_, err = d.Lock("LOCK")
	wantErr(t, "lock", err, ErrPowerCut)
	_, err = d.Free(".")
	wantErr(t, "free", err, ErrPowerCut)
	_, err = d.External("s")
	wantErr(t, "external", err, ErrPowerCut)
	wantErr(t, "mkdir", d.MkdirAll("x", 0o700), ErrPowerCut)
	wantErr(t, "syncdir", d.SyncDir("."), ErrPowerCut)
	wantErr(t, "commit", d.Commit("s", func() error { t.Error("the commit ran"); return nil }), ErrPowerCut)
	if d.Ops() != n {
		t.Errorf("%d operations, want %d", d.Ops(), n)
	}
	must(t, f.Close(), lock.Close())
	_ = real

	image := d.AfterCut(KeepAll)
	if _, err := image.Lock("LOCK"); err != nil {
		t.Errorf("the lock outlives the power: %v", err)
	}
	image.CutAfter(1)
	must(t, image.MkdirAll("x", 0o700))
	wantErr(t, "second mkdir of the image", image.MkdirAll("y", 0o700), ErrPowerCut)
}

func TestCommitAtTheCut(t *testing.T) {
	d := newDisk(t)
	commit(t, d, "s", "old")
	must(t, d.SyncDir("."))
	real, err := d.External("s")
	must(t, err)
	d.CutAfter(0)
	err = d.Commit("s", func() error { return os.WriteFile(real, []byte("new"), 0o600) })
	wantErr(t, "commit", err, ErrPowerCut)
	seen := make(map[string]int)
	for seed := range uint64(20) {
		image := d.AfterCut(seed)
		seen[show(t, image)]++
		if real2, err := image.External("s"); err != nil || real2 == real {
			t.Errorf("the image shares its file: %v", err)
		}
	}
	if len(seen) != 2 || seen["s=old"] == 0 || seen["s=new"] == 0 {
		t.Errorf("images %v", seen)
	}
	must(t, d.Corrupt("s", 0, 1))
	if got := show(t, d); got != "s=oew" {
		t.Errorf("corrupted: %q", got)
	}
	must(t, d.Close())
	if _, err := os.Stat(real); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Close left the file: %v", err)
	}
}

func TestFaults(t *testing.T) {
	d := newDisk(t)
	f := put(t, d, "dir.a", "hello")
	var ops []Op
	d.Inject(func(op Op) error { ops = append(ops, op); return nil })
	stop := d.Inject(Nth(2, Write, syscall.EIO)) // the second since the start: put made the first
	_, err := f.WriteAt([]byte("x"), 7)
	wantErr(t, "second write", err, syscall.EIO)
	write(t, f, 7, "x")
	stop()
	if got := get(t, d, "dir.a"); got != "hello\x00\x00x" {
		t.Errorf("read %q", got)
	}
	if op := ops[0]; op.Kind != Write || op.Name != "dir.a" || op.Pos != 7 || op.Len != 1 || op.Nth != 2 || op.Index != 2 {
		t.Errorf("the rule saw %+v", op)
	}

	for _, row := range []struct {
		name string
		rule func(Op) error
		do   func() error
	}{
		{"open", On(Open, "dir", syscall.EIO), func() error { _, err := d.OpenFile("dir.a", os.O_RDWR, 0); return err }},
		{"create", On(Create, "new", syscall.EIO), func() error {
			_, err := d.OpenFile("new", os.O_CREATE|os.O_RDWR, 0)
			return err
		}},
		{"remove", On(Remove, "dir", syscall.EIO), func() error { return d.Remove("dir.a") }},
		{"rename", On(Rename, "dir", syscall.EIO), func() error { return d.Rename("dir.a", "b") }},
		{"sync of a directory", On(SyncDir, "", syscall.EIO), func() error { return d.SyncDir(".") }},
		{"mkdir", On(Mkdir, "", syscall.EIO), func() error { return d.MkdirAll("x", 0o700) }},
		{"truncate", On(Truncate, "", syscall.EIO), func() error { return f.Truncate(0) }},
		{"preallocate", On(Preallocate, "", syscall.EIO), func() error { return f.Preallocate(100) }},
		{"commit", On(Commit, "", syscall.EIO), func() error {
			return d.Commit("s", func() error { t.Error("the commit ran"); return nil })
		}},
		{"read", On(Read, "", syscall.EIO), func() error { _, err := f.ReadAt(make([]byte, 1), 0); return err }},
		{"short read", On(Read, "", &Short{2, syscall.EIO}), func() error {
			b := make([]byte, 5)
			n, err := f.ReadAt(b, 0)
			if string(b[:n]) != "he" {
				t.Errorf("read %q", b[:n])
			}
			return err
		}},
		{"an index", At(d.Ops(), syscall.EIO), func() error { return f.Truncate(0) }},
		{"a lie", On(Sync, "", &After{syscall.EIO}), func() error { return f.Sync() }},
	} {
		if row.name == "an index" {
			row.rule = At(d.Ops(), syscall.EIO)
		}
		stop := d.Inject(row.rule)
		wantErr(t, row.name, row.do(), syscall.EIO)
		stop()
	}
	if got := show(t, d); got != "dir.a=helo.x" {
		t.Errorf("failed operations did something: %q", got)
	}
}

func TestCapacity(t *testing.T) {
	d := newDisk(t)
	d.SetCapacity(4 * blockBytes)
	free := func(want uint64) {
		t.Helper()
		if n, err := d.Free("."); n != want || err != nil {
			t.Errorf("free %d, %v, want %d", n, err, want)
		}
	}
	free(4 * blockBytes)
	a := put(t, d, "a", "x")
	free(3 * blockBytes)
	must(t, a.Truncate(blockBytes)) // within the block
	write(t, a, 100, "y")
	free(3 * blockBytes)

	n, err := a.WriteAt(bytes.Repeat([]byte("z"), 5*blockBytes), 0)
	wantErr(t, "write", err, syscall.ENOSPC)
	if n != 4*blockBytes {
		t.Errorf("%d bytes written before the disk was full", n)
	}
	free(0)
	write(t, a, 10, "an overwrite needs no room")
	b := put(t, d, "b", "") // nor does a name
	_, err = b.WriteAt([]byte("x"), 0)
	wantErr(t, "write", err, syscall.ENOSPC)
	wantErr(t, "preallocate", b.Preallocate(blockBytes), syscall.ENOSPC)

	must(t, a.Truncate(3*blockBytes))
	free(1 * blockBytes)
	wantErr(t, "preallocate too much", b.Preallocate(2*blockBytes), syscall.ENOSPC)
	free(1 * blockBytes)
	must(t, b.Preallocate(blockBytes))
	free(0)

	must(t, d.Remove("a"))
	free(0) // a handle is open
	must(t, a.Close())
	free(3 * blockBytes)
	must(t, d.Rename("b", "c"))
	free(3 * blockBytes)
	commit(t, d, "s", "x")
	free(2 * blockBytes)
	if got := d.AfterCut(KeepAll).Used(); got != 2*blockBytes {
		t.Errorf("the image uses %d", got)
	}
	d.SetCapacity(0)
	if n, _ := d.Free("."); n < 1<<40 {
		t.Errorf("free %d without a limit", n)
	}
}

// TestPowerCutFindsAMissingSync is the example of STYLE.md: the disk must catch a program that acknowledges too early.
func TestPowerCutFindsAMissingSync(t *testing.T) {
	run := func(sync, syncDir bool) (lost bool) {
		for k := 0; ; k++ {
			d := NewDisk(k)
			acked := 0
			func() {
				f, err := d.OpenFile("log", os.O_RDWR|os.O_CREATE, 0o600)
				if err != nil || syncDir && d.SyncDir(".") != nil {
					return
				}
				for i := range 4 {
					if _, err := f.WriteAt([]byte{byte(i + 1)}, int64(i)); err != nil || sync && f.Datasync() != nil {
						return
					}
					acked++
				}
			}()
			if !d.Cut() {
				return lost
			}
			for seed := range uint64(4) {
				b, _ := d.AfterCut(seed).ReadFile("log")
				lost = lost || len(b) < acked || !bytes.Equal(b[:acked], []byte{1, 2, 3, 4}[:acked])
			}
		}
	}
	for _, row := range []struct{ sync, syncDir, lost bool }{{true, true, false}, {false, true, true}, {true, false, true}} {
		if lost := run(row.sync, row.syncDir); lost != row.lost {
			t.Errorf("sync %v, syncDir %v: lost %v", row.sync, row.syncDir, lost)
		}
	}
}
