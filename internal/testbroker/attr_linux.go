package testbroker

import "syscall"

// attributes make the broker end with the test, also when the test is killed or runs into its timeout.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
