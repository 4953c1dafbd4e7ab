package session

import (
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

// A CONNECT waits for what its client said on a connection that it has closed, and is told when that has been read.
func TestHearOut(t *testing.T) {
	m := producers(t)
	ours, theirs := pair(t)
	l := m.NewLink(ours)
	l.Connect = &packet.Connect{Version: packet.V311, ClientID: "c", Clean: true}
	if _, err := m.Attach(l); err != nil {
		t.Fatal(err)
	}
	if m.hearOut("c"); l.gone != nil {
		t.Error("a connection that is open was waited for")
	}
	_ = theirs.Close()
	for !hungUp(ours) {
		time.Sleep(time.Millisecond)
	}
	began, done := time.Now(), make(chan struct{})
	go func() {
		defer close(done)
		m.hearOut("c")
	}()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		m.mu.Lock()
		waits = l.gone != nil
		m.mu.Unlock()
	}
	m.Detach(l)
	<-done
	if took := time.Since(began); took > time.Second {
		t.Errorf("it waited for %v", took)
	}
	l.Close()
	m.Wait()
}
