package vfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/edgemq/edgemq/store/vfs"
)

func TestPreallocateTakesBlocks(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a")
	f, err := vfs.OS.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Preallocate(1 << 20); err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(name, &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != 1<<20 || st.Blocks*512 < 1<<20 {
		t.Errorf("size %d in %d blocks", st.Size, st.Blocks)
	}
}

func TestReserveTakesBlocksOrGivesThemBack(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a")
	f, err := vfs.OS.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := vfs.Reserve(f, 1<<20); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("this file system cannot")
	} else if err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(name, &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != 1<<20 || st.Blocks*512 < 1<<20 {
		t.Errorf("size %d in %d blocks", st.Size, st.Blocks)
	}
	if err := vfs.Reserve(f, 1<<61); err == nil { // no disk has that
		t.Fatal("it fits")
	}
	if size, err := f.Size(); size != 1<<20 || err != nil {
		t.Errorf("size %d, %v", size, err)
	}
}

func TestPreallocateThatFailsGivesBack(t *testing.T) {
	f, err := vfs.OS.OpenFile(filepath.Join(t.TempDir(), "a"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("hello"), 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(int(f.(interface{ Fd() uintptr }).Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 4096); err != nil {
		t.Skip("this file system would find out only by filling up:", err)
	}
	if err = f.Preallocate(1 << 61); err == nil { // no disk has that
		t.Fatal("it fits")
	}
	if size, err := f.Size(); size != 5 || err != nil {
		t.Errorf("size %d, %v", size, err)
	}
	if err := f.Preallocate(1 << 20); err != nil {
		t.Fatal(err)
	}
}
