//go:build linux || darwin

package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func syncDir(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func lock(f *os.File) error {
	return control(f, func(fd uintptr) error {
		for {
			err := unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB)
			switch {
			case err == unix.EINTR:
				continue
			case errors.Is(err, unix.EWOULDBLOCK):
				return ErrLocked
			}
			return err
		}
	})
}

func free(name string) (uint64, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(name, &st)
		if err == unix.EINTR {
			continue
		}
		// Both fields differ in type from one system to the next. Bavail is what is left to those who are not root.
		return uint64(max(st.Bavail, 0)) * uint64(st.Bsize), err //nolint:unconvert // see above
	}
}
