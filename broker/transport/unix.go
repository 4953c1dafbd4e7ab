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

// socketPath is the file of a unix socket.
type socketPath struct {
	name string
	info fs.FileInfo // of the socket that we made
}

// listenUnix makes a socket at path. A socket that a dead process has left there is replaced, one that somebody listens
// on is not, and nor is a file that is no socket.
func listenUnix(path string, mode fs.FileMode) (net.Listener, *socketPath, error) {
	if err := removeStale(path); err != nil {
		return nil, nil, err
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// Where this works (Linux), the file is never there with permissions wider than these. Where it does not, Chmod follows.
		return c.Control(func(fd uintptr) { _ = chmodSocket(fd, mode) })
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // it would remove a successor's
	if err := os.Chmod(path, mode); err != nil {  // the umask has taken some away
		return nil, nil, errors.Join(err, l.Close(), os.Remove(path))
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, &socketPath{path, info}, nil
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

// remove removes the file, unless it is another's by now.
func (p *socketPath) remove() {
	if info, err := os.Lstat(p.name); err == nil && os.SameFile(info, p.info) {
		_ = os.Remove(p.name) // there is nobody to tell; the next start finds it stale
	}
}
