package journal

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// life of a journal in the crash tests: what was promised, and where a replay may begin.
type promise struct {
	from  Position
	acked uint64 // last group whose Sync returned
	last  uint64 // last group given to Append
}

func crashOptions(disk *vfstest.Disk) Options {
	return Options{Dir: "data/journal", DamagedDir: "data/damaged", FileBytes: 6 * BlockSize, FS: disk}
}

// recover replays what is on the disk and checks it against what was promised.
func (p *promise) recover(disk *vfstest.Disk) (*Journal, error) {
	j, err := Open(crashOptions(disk), p.from)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	next := max(p.from.Group, 1)
	report, err := j.Replay(func(g Group) error {
		records, mutations := text(g.Seq)
		if g.Seq != next || string(g.Records) != records || string(g.Mutations) != mutations {
			return fmt.Errorf("group %d where %d was expected, records %q", g.Seq, next, g.Records)
		}
		next++
		return nil
	})
	switch {
	case err != nil:
	case report.Damaged != 0:
		err = fmt.Errorf("a power cut was taken for damage: %+v", report)
	case next <= p.acked:
		err = fmt.Errorf("group %d was acknowledged, replay ends before group %d: %+v", p.acked, next, report)
	case next > p.last+1:
		err = fmt.Errorf("group %d was never appended", next-1)
	case report.Next.Group != next:
		err = fmt.Errorf("next is %+v, want group %d", report.Next, next)
	}
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	p.acked, p.last = next-1, next-1 // what was handed out must be durable now
	return j, nil
}

// work appends groups and now and then syncs, checkpoints and prepares, until something fails.
func (p *promise) work(j *Journal, groups int) error {
	for range groups {
		n := p.last + 1
		j.recent.Store(0)
		if n%5 > 2 { // as if groups were large: new files are reserved, and filled or left later, once they are small
			j.recent.Store(8 * largeAverage)
		}
		records, mutations := text(n)
		buf := append(make([]byte, HeaderSize), records+mutations...)
		p.last = n
		pos, err := j.Append(buf, GroupHeader{Base: 10 * n, Count: 2, RecordsLen: len(records)})
		if err != nil {
			return err
		}
		if n%3 != 0 {
			if err := j.Sync(); err != nil {
				return err
			}
			p.acked = n
		}
		if n%4 == 0 {
			if err := j.Prepare(); err != nil {
				return err
			}
		}
		if n%7 == 0 {
			if err := j.Sync(); err != nil {
				return err
			}
			p.acked, p.from = n, pos
			j.Release(pos)
		}
	}
	return nil
}

func newCrashDisk(cut int) *vfstest.Disk {
	disk := vfstest.NewDisk(cut)
	disk.TearSectors(func(name string) bool { return strings.HasSuffix(name, ".jrn") })
	return disk
}

// Power is cut at every write-like operation in turn, then again while the machine recovers and goes on.
func TestAckedGroupsSurvivePowerCuts(t *testing.T) {
	seeds := []uint64{vfstest.LoseAll, vfstest.KeepAll, vfstest.InOrder, 7, 8, 9, 10, 11}
	const again = 12
	for cut := 0; ; cut++ {
		disk := newCrashDisk(cut)
		var p promise
		j, err := p.recover(disk)
		if err == nil {
			err = p.work(j, 40)
			j.Close()
		}
		if err == nil && !disk.Cut() {
			return // ran to the end, so every cut point is covered
		}
		if !errors.Is(err, vfstest.ErrPowerCut) && !disk.Cut() {
			t.Fatalf("cut %d: %v", cut, err)
		}
		for _, seed := range seeds {
			image, q := disk.AfterCut(seed+uint64(cut)*100*min(seed/3, 1)), p
			image.CutAfter(cut % again)
			j, err := q.recover(image)
			if err == nil {
				err = q.work(j, 12)
				j.Close()
			}
			if err != nil && !image.Cut() {
				t.Fatalf("cut %d, seed %d: %v (promised %+v)", cut, seed, err, p)
			}
			last := image.AfterCut(seed)
			j, err = q.recover(last)
			if err != nil {
				t.Fatalf("cut %d, seed %d, second cut: %v (promised %+v)", cut, seed, err, q)
			}
			j.Close()
		}
	}
}

