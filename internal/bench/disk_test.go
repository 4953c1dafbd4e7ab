package bench

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

func TestDisk(t *testing.T) {
	dir := t.TempDir()
	d, err := MeasureDisk(t.Context(), dir, 10*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if d.Commits < 1 || d.Commit.P50 <= 0 || d.Group.P50 <= 0 || d.Create.P50 <= 0 || d.MBps <= 0 {
		t.Errorf("%+v", d)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := MeasureDisk(ctx, dir, time.Hour); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("it leaves %v", left)
	}
}
