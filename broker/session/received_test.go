package session

import (
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/store/record"
)

// A connection that begins a new session ends the old one while the reader of the last connection still has a QoS 2 publish in hand. What it
// then hands to the store must not leave a packet id to the new session.
func TestPacketIDsEndWithTheirSession(t *testing.T) {
	m := producers(t)
	connect := func() *Link {
		l := producer(t, m, "p", "")
		l.Connect.HasSessionExpiry, l.Connect.SessionExpiry = true, Never
		if _, err := m.Attach(l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	send := func(l *Link, id uint16) {
		if err := l.Publish(&packet.Publish{Topic: []byte("t"), QoS: 2, PacketID: id, Payload: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	first := connect()
	send(first, 7)
	second := connect()
	m.Detach(second) // before the first
	third := connect()
	if len(third.after) != 1 {
		t.Fatalf("a connection waits for %d others, want the first", len(third.after))
	}
	waits := make(chan struct{})
	go func() {
		defer close(waits)
		send(third, 7)
		third.Flush()
	}()
	first.Flush()
	select {
	case <-waits:
		t.Fatal("a publish did not wait for the first connection")
	case <-time.After(20 * time.Millisecond): // nothing tells that it waits
	}
	m.Detach(first)
	<-waits
	done := make(committed, 1)
	if err := m.log.Append(nil, nil, true, done); err != nil || <-done != nil {
		t.Fatal("append failed")
	}
	if ids := ids(t, m); ids != 1 {
		t.Errorf("%d packet ids are saved, want that of the third connection's publish", ids)
	}
	third.Release(&packet.Ack{PacketID: 7})
	third.Flush()
	m.Detach(third)
	done = make(committed, 1)
	if err := m.log.Append(nil, nil, true, done); err != nil || <-done != nil {
		t.Fatal("append failed")
	}
	if ids := ids(t, m); ids != 0 {
		t.Errorf("%d packet ids are left", ids)
	}
	if len(m.taken) > 0 {
		t.Error("a connection that is over is not forgotten")
	}
	for _, l := range []*Link{first, second, third} {
		l.Close()
	}
}

// ids counts the packet ids of publishes that are saved.
func ids(t *testing.T, m *Manager) (n int) {
	t.Helper()
	err := m.log.Range(record.BucketInflight, []byte("p\x00r"), func(_, _ []byte) bool {
		n++
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// An UNSUBSCRIBE that could not be saved, since the disk was full or failed, is refused, and the subscription gone from memory. What is answered to it
// when it is sent again must be true on the disk, too.
func TestUnsubscribeAgainIsSaved(t *testing.T) {
	m := producers(t)
	l := producer(t, m, "p", "")
	l.Connect.HasSessionExpiry, l.Connect.SessionExpiry = true, Never
	if _, err := m.Attach(l); err != nil {
		t.Fatal(err)
	}
	s := l.Session()
	s.Subscribe(l, &packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: "t", QoS: 1}}})
	s.Subscribe(l, &packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: "u", QoS: 1}}}) // which waits for both
	s.mu.Lock()
	s.subs.Remove("t")
	s.mu.Unlock()
	if codes, _ := s.Unsubscribe(l, []string{"t"}); codes[0] != packet.CodeNoSubscription {
		t.Errorf("code 0x%X", codes[0])
	}
	if _, ok, err := m.log.Get(record.BucketSubscriptions, subKey("p", "t")); ok || err != nil {
		t.Error("it is still on the disk", err)
	}
	m.Detach(l)
	l.Close()
}
