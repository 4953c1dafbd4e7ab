package vfs

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

func datasync(fd uintptr) error { return windows.FlushFileBuffers(windows.Handle(fd)) }

func allocate(uintptr, int64, int64) error { return nil }

// syncDir does nothing: NTFS journals names itself, and Windows has no call for it that needs no privilege.
func syncDir(name string) error {
	_, err := os.Stat(name)
	return err
}

func lock(f *os.File) error {
	return control(f, func(fd uintptr) error {
		err := windows.LockFileEx(windows.Handle(fd), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY,
			0, 1, 0, new(windows.Overlapped))
		if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
			return ErrLocked
		}
		return err
	})
}

func free(name string) (uint64, error) {
	// The call wants a directory.
	if info, err := os.Stat(name); err == nil && !info.IsDir() {
		name = filepath.Dir(name)
	}
	path, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return 0, err
	}
	var n uint64
	err = windows.GetDiskFreeSpaceEx(path, &n, nil, nil)
	return n, err
}
