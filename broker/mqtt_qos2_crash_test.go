package broker_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/store/journal"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// A client that has been away answers the PUBRELs it is sent again before its feed has come by the messages. That such a delivery is
// over and that the feed's cursor has gone past it must be one commit: a crash in between would send the message again, as a new one.
// [MQTT-4.3.3-13]
func TestPubcompBeforeTheFeedIsOneCommit(t *testing.T) {
	t.Parallel()
	const n = 400
	p := testbroker.Start(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, p.Addr, packet.V5, keeper("c"))
	c.Subscribe("t", 2)
	pub := testbroker.ConnectRaw(t, p.Addr, packet.V5, clean("pub"))
	for id := range uint16(n) {
		publish2(pub, packet.V5, id+1, "t", fmt.Sprint(id), false)
	}
	var ids [n]uint16
	for i := range ids {
		ids[i] = c.Delivery().PacketID
	}
	var comps []byte
	for _, id := range ids {
		ack(c, packet.V5, packet.TypePubrec, id)
		c.ExpectAck(packet.TypePubrel, id)
		comps = packet.AppendAck(comps, packet.V5, packet.TypePubcomp, id, 0, "")
	}
	c.Close()

	c = testbroker.DialRaw(t, p.Addr, packet.V5)
	again := keeper("c")
	again.Version, again.ReceiveMaximum = packet.V5, 65535
	c.Send(append(packet.AppendConnect(nil, again), comps...)) // in one piece, to be there before the feed is
	c.Expect(packet.TypeConnack)
	for range n {
		c.Expect(packet.TypePubrel)
	}
	c.Ping()
	pub.Publish("t", "last")
	c.Ack(c.Delivery()) // the feed is past the others
	c.Ping()
	p.Kill()

	j, err := journal.Open(journal.Options{Dir: filepath.Join(p.Dir(), "journal"), FS: vfs.OS, ReadOnly: true}, journal.Position{File: 1, Group: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	over := 0
	_, err = j.Replay(func(g journal.Group) error {
		ends, cursor := 0, false
		for b := g.Mutations; len(b) > 0; {
			m, n, err := record.ParseMutation(b)
			if err != nil {
				return err
			}
			b = b[n:]
			switch {
			case m.Bucket == record.BucketInflight && m.Value == nil && bytes.HasPrefix(m.Key, []byte("c\x00s")):
				ends++
			case m.Bucket == record.BucketCursors && string(m.Key) == "s/c":
				cursor = true
			}
		}
		if over += ends; ends > 0 && !cursor {
			t.Errorf("group %d ends %d deliveries without the feed's cursor", g.Seq, ends)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if over != n {
		t.Errorf("%d deliveries are over, want %d", over, n)
	}
}
