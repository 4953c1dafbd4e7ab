package store_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// survey counts what a store still has. Records may be missing, but what is read must be right, in order and there once.
func (w *world) survey(s *store.Store, names bool) (n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	records, err := readAll(s, s.First(), 1)
	if err != nil {
		return 0, err
	}
	last := make(map[string]int) // append and message
	for i, r := range records {
		if i > 0 && r.Offset <= records[i-1].Offset {
			return 0, fmt.Errorf("offset %d follows %d", r.Offset, records[i-1].Offset)
		}
		client, no, j, err := parse(r.Payload)
		if err != nil {
			return 0, err
		}
		if c := w.clients[client]; c == nil || no > len(c.appends) || c.appends[no-1].refused || j >= len(c.appends[no-1].messages) {
			return 0, fmt.Errorf("message %d of append %d of %q was never stored", j, no, client)
		}
		m := w.clients[client].appends[no-1].messages[j]
		if !names { // they come from a file that is damaged and has no checksums
			m.topic, client = s.TopicName(r.Topic), s.ClientName(r.Client)
		}
		if err := same(s, client, m, r); err != nil {
			return 0, fmt.Errorf("offset %d: %w", r.Offset, err)
		}
		if at := no<<8 | j; at <= last[client] {
			return 0, fmt.Errorf("message %d of append %d of %s is out of order or there twice", j, no, client)
		} else {
			last[client] = at
		}
		if !r.Flags.Has(record.FlagTransient) {
			n++
		}
	}
	return n, nil
}

// places are byte positions worth hurting in a file of a size: its header, and some of the rest.
func places(size int, rng *rand.Rand, n int) []int {
	var at []int
	for _, p := range []int{0, 4, 9, 20, 50} {
		if p < size {
			at = append(at, p)
		}
	}
	for range n {
		at = append(at, rng.IntN(size))
	}
	return at
}

// TestFlippedBits flips bits in every file of a store, one at a time. A start may fail for a damaged state.db and for nothing else.
// All that is not hit itself is read back, what is hit is missing and counted, and nothing wrong is ever read.
func TestFlippedBits(t *testing.T) {
	for _, row := range []struct {
		name  string
		clean bool // stopped cleanly; otherwise all is in the journal
	}{{"stopped", true}, {"killed", false}} {
		t.Run(row.name, func(t *testing.T) {
			w, d := newWorld(), vfstest.NewDisk(vfstest.Never)
			defer d.Close()
			image := new(vfstest.Disk)
			synctest.Test(t, func(t *testing.T) {
				o := w.options(d)
				o.RetainBytes = 0
				if !row.clean {
					o.CheckpointBytes, o.CheckpointInterval = 1<<30, 1000*time.Hour
				}
				x, err := w.start(o)
				if err != nil {
					t.Fatal(err)
				}
				x.work(t, 8)
				if !row.clean {
					image = d.AfterCut(vfstest.KeepAll)
				}
				if err := x.end(t); err != nil {
					t.Error(err)
				}
				if row.clean {
					image = d.AfterCut(vfstest.KeepAll)
				}
			})
			w.protect = 0
			whole, _ := w.flip(t, image, "", 0)
			if whole < 40 {
				t.Fatalf("%d records before anything is damaged", whole)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for _, name := range image.List() {
				b, err := image.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				if len(b) == 0 {
					continue
				}
				n := 25
				if testing.Short() {
					n = 2
				}
				for _, pos := range places(len(b), rng, n) {
					left, noticed := w.flip(t, image, name, pos)
					last := bytes.LastIndex(b, []byte("EMQG"))
					lastGroup := path.Ext(name) == ".jrn" && last >= 0 && pos >= last && left >= whole-int(binary.LittleEndian.Uint32(b[last+48:]))
					if left < whole && !noticed && !lastGroup { // which nobody can tell from one that was torn before it was acknowledged
						t.Errorf("%s at %d of %d: %d of %d records left, and nothing says so", name, pos, len(b), left, whole)
					}
					// A record's own bytes cost it alone; a group in the journal, a header or a page of the state more.
					limit := whole - 1
					switch path.Ext(name) {
					case ".jrn":
						limit = whole - 20
						if row.clean {
							limit = whole
						}
					case ".seg", ".ldg":
						if pos < 64 {
							limit = 0
						}
					case ".db":
						limit = 0
					default:
						limit = whole
					}
					if left < limit {
						t.Errorf("%s at %d of %d: %d of %d records left", name, pos, len(b), left, whole)
					}
				}
			}
		})
	}
}

// flip opens a copy of image with one bit flipped and returns how many records are left, and whether the store and Verify noticed.
func (w *world) flip(t *testing.T, image *vfstest.Disk, name string, pos int) (left int, noticed bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := image.AfterCut(vfstest.KeepAll)
		defer d.Close()
		if name != "" {
			if err := d.Corrupt(name, int64(pos), 1<<(pos%8)); err != nil {
				t.Fatal(err)
			}
		}
		o := w.options(d)
		o.RetainBytes = 0
		_, err := store.Verify(o)
		if name == "" && err != nil {
			t.Error(err)
		}
		verified := errors.Is(err, store.ErrDamaged)
		x, err := w.start(o)
		if err != nil {
			noticed = verified
			if path.Ext(name) != ".db" {
				t.Errorf("%s at %d: open: %v", name, pos, err)
			} else if !strings.Contains(err.Error(), "state.db") {
				t.Errorf("%s at %d: the error names no file: %v", name, pos, err)
			}
			return
		}
		if left, err = w.survey(x.s, path.Ext(name) != ".db"); err != nil {
			t.Errorf("%s at %d: %v", name, pos, err)
		}
		noticed = verified && x.s.Stats().Damaged > 0
		if err := x.append("persistent", true); err != nil {
			t.Errorf("%s at %d: append: %v", name, pos, err)
		}
		if err := x.end(t); err != nil && path.Ext(name) != ".db" {
			t.Errorf("%s at %d: stop: %v", name, pos, err)
		}
		c := w.clients["persistent"]
		c.appends = c.appends[:len(c.appends)-1]
	})
	return left, noticed
}
