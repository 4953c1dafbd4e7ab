package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/edgemq/edgemq/store/vfs"
)

// Disk is what a disk does for a log.
type Disk struct {
	Dir          string  `json:"dir"`
	Commit       Latency `json:"commit_4k"`                // write and fdatasync of 4 KiB in a file that is allocated, as the journal has it
	Commits      int     `json:"commits_4k"`               // how many were measured
	Group        Latency `json:"commit_64k"`               // the same with 64 KiB: a group of many messages
	Create       Latency `json:"create"`                   // a new file and its name made durable
	MBps         float64 `json:"sequential_mb_per_second"` // written in pieces of 1 MiB, the fsync at the end included
	SequentialMB int     `json:"sequential_mb"`
}

const (
	commitSize = 4 << 10
	groupSize  = 64 << 10
	diskFile   = 64 << 20
)

// MeasureDisk measures the disk that holds dir, each part of it for as long as given. What it writes it removes.
func MeasureDisk(ctx context.Context, dir string, each time.Duration) (d *Disk, err error) {
	work, err := os.MkdirTemp(dir, "edgemq-bench-disk-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	d = &Disk{Dir: dir}
	f, err := vfs.OS.OpenFile(filepath.Join(work, "journal"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := errors.Join(f.Preallocate(diskFile), f.Sync()); err != nil {
		return nil, err
	}
	small, err := commits(ctx, f, commitSize, each)
	if err != nil {
		return nil, err
	}
	large, err := commits(ctx, f, groupSize, each)
	if err != nil {
		return nil, err
	}
	created, err := creations(ctx, work, each/2)
	if err != nil {
		return nil, err
	}
	d.Commit, d.Commits, d.Group, d.Create = *small.Latency(), int(small.n), *large.Latency(), *created.Latency()
	d.MBps, d.SequentialMB, err = sequential(ctx, filepath.Join(work, "sequential"), each)
	return d, err
}

// commits writes and syncs pieces, one behind the other and round again.
func commits(ctx context.Context, f vfs.File, size int, d time.Duration) (*Histogram, error) {
	var h Histogram
	b := filler(size)
	end := time.Now().Add(d)
	for pos := int64(0); h.n == 0 || time.Now().Before(end); pos = (pos + int64(size)) % diskFile {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		t := time.Now()
		if _, err := f.WriteAt(b, pos); err != nil {
			return nil, err
		}
		if err := f.Datasync(); err != nil {
			return nil, err
		}
		h.Add(time.Since(t), 1)
	}
	return &h, nil
}

// creations makes files, and their names durable.
func creations(ctx context.Context, dir string, d time.Duration) (*Histogram, error) {
	var h Histogram
	name := filepath.Join(dir, "new")
	end := time.Now().Add(d)
	for h.n == 0 || time.Now().Before(end) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		t := time.Now()
		f, err := vfs.OS.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, err
		}
		if _, err = f.WriteAt([]byte{1}, 0); err == nil {
			err = f.Sync()
		}
		if err := errors.Join(err, f.Close(), vfs.OS.SyncDir(dir)); err != nil {
			return nil, err
		}
		h.Add(time.Since(t), 1)
		if err := vfs.OS.Remove(name); err != nil {
			return nil, err
		}
	}
	return &h, nil
}

// sequential writes a new file for a while, and syncs it.
func sequential(ctx context.Context, name string, d time.Duration) (mbps float64, mb int, err error) {
	f, err := vfs.OS.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b := filler(1 << 20)
	start := time.Now()
	var pos int64
	// The sync every 64 MiB bounds what the page cache takes without the disk having seen it.
	for ; pos == 0 || time.Since(start) < d; pos += int64(len(b)) {
		if ctx.Err() != nil {
			return 0, 0, ctx.Err()
		}
		if _, err := f.WriteAt(b, pos); err != nil {
			return 0, 0, err
		}
		if pos%diskFile == diskFile-int64(len(b)) {
			if err := f.Datasync(); err != nil {
				return 0, 0, err
			}
		}
	}
	if err := f.Sync(); err != nil {
		return 0, 0, err
	}
	return float64(pos) / 1e6 / time.Since(start).Seconds(), int(pos / 1e6), nil
}
