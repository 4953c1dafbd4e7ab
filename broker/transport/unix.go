package transport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

// unixListener is a listener whose Close removes its socket from the file system, unless the path is another's by now.
type unixListener struct {
	net.Listener
	path string
	made fs.FileInfo // the socket that we made
}

// ListenUnix makes a socket at path with the given permissions; closing the listener removes it. A socket that a dead process
// has left there is replaced. One that somebody listens on is not (the error is EADDRINUSE), and nor is a file that is no socket.
func ListenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// Where this works (Linux), the file is never there with permissions wider than these. Where it does not, Chmod follows.
		return c.Control(func(fd uintptr) { _ = chmodSocket(fd, mode) })
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // it would remove a successor's
	if err := os.Chmod(path, mode); err != nil {  // the umask has taken some away
		return nil, errors.Join(err, l.Close(), os.Remove(path))
	}
	made, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &unixListener{l, path, made}, nil
}

// Close implements net.Listener.
func (l *unixListener) Close() error {
	err := l.Listener.Close()
	if info, statErr := os.Lstat(l.path); statErr == nil && os.SameFile(info, l.made) {
		_ = os.Remove(l.path) // there is nobody to tell; the next start finds it stale
	}
	return err
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen unix %s: a file that is not a socket is in the way", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("listen unix %s: %w", path, syscall.EADDRINUSE)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("listen unix %s: is anybody there: %w", path, err)
	}
	return os.Remove(path)
}
