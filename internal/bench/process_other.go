//go:build !linux

package bench

import "time"

func (p *Process) usage() usage { return usage{} }

func ownCPU() time.Duration { return 0 }
