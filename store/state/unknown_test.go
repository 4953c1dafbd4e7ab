package state

import (
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// A damaged value of a bucket that this build does not know is named as what it is, and repair deletes it.
func TestDamageInAnUnknownBucket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	d := open(t, vfs.OS, path)
	if err := d.Save(Checkpoint{First: 1, Next: 1}, []record.Mutation{put("a", "1")}); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Update(func(tx *bolt.Tx) error {
		x, err := tx.CreateBucket([]byte("future"))
		if err != nil {
			return err
		}
		value := seal("future", []byte("k"), []byte("v"))
		s, err := parseSums(tx.Bucket(metaName).Get(sumsKey))
		if err != nil {
			return err
		}
		s.replace("future", nil, value)
		value[0] ^= 1
		if err := x.Put([]byte("k"), value); err != nil {
			return err
		}
		return tx.Bucket(metaName).Put(sumsKey, s.append(nil))
	}); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, vfs.OS, path)
	if bad := d.Damaged(); len(bad) != 1 || bad[0].Bucket != 0 || bad[0].Error() != `bucket future, key "k": checksum does not match` {
		t.Fatalf("damaged: %v", bad)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	deleted, accepted, err := Repair(vfs.OS, path, func(Damaged) bool { return false })
	if len(deleted) != 1 || deleted[0].Name != "future" || accepted != nil || err != nil {
		t.Fatalf("repair: %v, %v, %v", deleted, accepted, err)
	}
	d = open(t, vfs.OS, path)
	if bad := d.Damaged(); len(bad) > 0 || contents(t, d, "") != "a=1" {
		t.Errorf("after the repair: %v, %s", bad, contents(t, d, ""))
	}
}
