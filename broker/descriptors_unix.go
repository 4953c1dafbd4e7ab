//go:build unix

package broker

import "syscall"

// openFiles returns how many file descriptors the process may have, 0 if that cannot be told. Go's runtime has raised the soft limit
// to the hard one.
func openFiles() uint64 {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0
	}
	return uint64(r.Cur)
}
