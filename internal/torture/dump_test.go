package torture

import (
	"fmt"
	"strings"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/journal"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// dump tells what a disk holds that explains who gets what: the groups of the journal, from the oldest that is whole, and what recovery makes
// of them. It works on copies.
func dump(d *vfstest.Disk) string {
	var b strings.Builder
	from := journal.Position{File: 1, Group: 1}
	j, err := journal.Open(journal.Options{Dir: "data/journal", ReadOnly: true, FS: d.AfterCut(vfstest.KeepAll)}, from)
	if err != nil {
		return err.Error()
	}
	_, err = j.Replay(func(g journal.Group) error {
		fmt.Fprintf(&b, "group %d, offsets from %d\n", g.Seq, g.Base)
		for rest := g.Records; len(rest) > 0; {
			r, n, err := record.Parse(rest)
			if err != nil {
				return err
			}
			rest = rest[n:]
			fmt.Fprintf(&b, "  %d: client %d id %d QoS %d %.40q\n", r.Offset, r.Client, r.PacketID, r.Flags.QoS(), r.Payload)
		}
		for rest := g.Mutations; len(rest) > 0; {
			m, n, err := record.ParseMutation(rest)
			if err != nil {
				return err
			}
			rest = rest[n:]
			fmt.Fprintf(&b, "  %v %q = %x\n", m.Bucket, m.Key, m.Value)
		}
		return nil
	})
	fmt.Fprintln(&b, "end of the journal:", err, j.Close())
	s, err := store.Open(store.Options{Dir: "data", FS: d.AfterCut(vfstest.KeepAll)})
	if err != nil {
		return b.String() + err.Error()
	}
	fmt.Fprintln(&b, "recovered: offsets from", s.First(), "to below", s.Next())
	for _, bucket := range []record.Bucket{record.BucketInflight, record.BucketCursors, record.BucketSubscriptions, record.BucketBindings} {
		_ = s.Range(bucket, nil, func(k, v []byte) bool {
			fmt.Fprintf(&b, "%v %q = %x\n", bucket, k, v)
			return true
		})
	}
	fmt.Fprintln(&b, "closed:", s.Close())
	return b.String()
}
