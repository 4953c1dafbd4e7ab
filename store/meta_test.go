package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestEitherMetaPage: state.db has two meta pages, written in turn. Whichever of them is damaged, bbolt goes on with the other, and with the
// checkpoint that it has; nothing acknowledged may be lost by that, and nothing reported as damaged that is not.
func TestEitherMetaPage(t *testing.T) {
	for _, kill := range []bool{false, true} {
		for page := range 2 {
			t.Run(fmt.Sprintf("kill=%v page=%d", kill, page), func(t *testing.T) {
				o := small(t.TempDir())
				o.JournalFileBytes, o.CheckpointBytes = 64<<10, 1<<30
				r := start(t, o)
				topic, c := r.topic("a"), r.client("c")
				n := 0
				work := func(to int) {
					for ; n < to; n++ {
						r.put(numbered(topic, c, n, 3000))
					}
				}
				end := func() {
					if kill {
						r.kill()
					} else {
						r.end()
					}
				}
				check := func() {
					t.Helper()
					if got := r.numbers("a"); len(got) != n {
						t.Errorf("%d messages, of %d", len(got), n)
					}
					if st := r.Stats(); st.Damaged != 0 {
						t.Errorf("%d reported as damaged", st.Damaged)
					}
				}
				for range 3 {
					work(n + 60) // several journal files, of those that are free
					r.checkpointAll()
				}
				work(n + 60)
				end()
				for range 3 {
					hurtMeta(t, o.Dir, page)
					r = start(t, o)
					check()
					work(n + 60)
					end()
				}
			})
		}
	}
}

// hurtMeta flips a bit in the checksum of a meta page.
func hurtMeta(t *testing.T, dir string, page int) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "state.db"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := int64(page)*4096 + 16 + 60
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}
