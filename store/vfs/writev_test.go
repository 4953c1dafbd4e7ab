package vfs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/edgemq/edgemq/store/vfs"
)

// plain hides what a file can do beside File.
type plain struct{ vfs.File }

func TestWriteV(t *testing.T) {
	for _, row := range []struct {
		name string
		bufs int
		size int
	}{{"none", 0, 0}, {"one", 1, 100}, {"empty ones", 5, 0}, {"more than one call takes", 2500, 7}, {"large", 3, 1 << 20}} {
		t.Run(row.name, func(t *testing.T) {
			f, err := vfs.OS.OpenFile(filepath.Join(t.TempDir(), "a"), os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for i, file := range []vfs.File{f, plain{f}} {
				want := []byte("head")
				if _, err := file.WriteAt(want, 0); err != nil {
					t.Fatal(err)
				}
				var bufs [][]byte
				for n := range row.bufs {
					b := bytes.Repeat([]byte{byte(n + i)}, row.size)
					bufs = append(bufs, b)
					want = append(want, b...)
				}
				if err := vfs.WriteV(file, bufs, 4); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, len(want)+1)
				if n, _ := file.ReadAt(got, 0); !bytes.Equal(got[:n], want) {
					t.Errorf("%d bytes read, %d written, and they differ", n, len(want))
				}
			}
			if err := vfs.WriteV(f, [][]byte{{1}}, -1); err == nil {
				t.Error("a write before the start is no error")
			}
		})
	}
}
