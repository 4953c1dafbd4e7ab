package state

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// grown is the file of a state that has everything bbolt knows: trees with branches, inline buckets, overflow and free pages.
func grown(t *testing.T) []byte {
	t.Helper()
	name := filepath.Join(t.TempDir(), "state.db")
	db, err := bolt.Open(name, 0o600, &bolt.Options{PageSize: 4096, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	update := func(fn func(large, small *bolt.Bucket) error) {
		t.Helper()
		err := db.Update(func(tx *bolt.Tx) error {
			large, err := tx.CreateBucketIfNotExists([]byte("large"))
			if err != nil {
				return err
			}
			small, err := tx.CreateBucketIfNotExists([]byte("small"))
			if err != nil {
				return err
			}
			return fn(large, small)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for round := range 3 {
		update(func(large, small *bolt.Bucket) error {
			for i := range 300 {
				if err := large.Put(fmt.Appendf(nil, "key%d/%d", round, i), bytes.Repeat([]byte{byte(i)}, i)); err != nil {
					return err
				}
			}
			if err := large.Put(fmt.Appendf(nil, "huge%d", round), make([]byte, 20_000)); err != nil {
				return err
			}
			return small.Put([]byte{byte(round)}, []byte("value"))
		})
	}
	update(func(large, _ *bolt.Bucket) error {
		for i := range 300 {
			if err := large.Delete(fmt.Appendf(nil, "key1/%d", i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDamagedPages: what checkPages lets through, bbolt reads to the end, checks and changes without a fault. It is called here as it
// is, so that a fault ends the test.
func TestDamagedPages(t *testing.T) {
	sound := grown(t)
	if _, err := checkPages(bytes.NewReader(sound), int64(len(sound))); err != nil {
		t.Fatal("a sound file:", err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	dir := t.TempDir()
	passed, refused := 0, 0
	n := 3000
	if testing.Short() {
		n = 300
	}
	for i := range n {
		b := bytes.Clone(sound)
		page := rng.IntN(len(b)/4096) * 4096
		pos := page + rng.IntN(64) // headers and elements are what matters
		if i%4 == 0 {
			pos = rng.IntN(len(b))
		}
		b[pos] ^= 1 << rng.IntN(8)
		if _, err := checkPages(bytes.NewReader(b), int64(len(b))); err != nil {
			refused++
			continue
		}
		passed++
		if i%5 != 0 {
			continue // the rest is slow
		}
		name := filepath.Join(dir, "state.db")
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		use(t, name)
	}
	if passed < n/10 || refused < n/10 {
		t.Errorf("%d passed, %d refused: this tests little", passed, refused)
	}
}

// use does with a file what the state does.
func use(t *testing.T, name string) {
	t.Helper()
	db, err := bolt.Open(name, 0o600, &bolt.Options{PageSize: 4096, NoSync: true, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return
	}
	defer db.Close()
	err = db.Update(func(tx *bolt.Tx) error {
		for range tx.Check() { //nolint:revive // to the end
		}
		b := tx.Bucket([]byte("large"))
		if b == nil {
			return nil // its name was hit
		}
		var keys [][]byte
		err := b.ForEach(func(k, _ []byte) error {
			keys = append(keys, bytes.Clone(k))
			return nil
		})
		for _, k := range keys {
			b.Get(k)
		}
		if err == nil && len(keys) > 0 {
			err = b.Put(keys[0], make([]byte, 9000))
		}
		return err
	})
	if err != nil {
		t.Log(err)
	}
}

func TestPagesCutShort(t *testing.T) {
	sound := grown(t)
	for _, size := range []int{0, 100, 4096, 8192, len(sound) / 2 &^ 4095} {
		if _, err := checkPages(bytes.NewReader(sound[:size]), int64(size)); err == nil {
			t.Errorf("%d of %d bytes are taken for a whole file", size, len(sound))
		}
	}
}

// FuzzPages: no file makes the walk panic or run away.
func FuzzPages(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 3*4096))
	f.Fuzz(func(t *testing.T, patch []byte) {
		b := make([]byte, 4*4096)
		copy(b, patch)
		for i := range 4 { // so that most are no meta pages, but what meta pages lead to
			order.PutUint64(b[i*4096:], uint64(i))
		}
		p := pages{r: bytes.NewReader(b), size: 4096, high: 4, seen: make([]bool, 4)}
		_ = p.tree(2)
		_ = p.free(3)
	})
}

// What is found in pages, however damaged, has its checksum.
func FuzzScanLeaf(f *testing.F) {
	leaf := make([]byte, pageHeader+pageElement)
	order.PutUint16(leaf[8:], leafPage)
	order.PutUint16(leaf[10:], 1)
	order.PutUint32(leaf[pageHeader+4:], pageElement)
	order.PutUint32(leaf[pageHeader+8:], 1)
	value := seal("topics", []byte("k"), []byte("value"))
	order.PutUint32(leaf[pageHeader+12:], uint32(len(value)))
	leaf = append(append(leaf, 'k'), value...)
	found := 0
	scanLeaf(leaf, func(_ Bucket, _, _ []byte) { found++ })
	if found != 1 {
		f.Fatal("not found")
	}
	f.Add(leaf)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < pageHeader {
			return
		}
		scanLeaf(b, func(b Bucket, key, value []byte) {
			if sealed := seal(b.String(), key, value); len(key) == 0 || len(sealed) != len(value)+sumSize {
				t.Fatalf("%v %x %x", b, key, value)
			}
		})
	})
}
