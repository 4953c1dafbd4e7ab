//go:build unix

package bench

import (
	"errors"
	"os"
	"syscall"
)

// ownGroup makes a process the first of a group.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// signalGroup asks the group of a process to end, or ends it.
func signalGroup(p *os.Process, kill bool) error {
	signal := syscall.SIGTERM
	if kill {
		signal = syscall.SIGKILL
	}
	if err := syscall.Kill(-p.Pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
