package torture

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// writeOld makes testdata/<version> anew. A directory that a release has made is never written again: a new version of a format gets a new one.
var writeOld = flag.String("write-old", "", "make testdata/<this>, a data directory as this build writes it")

func stays(id string) *packet.Connect {
	return &packet.Connect{ClientID: id, HasSessionExpiry: true, SessionExpiry: 0xFFFFFFFF}
}

// old is what is done before a data directory is kept: something of everything that a broker stores, in checkpointed files and in the journal.
func old(t *testing.T, d *vfstest.Disk) {
	var log logBuffer
	l, err := start(d, log.logger())
	if err != nil {
		t.Fatal(err)
	}
	addr := l.b.Addrs()[0]
	pub := testbroker.ConnectRaw(t, addr, packet.V5, stays("publisher"))
	s := testbroker.ConnectRaw(t, addr, packet.V5, stays("session"))
	s.Subscribe("t/#", 2)
	s.Close()
	g := testbroker.ConnectRaw(t, addr, packet.V5, stays("member"))
	g.Subscribe("$share/g/t/#", 1)
	g.Close()
	for n := 1; n <= 10; n++ {
		publishOld(pub, n)
	}
	pub.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 1, PacketID: 900, Retain: true, Topic: "ret/a", Payload: []byte("kept")}))
	pub.ExpectAck(packet.TypePuback, 900)
	pub.Publish("$delayed/4000000000/later", "in a hundred years")
	pub.Publish("$queue/q", "straight")
	q := testbroker.ConnectRaw(t, addr, packet.V5, stays("consumer"))
	q.Subscribe("$queue/q/t/#", 1)
	first := q.Delivery()
	for n := 2; n <= 4; n++ {
		q.Ack(q.Delivery())
	}
	q.Send(packet.AppendAck(nil, packet.V5, packet.TypePuback, first.PacketID, 0x80, "no"))
	settled(q)
	q.Close()
	left := testbroker.ConnectRaw(t, addr, packet.V5, stays("left"))
	left.Subscribe("left", 1)
	pub.Publish("left", "unacknowledged")
	left.Delivery()
	left.Close()
	if err := l.end(); err != nil { // a checkpoint
		t.Fatal(err)
	}

	if l, err = start(d, log.logger()); err != nil {
		t.Fatal(err)
	}
	addr = l.b.Addrs()[0]
	pub = testbroker.ConnectRaw(t, addr, packet.V5, stays("publisher"))
	for n := 11; n <= 15; n++ {
		publishOld(pub, n)
	}
	pub.SendPublish(2, 7, "t/two", "exactly once")
	pub.ExpectAck(packet.TypePubrec, 7) // and no PUBREL
	o := testbroker.ConnectRaw(t, addr, packet.V5, stays("open"))
	o.Subscribe("open", 2)
	pub.SendPublish(2, 8, "open", "received")
	pub.ExpectAck(packet.TypePubrec, 8)
	o.Send(packet.AppendAck(nil, packet.V5, packet.TypePubrec, o.Delivery().PacketID, 0, ""))
	o.Expect(packet.TypePubrel)
	testbroker.ConnectRaw(t, addr, packet.V311, &packet.Connect{ClientID: "mortal", Clean: true, Will: &packet.Will{Topic: "will", QoS: 1, Payload: []byte("gone")}})
	d.CutAfter(0)
	_ = l.end()
}

func publishOld(pub *testbroker.Raw, n int) {
	id := pub.NextID()
	props := packet.AppendUser(nil, "n", fmt.Sprint(n))
	pub.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 1, PacketID: id, Topic: fmt.Sprint("t/", n%3), Payload: fmt.Appendf(nil, "message %d", n), Props: props}))
	pub.ExpectAck(packet.TypePuback, id)
}

// TestOldDirectories: a data directory of each released version opens, with everything in it.
func TestOldDirectories(t *testing.T) {
	t.Parallel()
	if *writeOld != "" {
		keep(t, filepath.Join("testdata", *writeOld))
	}
	versions, err := filepath.Glob("testdata/v*")
	if err != nil || len(versions) == 0 {
		t.Fatal("no data directories: ", err)
	}
	for _, v := range versions {
		t.Run(filepath.Base(v), func(t *testing.T) { readOld(t, v) })
	}
}

