//go:build unix

package auth

import (
	"os"
	"syscall"
)

// keepOwner gives f the owner of the file that it is to replace: root sets passwords in a file that a broker of another user reads.
func keepOwner(f *os.File, of os.FileInfo) error {
	st, ok := of.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 { // nobody else may give files away, nor needs to: it is the user's own
		return nil
	}
	return f.Chown(int(st.Uid), int(st.Gid))
}
