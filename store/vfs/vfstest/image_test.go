package vfstest

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/edgemq/edgemq/store/vfs"
)

// seeds is how many images a test looks at to see what may happen.
const seeds = 200

// garbage stands for images with bytes that nobody wrote.
const garbage = "garbage"

// show describes the files of an image as "name=content …".
func show(t *testing.T, d *Disk) string {
	t.Helper()
	var all []string
	for _, name := range d.List() {
		b, err := d.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, name+"="+short(b))
	}
	return strings.Join(all, " ")
}

// short writes runs of one byte as the byte, so "aaaabb\0" is "ab.".
func short(b []byte) string {
	var s []byte
	for i, c := range b {
		if c == 0 {
			c = '.'
		}
		if i == 0 || b[i-1] != b[i] {
			s = append(s, c)
		}
	}
	return string(s)
}

func fill(c byte) string { return strings.Repeat(string(c), sectorBytes) }

// TestImages checks for each state of a disk what a machine may find after a power cut: all of it must show for
// some seed, and nothing else for any.
func TestImages(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(t *testing.T, d *Disk)
		want []string
	}{
		{"a synced file with a synced name stays", func(t *testing.T, d *Disk) {
			f := put(t, d, "a", "x")
			must(t, f.Datasync(), d.SyncDir("."))
		}, []string{"a=x"}},
		{"Sync is as good as Datasync", func(t *testing.T, d *Disk) {
			f := put(t, d, "a", "x")
			must(t, f.Sync(), d.SyncDir("."))
		}, []string{"a=x"}},
		{"a synced file without a synced name may vanish", func(t *testing.T, d *Disk) {
			must(t, put(t, d, "a", "x").Datasync())
		}, []string{"a=x", ""}},
		{"a write without a sync may be lost, its size may come without it", func(t *testing.T, d *Disk) {
			put(t, d, "a", "x")
			must(t, d.SyncDir("."))
		}, []string{"a=x", "a=", "a=.", garbage}},
		{"sectors of a write are lost one by one", func(t *testing.T, d *Disk) {
			f := put(t, d, "a", fill('x')+fill('x')+fill('x'))
			must(t, f.Datasync(), d.SyncDir("."))
			write(t, f, 0, fill('y')+fill('y')+fill('y'))
		}, []string{"a=x", "a=y", "a=xy", "a=yx", "a=xyx", "a=yxy", garbage}},
		{"a later write may be there without an earlier one", func(t *testing.T, d *Disk) {
			f := put(t, d, "a", fill('x')+fill('x'))
			must(t, f.Datasync(), d.SyncDir("."))
			write(t, f, 0, fill('1'))
			write(t, f, sectorBytes, fill('2'))
		}, []string{"a=x", "a=1x", "a=x2", "a=12", garbage}},
		{"but not in one sector", func(t *testing.T, d *Disk) {
			f := put(t, d, "a", "xx")
			must(t, f.Datasync(), d.SyncDir("."))
			write(t, f, 0, "1")
			write(t, f, 1, "2")
		}, []string{"a=x", "a=1x", "a=12", garbage}},
		{"a truncation without a sync may be lost", func(t *testing.T, d *Disk) {
			f := put(t, d, "a", "xyz")
			must(t, f.Datasync(), d.SyncDir("."), f.Truncate(1))
		}, []string{"a=xyz", "a=x"}},
		{"so may one by O_TRUNC", func(t *testing.T, d *Disk) {
			must(t, put(t, d, "a", "xyz").Datasync(), d.SyncDir("."))
			f, err := d.OpenFile("a", os.O_RDWR|os.O_TRUNC, 0)
			must(t, err, f.Close())
		}, []string{"a=xyz", "a="}},
		{"a preallocated size needs a sync", func(t *testing.T, d *Disk) {
			f := put(t, d, "a", "")
			must(t, d.SyncDir("."), f.Preallocate(8192))
		}, []string{"a=", "a=."}},
		{"and has it with one", func(t *testing.T, d *Disk) {
			f := put(t, d, "a", "")
			must(t, d.SyncDir("."), f.Preallocate(8192), f.Datasync())
		}, []string{"a=."}},
		{"a removed file may come back", func(t *testing.T, d *Disk) {
			must(t, put(t, d, "a", "x").Datasync(), d.SyncDir("."), d.Remove("a"))
		}, []string{"a=x", ""}},
		{"not after SyncDir", func(t *testing.T, d *Disk) {
			must(t, put(t, d, "a", "x").Datasync(), d.SyncDir("."), d.Remove("a"), d.SyncDir("."))
		}, []string{""}},
		{"a rename is done or not", func(t *testing.T, d *Disk) {
			must(t, put(t, d, "a", "new").Datasync(), put(t, d, "b", "old").Datasync(), d.SyncDir("."), d.Rename("a", "b"))
		}, []string{"a=new b=old", "b=new"}},
		{"and done after SyncDir", func(t *testing.T, d *Disk) {
			must(t, put(t, d, "a", "new").Datasync(), put(t, d, "b", "old").Datasync(), d.SyncDir("."), d.Rename("a", "b"),
				d.SyncDir("."))
		}, []string{"b=new"}},
		{"a rename of an unsynced file may show an empty one", func(t *testing.T, d *Disk) {
			must(t, put(t, d, "b", "old").Datasync(), d.SyncDir("."))
			put(t, d, "a", "n")
			must(t, d.Rename("a", "b"), d.SyncDir("."))
		}, []string{"b=n", "b=", "b=.", garbage}},
		{"a rename between directories is settled by either", func(t *testing.T, d *Disk) {
			must(t, vfs.MkdirAll(d, "x", 0o700), vfs.MkdirAll(d, "y", 0o700))
			must(t, put(t, d, "x/a", "1").Datasync(), d.Rename("x/a", "y/b"), d.SyncDir("x"))
		}, []string{"y/b=1"}},
		{"names are lost each for itself", func(t *testing.T, d *Disk) {
			must(t, put(t, d, "a", "1").Datasync(), put(t, d, "b", "2").Datasync())
		}, []string{"", "a=1", "b=2", "a=1 b=2"}},
		{"a file goes with its directory", func(t *testing.T, d *Disk) {
			must(t, d.MkdirAll("x", 0o700), put(t, d, "x/a", "1").Datasync(), d.SyncDir("x"))
		}, []string{"", "x/a=1"}},
		{"a name that was used twice has one file of them", func(t *testing.T, d *Disk) {
			must(t, put(t, d, "a", "1").Datasync(), d.SyncDir("."), d.Remove("a"), put(t, d, "a", "2").Datasync())
		}, []string{"", "a=1", "a=2"}},
		{"a failed sync drops the writes, and a good one does not bring them back", func(t *testing.T, d *Disk) {
			f := put(t, d, "a", "x")
			must(t, f.Datasync(), d.SyncDir("."))
			write(t, f, 0, "y")
			stop := d.Inject(On(Datasync, "a", syscall.EIO))
			wantErr(t, "sync", f.Datasync(), syscall.EIO)
			stop()
			must(t, f.Datasync())
			if got := get(t, d, "a"); got != "y" {
				t.Errorf("a process reads %q", got)
			}
		}, []string{"a=x"}},
		{"a sync that worked and failed", func(t *testing.T, d *Disk) {
			f := put(t, d, "a", "x")
			must(t, d.SyncDir("."))
			d.Inject(On(Datasync, "a", &After{syscall.EIO}))
			wantErr(t, "sync", f.Datasync(), syscall.EIO)
		}, []string{"a=x"}},
		{"a short write", func(t *testing.T, d *Disk) {
			f := put(t, d, "a", "xxx")
			d.Inject(On(Write, "a", &Short{1, syscall.ENOSPC}))
			n, err := f.WriteAt([]byte("yyy"), 0)
			wantErr(t, "write", err, syscall.ENOSPC)
			if n != 1 {
				t.Errorf("%d bytes written", n)
			}
			must(t, f.Datasync(), d.SyncDir("."))
		}, []string{"a=yx"}},
		{"a corrupted byte", func(t *testing.T, d *Disk) {
			must(t, put(t, d, "a", "xxx").Datasync(), d.SyncDir("."), d.Corrupt("a", 1, 1))
		}, []string{"a=xyx"}},
		{"WriteFile is certain", func(t *testing.T, d *Disk) {
			d.WriteFile("/x/y/a", []byte("1"))
			d.WriteFile("x/b", []byte("2"))
		}, []string{"x/b=2 x/y/a=1"}},
		{"an external file has a name after SyncDir", func(t *testing.T, d *Disk) {
			commit(t, d, "s", "1")
			must(t, d.SyncDir("."))
		}, []string{"s=1"}},
		{"and may have none before", func(t *testing.T, d *Disk) {
			commit(t, d, "s", "1")
		}, []string{"", "s=1"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := newDisk(t)
			row.do(t, d)
			seen := make(map[string]bool)
			for seed := range uint64(seeds) {
				got := show(t, d.AfterCut(seed))
				if again := show(t, d.AfterCut(seed)); again != got {
					t.Errorf("seed %d shows %q, then %q", seed, got, again)
				}
				seen[got] = true
			}
			for _, want := range row.want {
				if want != garbage && !seen[want] {
					t.Errorf("%q never shows", want)
				}
				delete(seen, want)
			}
			if len(seen) > 0 != slices.Contains(row.want, garbage) {
				t.Errorf("these show too: %q", slices.Collect(maps.Keys(seen)))
			}
		})
	}
}