// What Replay handed out after a crash of the process alone stays, whatever comes next.
func TestReplayMakesDurable(t *testing.T) {
	disk := newCrashDisk(vfstest.Never)
	var p promise
	j, err := p.recover(disk)
	if err != nil {
		t.Fatal(err)
	}
	for n := uint64(1); n <= 3; n++ {
		records, mutations := text(n)
		if _, err := j.Append(append(make([]byte, HeaderSize), records+mutations...), GroupHeader{RecordsLen: len(records)}); err != nil {
			t.Fatal(err)
		}
	}
	p.last = 3
	j.Close()
	if j, err = p.recover(disk); err != nil || p.acked != 3 {
		t.Fatalf("after kill -9: %+v, %v", p, err)
	}
	j.Close()
	if j, err = p.recover(disk.AfterCut(vfstest.LoseAll)); err != nil {
		t.Fatalf("after a power cut: %v", err)
	}
	j.Close()
}

// A process is killed after it made a file and before it synced the name; the next one uses the file.
func TestNamesOfFilesLeftBehind(t *testing.T) {
	disk := newCrashDisk(vfstest.Never)
	killed, made := errors.New("killed"), false
	stop := disk.Inject(func(op vfstest.Op) error {
		made = made || op.Kind == vfstest.Preallocate
		if made && (op.Kind == vfstest.SyncDir || op.Kind == vfstest.Remove) {
			return killed
		}
		return nil
	})
	var p promise
	if _, err := p.recover(disk); !errors.Is(err, killed) {
		t.Fatalf("recover: %v", err)
	}
	stop()
	j, err := p.recover(disk)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.work(j, 2); err != nil {
		t.Fatal(err)
	}
	j.Close()
	if j, err = p.recover(disk.AfterCut(vfstest.LoseAll)); err != nil {
		t.Fatal(err)
	}
	j.Close()
}

func TestFailedWritesAndSyncsStopTheJournal(t *testing.T) {
	broken := errors.New("broken disk")
	for _, kind := range []vfstest.Kind{vfstest.Write, vfstest.Datasync} {
		disk := newCrashDisk(vfstest.Never)
		var p promise
		j, err := p.recover(disk)
		if err != nil {
			t.Fatal(err)
		}
		fails, failed := vfstest.On(kind, ".jrn", broken), false
		stop := disk.Inject(func(op vfstest.Op) error {
			if failed {
				return nil // the kernel has dropped the pages, and says that all is well
			}
			err := fails(op)
			failed = err != nil
			return err
		})
		if err := p.work(j, 1); !errors.Is(err, broken) {
			t.Fatalf("%v failed, work returned %v", kind, err)
		}
		stop()
		if err := p.work(j, 1); !errors.Is(err, ErrFailed) || !errors.Is(err, broken) {
			t.Fatalf("after a failed %v, work returned %v", kind, err)
		}
		if err := j.Sync(); !errors.Is(err, ErrFailed) {
			t.Fatalf("after a failed %v, Sync returned %v", kind, err)
		}
		j.Close()
	}
}

func TestNoRoomIsNotTheEnd(t *testing.T) {
	disk := newCrashDisk(vfstest.Never)
	var p promise
	j, err := p.recover(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	disk.SetCapacity(disk.Used() + BlockSize)
	n := 0
	for err == nil {
		err = p.work(j, 1)
		n++
	}
	if !errors.Is(err, ErrNoRoom) || !errors.Is(err, syscall.ENOSPC) || n != 4 {
		t.Fatalf("after %d groups: %v", n, err)
	}
	if err := j.Sync(); err != nil {
		t.Fatalf("Sync on a full disk: %v", err)
	}
	disk.SetCapacity(0)
	p.last--
	if err := p.work(j, 10); err != nil {
		t.Fatalf("with room again: %v", err)
	}
}
