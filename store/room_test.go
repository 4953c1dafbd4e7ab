package store

import (
	"errors"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// TestStartOnFullDisk: other files have filled the disk, and the store was killed. The start makes room by what it can do without; where that
// is not enough it says how much is needed, and works once there is as much.
func TestStartOnFullDisk(t *testing.T) {
	for _, row := range []struct {
		name  string
		spare bool // there are journal files to be used again
	}{{"with spare journal files", true}, {"without", false}} {
		t.Run(row.name, func(t *testing.T) {
			d := vfstest.NewDisk(vfstest.Never)
			defer d.Close()
			o := small("data")
			o.FS, o.CheckpointBytes = d, 1<<30
			r := start(t, o)
			topic, c, n := r.topic("a"), r.client("c"), 0
			work := func(to int) {
				for ; n < to; n++ {
					r.put(numbered(topic, c, n, 3000))
				}
			}
			work(1)
			if row.spare {
				work(300) // several files of 256 KiB
				r.checkpointAll()
				work(330)
				r.checkpointAll() // the checkpoint before this one does not need them either
			}
			work(n + 100)
			r.kill()
			d.SetCapacity(d.Used() + 4096)
			s, err := Open(o)
			if row.spare {
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			} else {
				if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "free up to 5 MiB where data is") {
					t.Fatalf("open: %v", err)
				}
				d.SetCapacity(d.Used() + 5<<20)
			}
			r = start(t, o)
			if got := r.numbers("a"); len(got) != n || r.Stats().Damaged != 0 {
				t.Errorf("%d messages, of %d", len(got), n)
			}
			r.end()
		})
	}
}
