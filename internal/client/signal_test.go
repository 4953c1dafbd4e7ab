//go:build unix

package client_test

import "syscall"

// stopSignal suspends a process.
const stopSignal = syscall.SIGSTOP
