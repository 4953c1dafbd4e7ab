package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// tick is the unit of times in /proc: USER_HZ, which is 100 on every architecture that Go runs on.
const tick = time.Second / 100

func (p *Process) usage() (u usage) {
	if !p.Group {
		_ = u.add(p.PID, 0)
		return u
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		_ = u.add(pid, p.PID) // it may have ended meanwhile
	}
	return u
}

// add adds what a process has used, if it is of that group (0: in any case).
func (u *usage) add(pid, group int) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return err
	}
	// Fields are counted from the end of the name, which may hold anything: state, ppid, pgrp are the first.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 22 {
		return fmt.Errorf("/proc/%d/stat: %d fields", pid, len(f))
	}
	field := func(i int) int64 {
		n, _ := strconv.ParseInt(string(f[i]), 10, 64)
		return n
	}
	if group != 0 && field(2) != int64(group) {
		return nil
	}
	u.known = true
	u.cpu += time.Duration(field(11)+field(12)) * tick
	u.rss += field(21) * int64(os.Getpagesize())
	return nil
}

// ownCPU is the processor time of this process.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
