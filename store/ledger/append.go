package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/edgemq/edgemq/store/vfs"
)

// Append writes entries for the offsets from Next on, with one write a file touched and no sync.
// After an error nothing counts as written, and the same Append may be tried again.
func (l *Ledger) Append(entries []Entry) error {
	if l.err != nil {
		return l.err
	}
	next := l.next.Load()
	for len(entries) > 0 {
		n := min(uint64(len(entries)), l.perFile-next%l.perFile)
		if err := l.write(next, entries[:n]); err != nil {
			return err
		}
		entries = entries[n:]
		next += n
	}
	l.next.Store(next) // only now, so that after an error in the second file all is written again
	return nil
}

// write writes entries that go to one file.
func (l *Ledger) write(offset uint64, entries []Entry) error {
	index, slot := offset/l.perFile, offset%l.perFile
	if l.tail == nil || l.tailFile != index {
		if err := l.openTail(index); err != nil {
			return err
		}
	}
	b, pos := l.buf[:0], int64(0)
	if slot == 0 {
		b = appendHeader(b, index, l.perFile) // again, though openTail has written it: one write less to get right
	} else {
		pos = headerSize + int64(slot)*EntrySize
	}
	for i := range entries {
		b = appendEntry(b, offset+uint64(i), &entries[i])
	}
	l.buf = b
	l.synced = false
	if _, err := l.tail.WriteAt(b, pos); err != nil {
		return fmt.Errorf("append to ledger: %w", err)
	}
	l.sent = vfs.Writeback(l.tail, l.sent, pos+int64(len(b))-l.sent) // so that Sync has less to wait for
	return nil
}

// openTail goes on to the file with the given index. The one before is synced, so Sync has one file to care for.
func (l *Ledger) openTail(index uint64) error {
	if err := l.Sync(); err != nil {
		return err
	}
	if !l.made {
		if err := l.fsys.MkdirAll(l.dir, 0o750); err != nil {
			return fmt.Errorf("make ledger directory: %w", err)
		}
		l.made, l.created = true, true
	}
	f, err := l.fsys.OpenFile(l.path(index), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return fmt.Errorf("open ledger file: %w", err)
	}
	l.created = true // or left by a process that was killed before it synced the name
	// The header is written, for a file that was there may be a leftover with a torn one; or with one that reads well and is
	// not on the disk, if a process failed to sync it. Only a header that counts already and is sound stays as it is: the
	// power may go while the drive is at it, and would cost what was certain.
	header, found := appendHeader(nil, index, l.perFile), make([]byte, headerSize)
	if _, err := f.ReadAt(found, 0); err != nil && !errors.Is(err, io.EOF) {
		return errors.Join(fmt.Errorf("read ledger header: %w", err), f.Close())
	}
	counts := max(l.certain[0], index*l.perFile) < min(l.certain[1], (index+1)*l.perFile)
	if !counts || !bytes.Equal(found, header) {
		if _, err := f.WriteAt(header, 0); err != nil {
			return errors.Join(fmt.Errorf("write ledger header: %w", err), f.Close())
		}
	}
	if l.tail != nil {
		err = l.tail.Close()
	}
	l.tail, l.tailFile, l.sent, l.synced = f, index, 0, false
	return err
}

// Sync makes what was appended durable, names included. After an error the Ledger takes nothing more.
func (l *Ledger) Sync() error {
	if l.err != nil || l.synced {
		return l.err
	}
	if err := l.tail.Datasync(); err != nil {
		l.err = fmt.Errorf("sync ledger: %w", err)
		return l.err
	}
	if l.created {
		if err := errors.Join(l.fsys.SyncDir(l.dir), l.fsys.SyncDir(filepath.Dir(l.dir))); err != nil {
			err = fmt.Errorf("sync ledger directory: %w", err)
			if !vfs.Scarce(err) { // else nothing was tried
				l.err = err
			}
			return err
		}
	}
	l.synced, l.created = true, false
	return nil
}
