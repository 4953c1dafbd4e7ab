//go:build !linux

package testbroker

import "syscall"

func attributes() *syscall.SysProcAttr { return nil }
