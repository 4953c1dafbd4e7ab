package vfs

import "golang.org/x/sys/unix"

// datasync asks the drive to empty its cache too, which fsync does not do here.
func datasync(fd uintptr) error {
	for {
		_, err := unix.FcntlInt(fd, unix.F_FULLFSYNC, 0)
		switch err {
		case unix.EINTR:
			continue
		case unix.ENOTSUP, unix.ENOTTY, unix.EINVAL: // a network share, for one
			return unix.Fsync(int(fd))
		}
		return err
	}
}

func allocate(uintptr, int64, int64) error { return nil }
