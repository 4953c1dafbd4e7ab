package vfs_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/edgemq/edgemq/store/vfs"
)

// What OS has in common with every FS is tested in package vfstest.

func TestMain(m *testing.M) {
	if name := os.Getenv("VFS_TEST_LOCK"); name != "" { // this is the other process of TestLockKeepsOtherProcessesOut
		_, err := vfs.OS.Lock(name)
		if errors.Is(err, vfs.ErrLocked) {
			os.Exit(3)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestLockKeepsOtherProcessesOut(t *testing.T) {
	name := filepath.Join(t.TempDir(), "LOCK")
	other := func() int {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "VFS_TEST_LOCK="+name)
		err := cmd.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode()
		}
		if err != nil {
			t.Fatal(err)
		}
		return 0
	}
	lock, err := vfs.OS.Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	if code := other(); code != 3 {
		t.Errorf("another process locks it too: %d", code)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds the file of a process that has died
		if code := other(); code != 0 {
			t.Errorf("another process cannot lock it: %d", code)
		}
	}
}

func TestMkdirAllSyncsTheParentsOfWhatItMade(t *testing.T) {
	failed := errors.New("failed")
	for _, row := range []struct {
		there, make string
		want        []string
	}{
		{"", "a", []string{"."}},
		{"", "a/b/c", []string{"a/b", "a", "."}},
		{"a", "a/b/c", []string{"a/b", "a"}},
		{"a/b", "a/b", nil},
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, row.there), 0o700); err != nil {
			t.Fatal(err)
		}
		rec := &recorder{FS: vfs.OS}
		if err := vfs.MkdirAll(rec, filepath.Join(root, row.make), 0o700); err != nil {
			t.Fatal(err)
		}
		if len(rec.synced) != len(row.want) {
			t.Fatalf("%s in %q: synced %q", row.make, row.there, rec.synced)
		}
		for i, dir := range row.want {
			if rec.synced[i] != filepath.Join(root, dir) {
				t.Errorf("%s in %q: synced %q", row.make, row.there, rec.synced)
			}
		}
		if len(row.want) > 0 {
			rec = &recorder{FS: vfs.OS, err: failed}
			if err := vfs.MkdirAll(rec, filepath.Join(root, "x", row.make), 0o700); !errors.Is(err, failed) {
				t.Errorf("failed sync: %v", err)
			}
		}
	}
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := vfs.MkdirAll(vfs.OS, filepath.Join(name, "x"), 0o700); !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a file: %v", err)
	}
}

// recorder notes which directories are synced.
type recorder struct {
	vfs.FS
	err    error
	synced []string
}

func (r *recorder) SyncDir(name string) error {
	if r.err != nil {
		return r.err
	}
	r.synced = append(r.synced, name)
	return r.FS.SyncDir(name)
}
