package vfstest

import (
	"os"
	"testing"
)

func TestSmoke(t *testing.T) {
	for k := 0; ; k++ {
		d := NewDisk(k)
		var acked bool
		func() {
			if d.MkdirAll("/data/x", 0o700) != nil {
				return
			}
			if d.SyncDir("/") != nil || d.SyncDir("/data") != nil {
				return
			}
			f, err := d.OpenFile("/data/x/a", os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				return
			}
			if _, err := f.WriteAt([]byte("hello"), 1000); err != nil {
				return
			}
			if f.Datasync() != nil || d.SyncDir("/data/x") != nil {
				return
			}
			acked = true
		}()
		if !d.Cut() {
			return
		}
		for seed := range uint64(20) {
			b, _ := d.AfterCut(seed).ReadFile("data/x/a")
			if acked && (len(b) != 1005 || string(b[1000:]) != "hello") {
				t.Fatal(k, seed, len(b))
			}
		}
	}
}
