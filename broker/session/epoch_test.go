package session

import (
	"fmt"
	"net"
	"runtime"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
)

// producer returns a connection of a client with an epoch, "" for none, that is not attached yet.
func producer(t *testing.T, m *Manager, client, epoch string) *Link {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { _ = theirs.Close(); m.Wait() })
	l := m.NewLink(ours)
	l.Version = packet.V5
	l.Connect = &packet.Connect{Version: packet.V5, ClientID: client, Clean: true, ReceiveMaximum: 9}
	if epoch != "" {
		l.Connect.User = []packet.UserProperty{{Name: wire.Epoch, Value: epoch}}
	}
	return l
}

// attach attaches it until the end of the test.
func attach(t *testing.T, m *Manager, client, epoch string) (*Link, error) {
	t.Helper()
	l := producer(t, m, client, epoch)
	_, err := m.Attach(l)
	t.Cleanup(func() { m.Detach(l); l.Close() })
	return l, err
}

func producers(t *testing.T) *Manager {
	m := manager(t, store.Options{})
	m.opt.ReceiveMaximum, m.opt.MaxQoS, m.opt.Topics, m.opt.Window, m.opt.MaxExpiry = 10, 2, topic.Limits{MaxLevels: 9, MaxBytes: 99}, 10, Never
	return m
}

// TestFence: what a connection has taken and not handed to the store when a higher epoch comes is not stored.
func TestFence(t *testing.T) {
	m := producers(t)
	old, err := attach(t, m, "p", "1")
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Publish(&packet.Publish{Topic: []byte("t"), QoS: 1, PacketID: 1, Payload: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if _, err := attach(t, m, "p", "2"); err != nil {
		t.Fatal(err)
	}
	old.Flush()
	if next := m.log.Next(); next != 1 {
		t.Errorf("%d messages are stored", next-1)
	}
	if _, err := attach(t, m, "p", "1"); codeOf(err) != packet.CodeNotAuthorized {
		t.Errorf("a connection of the lower epoch: %v", err)
	}
}

// A connection that waits for another one of its client keeps no others from connecting.
func TestFenceStallsNobodyElse(t *testing.T) {
	m := producers(t)
	old, err := attach(t, m, "p", "1")
	if err != nil {
		t.Fatal(err)
	}
	old.fence.mu.RLock() // as over an append that waits for the disk
	next := producer(t, m, "p", "2")
	done := make(chan error, 1)
	go func() {
		_, err := m.Attach(next)
		done <- err
	}()
	for old.fence.mu.TryRLock() { // until the other one waits
		old.fence.mu.RUnlock()
		runtime.Gosched()
	}
	if _, err := attach(t, m, "q", "7"); err != nil {
		t.Error(err)
	}
	old.fence.mu.RUnlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
	m.Detach(next)
	next.Close()
}

// Of two connections of a client the one of the higher epoch stays, whichever is attached first.
func TestFenceAttachedLate(t *testing.T) {
	m := producers(t)
	late, saved := producer(t, m, "p", "1"), newWaiter()
	if err := m.connectEpoch(late, saved); err != nil {
		t.Fatal(err)
	}
	now, err := attach(t, m, "p", "2")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.attach(late, saved); codeOf(err) != packet.CodeNotAuthorized || now.Closing() {
		t.Errorf("the lower epoch: %v; the higher one is gone: %v", err, now.Closing())
	}
	m.Detach(late)
	late.Close()
}

// What is known of epochs leaves the memory with the connections, and not the state.
func TestFencesAreForgotten(t *testing.T) {
	m := producers(t)
	for i := range 100 {
		l := producer(t, m, fmt.Sprint("p", i), "5")
		if _, err := m.Attach(l); err != nil {
			t.Fatal(err)
		}
		m.Detach(l)
		l.Close()
	}
	if n := len(m.epochs.by); n > 0 {
		t.Errorf("%d fences are left", n)
	}
	if _, err := attach(t, m, "p7", "4"); codeOf(err) != packet.CodeNotAuthorized {
		t.Errorf("a lower epoch later: %v", err)
	}
}

// A session that is busy keeps nobody from connecting while rules are looked at again.
func TestRecheckStallsNobodyElse(t *testing.T) {
	m := producers(t)
	l, err := attach(t, m, "busy", "")
	if err != nil {
		t.Fatal(err)
	}
	s := l.Session()
	s.mu.Lock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Recheck()
	}()
	for range 100 {
		runtime.Gosched()
	}
	if _, err := attach(t, m, "other", ""); err != nil {
		t.Error(err)
	}
	s.mu.Unlock()
	<-done
}
