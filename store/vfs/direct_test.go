package vfs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/edgemq/edgemq/store/vfs"
)

func TestWriteDirect(t *testing.T) {
	for _, row := range []struct {
		name            string
		from, size, pos int // in memory, and in the file
	}{
		{"nothing", 0, 0, 0},
		{"a block", 0, 4096, 4096},
		{"many blocks", 4096, 1 << 20, 0},
		{"part of a block", 0, 1000, 4096},
		{"between blocks", 0, 4096, 1000},
		{"from between blocks", 8, 4096, 4096},
		{"past the end", 0, 8192, 3 << 20},
	} {
		t.Run(row.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "a")
			f, err := vfs.OS.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			want := make([]byte, 4<<20)
			for i := range want {
				want[i] = byte(i * 7)
			}
			if err := f.Preallocate(2 << 20); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(want, 0); err != nil {
				t.Fatal(err)
			}
			mem := bytes.Repeat([]byte("direct"), 1<<20) // large enough for Go to give it whole pages
			for range 2 {                                // through the cache, past it, through it
				if n, err := vfs.WriteDirect(f, mem[row.from:row.from+row.size], int64(row.pos)); n != row.size || err != nil {
					t.Fatal(n, err)
				}
				copy(want[row.pos:], mem[row.from:row.from+row.size])
				if _, err := f.WriteAt([]byte("cached"), int64(row.pos)+10); err != nil {
					t.Fatal(err)
				}
				copy(want[row.pos+10:], "cached")
				got := make([]byte, len(want))
				if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("differs from what was written, %v", err)
				}
			}
			if err := f.Datasync(); err != nil {
				t.Error(err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			if _, err := vfs.WriteDirect(f, mem[:4096], 0); err == nil {
				t.Error("a closed file is written")
			}
		})
	}
	t.Run("a file of another name by now", func(t *testing.T) {
		name := filepath.Join(t.TempDir(), "a")
		f, err := vfs.OS.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := os.Rename(name, name+"b"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := vfs.WriteDirect(f, make([]byte, 64<<10), 0); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]int64{name: 0, name + "b": 64 << 10} {
			if info, err := os.Stat(name); err != nil || info.Size() != want {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
	})
}
