//go:build !unix

package bench

import (
	"os"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr { return nil }

// signalGroup ends the process: there is no asking.
func signalGroup(p *os.Process, _ bool) error { return p.Kill() }
