package session

import (
	"testing"
	"time"
)

func TestComplaints(t *testing.T) {
	var c complaints
	now := time.Now()
	lines := func(n int) (logged, skipped int) {
		for range n {
			s, ok := c.allow(now)
			if skipped += s; ok {
				logged++
			}
		}
		return logged, skipped
	}
	if logged, skipped := lines(1000); logged != complainAtOnce || skipped != 0 {
		t.Errorf("at once %d lines, %d said to be skipped", logged, skipped)
	}
	now = now.Add(complainEvery)
	if logged, skipped := lines(5); logged != 1 || skipped != 1000-complainAtOnce {
		t.Errorf("after a while %d lines, %d said to be skipped", logged, skipped)
	}
	now = now.Add(time.Hour)
	if logged, skipped := lines(1000); logged != complainAtOnce || skipped != 4 {
		t.Errorf("after an hour %d lines, %d said to be skipped", logged, skipped)
	}
}