// keep writes the files of a killed broker.
func keep(t *testing.T, dir string) {
	if _, err := os.Stat(dir); err == nil {
		t.Fatalf("%s exists: a release made it", dir)
	}
	d := vfstest.NewDisk(vfstest.Never)
	defer d.Close()
	old(t, d)
	killed := d.AfterKill()
	for _, name := range killed.List() {
		b, err := killed.ReadFile(name)
		if err == nil {
			name = filepath.Join(dir, strings.TrimPrefix(name, "data/"))
			err = os.MkdirAll(filepath.Dir(name), 0o755)
		}
		if err == nil {
			err = os.WriteFile(name, b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func readOld(t *testing.T, dir string) {
	data := filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(data, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if r, err := store.Verify(store.Options{Dir: data}); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	b := testbroker.Run(t, testbroker.Options{Dir: data, Config: "queues: [{name: q, retry_delay: [1ms]}]"})
	log := testbroker.ConnectRaw(t, b.Addr, packet.V5, nil)
	log.Subscribe("$s/earliest/t/#", 0)
	for n := 1; n <= 15; n++ {
		d := log.Delivery()
		v, _ := packet.FindUser(d.Props, "n")
		if d.Topic != fmt.Sprint("t/", n%3) || d.Payload != fmt.Sprint("message ", n) || string(v) != fmt.Sprint(n) {
			t.Errorf("message %d of the log is %q on %s, n=%s", n, d.Payload, d.Topic, v)
		}
	}
	if d := log.Delivery(); d.Payload != "exactly once" || d.Topic != "t/two" {
		t.Errorf("the last message of the log is %q on %s", d.Payload, d.Topic)
	}

	pub := testbroker.ConnectRaw(t, b.Addr, packet.V5, stays("publisher"))
	pub.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Dup: true, QoS: 2, PacketID: 7, Topic: "t/two", Payload: []byte("exactly once")}))
	pub.ExpectAck(packet.TypePubrec, 7)
	pub.Send(packet.AppendAck(nil, packet.V5, packet.TypePubrel, 7, 0, ""))
	pub.ExpectAck(packet.TypePubcomp, 7)
	pub.Publish("t/end", "end")
	if d := log.Delivery(); d.Payload != "end" {
		t.Errorf("%q was stored twice", d.Payload)
	}

	for _, tt := range []struct{ id, last string }{{"session", "end"}, {"member", "end"}} {
		c := testbroker.ConnectRaw(t, b.Addr, packet.V5, stays(tt.id))
		var got []string
		for len(got) == 0 || got[len(got)-1] != tt.last {
			d := c.Parse(nextPublish(t, c))
			got = append(got, d.Payload)
			c.Ack(d)
			if d.QoS == 2 {
				c.Send(packet.AppendAck(nil, packet.V5, packet.TypePubrec, d.PacketID, 0, ""))
			}
		}
		if len(got) != 17 || got[0] != "message 1" || got[14] != "message 15" || got[15] != "exactly once" {
			t.Errorf("%s got %q", tt.id, got)
		}
	}

	q := testbroker.ConnectRaw(t, b.Addr, packet.V5, stays("consumer"))
	left := map[string]bool{}
	for !left["end"] {
		d := q.Delivery()
		left[d.Payload] = true
		q.Ack(d)
	}
	// Of 1 to 10 the first was refused and three others acknowledged; "straight" and what was published later come too.
	if len(left) != 15 || !left["message 1"] || left["message 2"] || left["message 3"] || left["message 4"] || !left["straight"] || !left["message 15"] {
		t.Errorf("the queue has %v", left)
	}

	ret := testbroker.ConnectRaw(t, b.Addr, packet.V5, nil)
	ret.Subscribe("ret/#", 0)
	if d := ret.Delivery(); d.Payload != "kept" || !d.Retain {
		t.Errorf("retained: %+v", d)
	}
	will := testbroker.ConnectRaw(t, b.Addr, packet.V5, nil)
	will.Subscribe("$s/earliest/will", 0)
	if d := will.Delivery(); d.Payload != "gone" {
		t.Errorf("Will: %+v", d)
	}

	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, stays("left"))
	if d := c.Delivery(); d.Payload != "unacknowledged" || !d.Dup || d.PacketID != 1 {
		t.Errorf("in flight: %+v", d)
	}
	o := testbroker.ConnectRaw(t, b.Addr, packet.V5, stays("open"))
	o.ExpectAck(packet.TypePubrel, 1)
	waiting := 0
	_ = b.Store().Range(record.BucketDelayed, nil, func(_, v []byte) bool {
		if strings.HasSuffix(string(v), "in a hundred years") {
			waiting++
		}
		return true
	})
	if waiting != 1 {
		t.Errorf("%d delayed messages wait, want 1", waiting)
	}
	if s := b.Store().Stats(); s.Damaged != 0 {
		t.Errorf("%d damaged", s.Damaged)
	}
}

// settled waits until the broker has taken what c sent.
func settled(c *testbroker.Raw) {
	c.Send(packet.AppendPingreq(nil))
	for packet.TypeOf(c.Next()) != packet.TypePingresp {
	}
}

// nextPublish passes over everything but a PUBLISH.
func nextPublish(t *testing.T, c *testbroker.Raw) []byte {
	t.Helper()
	for {
		if f := c.Next(); packet.TypeOf(f) == packet.TypePublish {
			return f
		}
	}
}
