package session

import (
	"sync"
	"time"
)

// complaints logs what a client was refused in a way that tells it nothing: an operator who looks for the cause finds a line for it. A client that
// tries again and again must not fill the log, so some lines come at once and then few.
type complaints struct {
	mu      sync.Mutex
	left    int       // lines that may come at once
	since   time.Time // when the last one of them came back
	skipped int       // since the last line
}

const closedText = "publish refused, connection closed: MQTT 3.1.1 has no other answer"

const (
	complainAtOnce = 10
	complainEvery  = 10 * time.Second // a line more
)

// allow says whether there may be a line now, and how many there were not since the last one.
func (c *complaints) allow(now time.Time) (skipped int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := now.Sub(c.since) / complainEvery; n > 0 {
		c.left, c.since = int(min(complainAtOnce, time.Duration(c.left)+n)), now
	}
	if c.left == 0 {
		c.skipped++
		return 0, false
	}
	c.left--
	skipped, c.skipped = c.skipped, 0
	return skipped, true
}

// complain logs one.
func (l *Link) complain(c *complaints, text, reason string) {
	skipped, ok := c.allow(time.Now())
	if !ok {
		return
	}
	attrs := []any{"client", l.clientID(), "reason", reason}
	if skipped > 0 {
		attrs = append(attrs, "others_not_logged", skipped)
	}
	l.m.logger.Warn(text, attrs...)
}
