//go:build unix

package auth

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Root that sets a password leaves the file to the user whose it is.
func TestPasswordKeepsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file away")
	}
	path := filepath.Join(t.TempDir(), "users")
	if err := SetPassword(path, "ann", []byte("a")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 65534, 65533); err != nil {
		t.Fatal(err)
	}
	if err := SetPassword(path, "ann", []byte("b")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 65534 || st.Gid != 65533 || info.Mode().Perm() != 0o600 {
		t.Errorf("owner %d, group %d, %v", st.Uid, st.Gid, info.Mode())
	}
}
