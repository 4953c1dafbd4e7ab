//go:build unix

package transport_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/edgemq/edgemq/broker/transport"
)

func TestUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s := serve(t, transport.Options{Type: transport.Unix, Address: path, Mode: 0o606}, patience)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o606 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if s.Addr() != path {
		t.Errorf("address %q", s.Addr())
	}
	echo(t, s.dial(), s.conn())
	if _, err := transport.Listen(transport.Options{Type: transport.Unix, Address: path}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second listener: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestUnixStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = dead.Close()
	s := serve(t, transport.Options{Type: transport.Unix, Address: path}, patience)
	echo(t, s.dial(), s.conn())
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// Only a socket is replaced, and only one's own removed.
func TestUnixLeavesOthersAlone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := transport.Listen(transport.Options{Type: transport.Unix, Address: file}); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("got %v", err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("%q, %v", b, err)
	}

	path := filepath.Join(dir, "s")
	s := serve(t, transport.Options{Type: transport.Unix, Address: path}, patience)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	successor := serve(t, transport.Options{Type: transport.Unix, Address: path}, patience)
	_ = s.Close()
	echo(t, successor.dial(), successor.conn())
}
