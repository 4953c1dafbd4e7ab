package bench

import (
	"time"
)

// Process is a running broker whose processor time and memory can be looked at, where the system tells.
type Process struct {
	PID   int
	Group bool // all processes of its group: a start script may have children
}

// usage is what a broker has used until now.
type usage struct {
	known bool
	cpu   time.Duration
	rss   int64
}

func (t *Target) usage() usage {
	if t.Process == nil {
		return usage{}
	}
	return t.Process.usage()
}
