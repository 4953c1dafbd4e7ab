package vfstest

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/store/vfs"
)

// put makes a file with a content.
func put(t *testing.T, d vfs.FS, name, content string) vfs.File {
	t.Helper()
	f, err := d.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if n, err := f.WriteAt([]byte(content), 0); n != len(content) || err != nil {
		t.Fatalf("wrote %d: %v", n, err)
	}
	return f
}

// get returns a file's content.
func get(t *testing.T, d vfs.FS, name string) string {
	t.Helper()
	f, err := d.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if n, err := f.ReadAt(b, 0); n != len(b) || err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("read %d of %d: %v", n, size, err)
	}
	return string(b)
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// conformance is what every FS does alike. root is an empty directory on it.
var conformance = []struct {
	name string
	run  func(t *testing.T, d vfs.FS, root string)
}{
	{"a file reads back", func(t *testing.T, d vfs.FS, root string) {
		name := filepath.Join(root, "a")
		f := put(t, d, name, "hello")
		if f.Name() != name {
			t.Errorf("Name is %q, want %q", f.Name(), name)
		}
		if got := get(t, d, name); got != "hello" {
			t.Errorf("read %q", got)
		}
	}},
	{"a write beyond the end leaves zeros", func(t *testing.T, d vfs.FS, root string) {
		f := put(t, d, filepath.Join(root, "a"), "x")
		if _, err := f.WriteAt([]byte("y"), 3); err != nil {
			t.Fatal(err)
		}
		if got := get(t, d, f.Name()); got != "x\x00\x00y" {
			t.Errorf("read %q", got)
		}
	}},
	{"a read past the end is EOF", func(t *testing.T, d vfs.FS, root string) {
		f := put(t, d, filepath.Join(root, "a"), "hello")
		b := make([]byte, 8)
		for _, row := range []struct{ pos, n int64 }{{3, 2}, {5, 0}, {9, 0}} {
			if n, err := f.ReadAt(b, row.pos); int64(n) != row.n || err != io.EOF {
				t.Errorf("at %d: %d, %v", row.pos, n, err)
			}
		}
		if n, err := f.ReadAt(b[:5], 0); n != 5 || err != nil && err != io.EOF {
			t.Errorf("whole file: %d, %v", n, err)
		}
		if _, err := f.ReadAt(b, -1); err == nil {
			t.Error("a read before the start is no error")
		}
		if _, err := f.WriteAt(b, -1); err == nil {
			t.Error("a write before the start is no error")
		}
	}},
	{"truncate cuts and extends with zeros", func(t *testing.T, d vfs.FS, root string) {
		f := put(t, d, filepath.Join(root, "a"), "hello")
		for _, size := range []int64{2, 4} {
			if err := f.Truncate(size); err != nil {
				t.Fatal(err)
			}
		}
		if got := get(t, d, f.Name()); got != "he\x00\x00" {
			t.Errorf("read %q", got)
		}
	}},
	{"preallocate adds zeros and keeps what is there", func(t *testing.T, d vfs.FS, root string) {
		f := put(t, d, filepath.Join(root, "a"), "hello")
		for _, size := range []int64{600 << 10, 3} { // a smaller size changes nothing
			if err := f.Preallocate(size); err != nil {
				t.Fatal(err)
			}
		}
		got := get(t, d, f.Name())
		if len(got) != 600<<10 || got[:6] != "hello\x00" || got[len(got)-1] != 0 {
			t.Errorf("read %d bytes", len(got))
		}
	}},
	{"reserve adds what reads as zeros and keeps what is there", func(t *testing.T, d vfs.FS, root string) {
		f := put(t, d, filepath.Join(root, "a"), "hello")
		for _, size := range []int64{600 << 10, 3} {
			if err := vfs.Reserve(f, size); errors.Is(err, errors.ErrUnsupported) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
		}
		got := get(t, d, f.Name())
		if len(got) != 600<<10 || got[:6] != "hello\x00" || got[len(got)-1] != 0 {
			t.Errorf("read %d bytes", len(got))
		}
	}},
	{"zeros overwrite", func(t *testing.T, d vfs.FS, root string) {
		f := put(t, d, filepath.Join(root, "a"), strings.Repeat("x", 3<<20))
		if err := vfs.Zero(f, 4096, 2<<20); err != nil {
			t.Fatal(err)
		}
		if want := strings.Repeat("x", 4096) + strings.Repeat("\x00", 2<<20) + strings.Repeat("x", 1<<20-4096); get(t, d, f.Name()) != want {
			t.Error("they are elsewhere")
		}
	}},
	{"syncs succeed", func(t *testing.T, d vfs.FS, root string) {
		f := put(t, d, filepath.Join(root, "a"), "hello")
		if err := errors.Join(f.Datasync(), f.Sync(), d.SyncDir(root)); err != nil {
			t.Error(err)
		}
		wantErr(t, "sync of no directory", d.SyncDir(filepath.Join(root, "no")), fs.ErrNotExist)
	}},
	{"open says what is wrong", func(t *testing.T, d vfs.FS, root string) {
		name := filepath.Join(root, "a")
		put(t, d, name, "hello")
		_, err := d.OpenFile(filepath.Join(root, "no"), os.O_RDWR, 0)
		wantErr(t, "missing file", err, fs.ErrNotExist)
		_, err = d.OpenFile(filepath.Join(root, "no", "a"), os.O_RDWR|os.O_CREATE, 0o600)
		wantErr(t, "missing directory", err, fs.ErrNotExist)
		_, err = d.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		wantErr(t, "exclusive", err, fs.ErrExist)
		_, err = d.OpenFile(root, os.O_RDWR, 0)
		if err == nil {
			t.Error("a directory opens for writing")
		}
		f, err := d.OpenFile(name, os.O_RDWR|os.O_TRUNC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got := get(t, d, name); got != "" {
			t.Errorf("after O_TRUNC: %q", got)
		}
	}},
	{"a handle does what it was opened for", func(t *testing.T, d vfs.FS, root string) {
		name := filepath.Join(root, "a")
		put(t, d, name, "hello")
		r, err := d.OpenFile(name, os.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		w, err := d.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.WriteAt([]byte("x"), 0); err == nil {
			t.Error("a read-only handle writes")
		}
		if _, err := w.ReadAt(make([]byte, 1), 0); err == nil {
			t.Error("a write-only handle reads")
		}
		if err := errors.Join(r.Close(), w.Close()); err != nil {
			t.Error(err)
		}
		_, err = r.ReadAt(make([]byte, 1), 0)
		wantErr(t, "read after close", err, fs.ErrClosed)
		_, err = w.WriteAt([]byte("x"), 0)
		wantErr(t, "write after close", err, fs.ErrClosed)
		wantErr(t, "datasync after close", w.Datasync(), fs.ErrClosed)
		wantErr(t, "sync after close", w.Sync(), fs.ErrClosed)
		wantErr(t, "truncate after close", w.Truncate(0), fs.ErrClosed)
		wantErr(t, "preallocate after close", w.Preallocate(9), fs.ErrClosed)
		wantErr(t, "second close", w.Close(), fs.ErrClosed)
		_, err = w.Size()
		wantErr(t, "size after close", err, fs.ErrClosed)
	}},
	{"a removed file lives on in open handles", func(t *testing.T, d vfs.FS, root string) {
		f := put(t, d, filepath.Join(root, "a"), "hello")
		if err := d.Remove(f.Name()); err != nil {
			t.Fatal(err)
		}
		_, err := d.Stat(f.Name())
		wantErr(t, "stat", err, fs.ErrNotExist)
		wantErr(t, "second remove", d.Remove(f.Name()), fs.ErrNotExist)
		b := make([]byte, 5)
		if _, err := f.ReadAt(b, 0); string(b) != "hello" {
			t.Errorf("read %q, %v", b, err)
		}
	}},
	{"rename replaces", func(t *testing.T, d vfs.FS, root string) {
		a := put(t, d, filepath.Join(root, "a"), "new")
		b := put(t, d, filepath.Join(root, "b"), "old")
		if err := d.Rename(a.Name(), b.Name()); err != nil {
			t.Fatal(err)
		}
		if got := get(t, d, b.Name()); got != "new" {
			t.Errorf("read %q", got)
		}
		wantErr(t, "rename of nothing", d.Rename(a.Name(), b.Name()), fs.ErrNotExist)
	}},
	{"directories", func(t *testing.T, d vfs.FS, root string) {
		sub := filepath.Join(root, "x", "y")
		for range 2 { // one that is there is no error
			if err := d.MkdirAll(sub, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		put(t, d, filepath.Join(sub, "b"), "22")
		put(t, d, filepath.Join(sub, "a"), "1")
		if err := d.MkdirAll(filepath.Join(sub, "c"), 0o700); err != nil {
			t.Fatal(err)
		}
		entries, err := d.ReadDir(sub)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if !slices.Equal(names, []string{"a", "b", "c"}) || entries[0].IsDir() || !entries[2].IsDir() {
			t.Errorf("entries %v", entries)
		}
		if info, err := entries[1].Info(); err != nil || info.Size() != 2 {
			t.Errorf("info %v, %v", info, err)
		}
		if info, err := d.Stat(sub); err != nil || !info.IsDir() || info.Name() != "y" {
			t.Errorf("stat %v, %v", info, err)
		}
		_, err = d.ReadDir(filepath.Join(root, "no"))
		wantErr(t, "missing directory", err, fs.ErrNotExist)
		if err := d.Remove(sub); err == nil {
			t.Error("a directory with files in it was removed")
		}
		if err := d.Remove(filepath.Join(sub, "c")); err != nil {
			t.Error(err)
		}
		if err := d.MkdirAll(filepath.Join(sub, "a", "z"), 0o700); err == nil {
			t.Error("a directory was made in a file")
		}
	}},
	{"vfs.MkdirAll", func(t *testing.T, d vfs.FS, root string) {
		sub := filepath.Join(root, "x", "y", "z")
		for range 2 {
			if err := vfs.MkdirAll(d, sub, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		put(t, d, filepath.Join(sub, "a"), "")
	}},
	{"one lock at a time", func(t *testing.T, d vfs.FS, root string) {
		name := filepath.Join(root, "LOCK")
		l, err := d.Lock(name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.Lock(name)
		wantErr(t, "second lock", err, vfs.ErrLocked)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "second close", l.Close(), fs.ErrClosed)
		if l, err = d.Lock(name); err != nil {
			t.Fatal(err)
		}
		l.Close()
		_, err = d.Lock(filepath.Join(root, "no", "LOCK"))
		wantErr(t, "lock in no directory", err, fs.ErrNotExist)
	}},
	{"free space", func(t *testing.T, d vfs.FS, root string) {
		if n, err := d.Free(root); n < 1<<20 || err != nil {
			t.Errorf("free: %d, %v", n, err)
		}
		_, err := d.Free(filepath.Join(root, "no"))
		wantErr(t, "free of nothing", err, fs.ErrNotExist)
	}},
	{"external files", func(t *testing.T, d vfs.FS, root string) {
		name := filepath.Join(root, "state.db")
		real, err := d.External(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("there before it was made: %v", err)
		}
		if err := d.Commit(name, func() error { return os.WriteFile(real, []byte("hello"), 0o600) }); err != nil {
			t.Fatal(err)
		}
		if info, err := d.Stat(name); err != nil || info.Size() != 5 || info.Name() != "state.db" {
			t.Errorf("stat %v, %v", info, err)
		}
		if entries, err := d.ReadDir(root); err != nil || len(entries) != 1 || entries[0].Name() != "state.db" {
			t.Errorf("entries %v, %v", entries, err)
		}
		if got := get(t, d, name); got != "hello" {
			t.Errorf("read %q", got)
		}
		if err := d.Rename(name, name+".old"); err != nil {
			t.Fatal(err)
		}
		if got := get(t, d, name+".old"); got != "hello" {
			t.Errorf("read %q", got)
		}
		if err := d.Remove(name + ".old"); err != nil {
			t.Error(err)
		}
		failed := errors.New("failed")
		wantErr(t, "failed commit", d.Commit(name, func() error { return failed }), failed)
	}},
}

func TestConformance(t *testing.T) {
	for _, row := range conformance {
		t.Run(row.name, func(t *testing.T) {
			t.Run("disk", func(t *testing.T) {
				d := NewDisk(Never)
				t.Cleanup(func() { d.Close() })
				if err := d.MkdirAll("/data", 0o700); err != nil {
					t.Fatal(err)
				}
				row.run(t, d, "/data")
			})
			t.Run("os", func(t *testing.T) { row.run(t, vfs.OS, t.TempDir()) })
		})
	}
}