func commit(t *testing.T, d *Disk, name, content string) {
	t.Helper()
	real, err := d.External(name)
	must(t, err, d.Commit(name, func() error { return os.WriteFile(real, []byte(content), 0o600) }))
}

func TestFixedSeeds(t *testing.T) {
	d := newDisk(t)
	f := put(t, d, "a", "old")
	must(t, f.Datasync(), d.SyncDir("."))
	write(t, f, 0, "new")
	put(t, d, "b", "1")
	for seed, want := range map[uint64]string{LoseAll: "a=old", KeepAll: "a=new b=1"} {
		if got := show(t, d.AfterCut(seed)); got != want {
			t.Errorf("seed %d: %q, want %q", seed, got, want)
		}
	}
	for k := range 100 { // InOrder never shows the second without the first
		d.CutAfter(k)
		if got := show(t, d.AfterCut(InOrder)); got == "a=old b=1" {
			t.Errorf("order lost: %q", got)
		}
	}
}

// TestGarbage: the sector that is being written may hold anything, but only in the bytes of the write, unless TearSectors.
func TestGarbage(t *testing.T) {
	for _, tear := range []bool{false, true} {
		d := newDisk(t)
		f := put(t, d, "a", strings.Repeat("x", 3*sectorBytes))
		must(t, f.Datasync(), d.SyncDir("."))
		d.TearSectors(func(string) bool { return tear })
		d.CutAfter(0)
		if n, err := f.WriteAt([]byte(strings.Repeat("y", 100)), sectorBytes+50); n != 0 || !errors.Is(err, ErrPowerCut) {
			t.Fatalf("wrote %d: %v", n, err)
		}
		var garbage, spread int
		for seed := range uint64(seeds) {
			b, err := d.AfterCut(seed).ReadFile("a")
			must(t, err)
			if strings.Trim(string(b[sectorBytes+50:][:100]), "xy") != "" {
				garbage++
			}
			if strings.Trim(string(b[sectorBytes:][:50]), "x") != "" {
				spread++
			}
			if b = append(b[:sectorBytes], b[2*sectorBytes:]...); strings.Trim(string(b), "x") != "" {
				t.Fatal("another sector was hurt")
			}
		}
		if garbage == 0 || spread > 0 != tear {
			t.Errorf("tear %v: garbage %d times, in bytes not written %d times", tear, garbage, spread)
		}
	}
}

