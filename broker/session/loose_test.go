package session

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// The PUBREL of a message that cannot be sent again waits for the disk like any other: until it is there that the delivery is over, a crash would
// have the message sent again, under an id that is free at the client.
func TestPubrelOfWhatIsGoneWaitsForTheDisk(t *testing.T) {
	log, disk := openStoreOn(t)
	m := newManager(t, log)
	ours, theirs := pair(t)
	if err := theirs.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	l := m.NewLink(ours)
	s := &Session{m: m, id: "x", link: l, durable: true}
	l.session.Store(s)
	l.live.Store(true)
	gate := make(chan struct{})
	end := disk.Inject(func(op vfstest.Op) error {
		if op.Kind == vfstest.Datasync {
			<-gate
		}
		return nil
	})
	defer end()
	s.mu.Lock()
	muts := s.release2(nil, 7)
	s.mu.Unlock()
	if fl := s.flights.get(7); fl == nil || fl.stage != released || len(muts) > 0 {
		t.Errorf("the delivery is %+v, and %d changes are left to be saved", fl, len(muts))
	}
	l.Send(packet.AppendPingresp(nil)) // what is sent after it comes first
	want := packet.AppendAck(packet.AppendPingresp(nil), l.Version, packet.TypePubrel, 7, packet.CodeSuccess, "")
	got := make([]byte, len(want))
	if _, err := io.ReadFull(theirs, got[:2]); err != nil {
		t.Fatal(err)
	}
	close(gate)
	if _, err := io.ReadFull(theirs, got[2:]); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got % X, %v, want % X", got, err, want)
	}
	l.Close()
	m.Wait()
	m.links.remove(l)
}
