package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// diskErrors are the ways in which one operation fails.
var diskErrors = []struct {
	name string
	err  error
	kind func(vfstest.Op) bool
}{
	{"EIO", syscall.EIO, isWrite},
	{"EIO reported late", &vfstest.After{Err: syscall.EIO}, isWrite},
	{"short write", &vfstest.Short{N: 700, Err: syscall.EIO}, isWrite},
	{"ENOSPC", syscall.ENOSPC, isWrite},
	{"EIO of an open, a read, a stat", syscall.EIO, func(op vfstest.Op) bool { return !isWrite(op) && op.Kind != vfstest.Lock }},
	{"short read", &vfstest.Short{N: 5, Err: syscall.EIO}, func(op vfstest.Op) bool { return op.Kind == vfstest.Read }},
}

func isWrite(op vfstest.Op) bool { return op.Index >= 0 }

// TestDiskErrors has one operation of the disk fail, any of them: a write, fsync, open, rename, unlink, read. The broker may refuse, go on or
// end; it tells nobody that something is stored that is not, and the next start finds all that was, be it after that or after a power cut.
func TestDiskErrors(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(*seed, 4))
	began := time.Now()
	n, ended := 0, 0
	for ; n < *failures && !t.Failed() && !enough(began); n++ {
		row := diskErrors[n%len(diskErrors)]
		x := &trial{t: t, rng: rand.New(rand.NewPCG(rng.Uint64(), 1)), seed: *seed, disk: vfstest.NewDisk(vfstest.Never)}
		x.disk.TearSectors(func(name string) bool { return strings.HasSuffix(name, ".jrn") })
		first := x.disk
		p := NewPlant(rng.Uint64(), true)
		if rng.IntN(2) == 0 && !x.quiet(p, row.name) {
			return
		}
		skip := rng.IntN(1 << rng.IntN(11))
		hit := make(chan struct{})
		stop := x.disk.Inject(func(op vfstest.Op) error {
			if row.kind(op) {
				if skip--; skip == -1 {
					close(hit)
					return row.err
				}
			}
			return nil
		})
		over := make(chan struct{})
		if rng.IntN(2) == 0 { // and soon after it the power goes: a broker that goes on must not have believed in what was lost
			soon := x.rng.IntN(8)
			go func() {
				select {
				case <-hit:
					x.disk.CutAfter(soon)
				case <-over:
				}
			}()
		}
		if x.fails(p, row.name, row.err) {
			ended++
		}
		close(over)
		stop()
		for i, d := range []*vfstest.Disk{x.disk.AfterKill(), x.disk.AfterCut(vfstest.LoseAll), x.disk.AfterCut(x.rng.Uint64())} {
			if !t.Failed() {
				x.check(p.Clone(uint64(i)), d, vfstest.KeepAll)
			}
		}
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d errors, %d of which ended the broker (-seed %d)", n, ended, *seed)
}

// quiet is a life without errors.
func (x *trial) quiet(p *Plant, what string) bool {
	var log logBuffer
	l, err := start(x.disk, log.logger())
	if err != nil {
		x.t.Errorf("%s: %v", what, err)
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(20+x.rng.IntN(200))*time.Millisecond)
	defer cancel()
	p.Work(ctx, l.b.Addrs()[0])
	if err := l.end(); err != nil {
		x.t.Errorf("%s: a clean stop: %v\n%s", what, err, log.String())
		return false
	}
	p.Stopped()
	return true
}

// fails is a life with an error in it. It reports whether that ended the broker.
func (x *trial) fails(p *Plant, what string, cause error) bool {
	var log logBuffer
	l, err := start(x.disk, log.logger())
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(20+x.rng.IntN(200))*time.Millisecond)
		go func() {
			err := <-l.done
			l.done <- err
			cancel()
		}()
		p.Work(ctx, l.b.Addrs()[0])
		cancel()
		err = l.end()
	}
	var root syscall.Errno
	if errors.As(cause, &root); err != nil && !errors.Is(err, root) && !x.disk.Cut() {
		x.t.Errorf("%s: the broker ended with %v\n%s", what, err, log.String())
	}
	if err == nil {
		p.Stopped()
	} else {
		p.Crashed()
	}
	return err != nil
}

// TestBitFlips flips bits in every kind of file of a broker that was stopped. What comes after the next start is what was sent, to the last
// byte; and what does not come is reported: the broker does not start, or counts damage.
func TestBitFlips(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(*seed, 6))
	began := time.Now()
	outcomes := map[string]map[string]int{}
	for n := 0; n < *failures && !t.Failed() && !enough(began); {
		x := &trial{t: t, rng: rand.New(rand.NewPCG(rng.Uint64(), 1)), seed: *seed, disk: vfstest.NewDisk(vfstest.Never)}
		first := x.disk
		p := NewPlant(rng.Uint64(), true)
		for range 2 {
			if !x.quiet(p, "flips") {
				return
			}
		}
		kinds := map[string][]string{}
		for _, name := range x.disk.List() {
			kinds[kindOf(name)] = append(kinds[kindOf(name)], name)
		}
		for kind, names := range kinds {
			for range 3 {
				n++
				if outcomes[kind] == nil {
					outcomes[kind] = map[string]int{}
				}
				outcomes[kind][x.flip(p.Clone(rng.Uint64()), kind, names[rng.IntN(len(names))])]++
			}
		}
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	}
	for kind, of := range outcomes {
		t.Log(kind, of)
	}
}

// kindOf is what a file of the data directory is.
func kindOf(name string) string {
	if dir := path.Dir(name); strings.Contains(dir, "segments/") {
		return "segment"
	}
	return strings.TrimPrefix(path.Ext(name), ".") + path.Base(path.Dir(name))
}

// flip flips a bit of a file, starts a broker on it and says what became of it.
func (x *trial) flip(p *Plant, kind, name string) string {
	d := x.disk.AfterKill()
	b, err := d.ReadFile(name)
	if err != nil || len(b) == 0 {
		return "empty"
	}
	at := x.rng.Int64N(int64(len(b)))
	if x.rng.IntN(3) == 0 {
		at = x.rng.Int64N(min(64, int64(len(b)))) // a header
	}
	mask := byte(1) << x.rng.IntN(8)
	if err := d.Corrupt(name, at, mask); err != nil {
		x.t.Error(err)
		return "error"
	}
	var log logBuffer
	l, err := start(d, log.logger())
	if err != nil {
		if !strings.Contains(err.Error(), "data") {
			x.t.Errorf("%s at %d: it does not start, and does not say where: %v", name, at, err)
		}
		return "refused to start"
	}
	faults, err := p.Drain(l.b.Addrs()[0], 1500*time.Millisecond)
	damaged := l.b.Store().Stats().Damaged
	_ = l.end()
	p.Stopped()
	told := damaged > 0 || strings.Contains(log.String(), "level=WARN") || strings.Contains(log.String(), "level=ERROR")
	var worst []Fault
	for _, f := range faults {
		if f.Kind == Invented || f.Kind == Disordered || f.Kind == Unwelcome || !told {
			worst = append(worst, f)
		}
	}
	if len(worst) > 0 || err != nil && !told {
		x.t.Errorf("%s, bit %02x at %d of %d: %v (damage reported: %v)", name, mask, at, len(b), err, told)
		report(x.t, p, worst)
		x.t.Log(fmt.Sprint("broker: ", log.String()))
	}
	switch {
	case damaged > 0:
		return "counted"
	case told:
		return "logged"
	}
	return "harmless"
}