// TestImagesAreApart: neither an image nor what is done to it later changes the disk, and the other way round.
func TestImagesAreApart(t *testing.T) {
	d := newDisk(t)
	f := put(t, d, "a", "x")
	must(t, f.Datasync(), d.SyncDir("."))
	image := d.AfterCut(LoseAll)
	write(t, f, 0, "y")
	must(t, f.Datasync())
	g, err := image.OpenFile("a", os.O_RDWR, 0)
	must(t, err)
	write(t, g, 1, "z")
	must(t, g.Close())
	if show(t, d) != "a=y" || show(t, image) != "a=xz" {
		t.Errorf("disk %q, image %q", show(t, d), show(t, image))
	}
}

// TestAfterKill: the next process reads all, and a power cut still takes back what was not certain.
func TestAfterKill(t *testing.T) {
	d := newDisk(t)
	must(t, vfs.MkdirAll(d, "x", 0o700))
	f := put(t, d, "x/a", "old")
	must(t, f.Datasync(), d.SyncDir("x"))
	write(t, f, 0, "new")
	must(t, put(t, d, "x/b", "1").Datasync(), d.Rename("x/b", "x/c"), put(t, d, "x/d", "2").Datasync(), d.Remove("x/d"))
	commit(t, d, "s", "state")
	lock, err := d.Lock("LOCK")
	must(t, err)
	d.CutAfter(0)
	_, err = f.WriteAt([]byte("N"), 0) // the process dies in this call
	wantErr(t, "write", err, ErrPowerCut)

	k := d.AfterKill()
	if got, want := show(t, k), "LOCK= s=state x/a=New x/c=1"; got != want {
		t.Errorf("the next process finds %q, want %q", got, want)
	}
	if l, err := k.Lock("LOCK"); err != nil {
		t.Error("the lock outlives the process:", err)
	} else {
		must(t, l.Close())
	}
	if got, want := show(t, k.AfterCut(LoseAll)), "x/a=old"; got != want {
		t.Errorf("after a power cut there is %q, want %q", got, want)
	}
	g, err := k.OpenFile("x/a", os.O_RDWR, 0)
	must(t, err, g.Datasync(), k.SyncDir("x"), k.SyncDir("."), g.Close())
	if got, want := show(t, k.AfterCut(LoseAll)), "LOCK= s=state x/a=New x/c=1"; got != want {
		t.Errorf("after syncs and a power cut there is %q, want %q", got, want)
	}
	if got := show(t, d.AfterCut(LoseAll)); got != "x/a=old" {
		t.Errorf("the first disk has changed: %q", got)
	}
	must(t, lock.Close())
}
