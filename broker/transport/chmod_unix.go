//go:build unix

package transport

import (
	"io/fs"
	"syscall"
)

func chmodSocket(fd uintptr, mode fs.FileMode) error {
	return syscall.Fchmod(int(fd), uint32(mode.Perm()))
}
