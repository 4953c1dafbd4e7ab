package session

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// A broker died with a client connected, and the client is back before anybody has looked at Wills: one whose delay is over is published
// all the same. [MQTT-3.1.2-8]
func TestWillOfAClientThatReturnsFirst(t *testing.T) {
	for _, tt := range []struct {
		name  string
		delay uint32
		due   time.Duration // from now; 0: it was connected
		want  bool
	}{
		{"no delay", 0, 0, true},
		{"the delay is over", 5, -time.Second, true},
		{"the delay is not over", 1000, 0, false},
		{"the delay is not over, since it left", 1000, time.Minute, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log := openStore(t)
			w := &will{topic: "will", delay: tt.delay, body: []byte("gone")}
			w.flags = w.flags.WithQoS(1)
			if tt.due != 0 {
				w.due = time.Now().Add(tt.due)
			}
			gone := &Session{id: "c", expiry: Never, offline: time.Now()}
			done := make(committed, 1)
			if err := log.Append(nil, []store.Mutation{gone.mutation(), w.mutation("c")}, true, done); err != nil {
				t.Fatal(err)
			}
			<-done
			m := newManager(t, log)
			s := m.sessions["c"]
			s.mu.Lock()
			s.willOnReturn(false, false)
			s.mu.Unlock()
			if err := log.Append(nil, []store.Mutation{gone.mutation()}, true, done); err != nil { // behind it
				t.Fatal(err)
			}
			<-done
			if got := log.Committed() > log.First(); got != tt.want {
				t.Errorf("published: %v, want %v", got, tt.want)
			}
			if _, left, _ := log.Get(record.BucketWills, []byte("c")); left {
				t.Error("the Will is still in the state")
			}
		})
	}
}

// The Will of a session that ended with the broker is published before the next Will of its client takes its place in the state: the broker may die again
// before it has looked for Wills that are due.
func TestNextWillOfAClientThatReturnsFirst(t *testing.T) {
	log := openStore(t)
	w := &will{topic: "will", body: []byte("gone")}
	w.flags = w.flags.WithQoS(1)
	done := make(committed, 1)
	if err := log.Append(nil, []store.Mutation{w.mutation("c"), w.mutation("other")}, true, done); err != nil {
		t.Fatal(err)
	}
	<-done
	m := newManager(t, log)
	local, remote := net.Pipe()
	defer remote.Close()
	l := m.NewLink(local)
	l.Connect = &packet.Connect{Version: packet.V311, ClientID: "c", Clean: true, Will: &packet.Will{Topic: "will", QoS: 1, Payload: []byte("next")}}
	if _, err := m.Attach(l); err != nil {
		t.Fatal(err)
	}
	if n := log.Committed() - log.First(); n != 1 {
		t.Errorf("%d Wills are published when the next one is on disk, want 1", n)
	}
	if v, ok, err := log.Get(record.BucketWills, []byte("c")); err != nil || !ok || !bytes.HasSuffix(v, []byte("next")) {
		t.Errorf("in the state is %q, %v, %v", v, ok, err)
	}
	m.orphanedWills()
	if len(m.orphans) != 0 || log.Next()-log.First() != 2 {
		t.Errorf("%d Wills are left, %d published", len(m.orphans), log.Next()-log.First())
	}
	m.Detach(l)
	l.Close()
}

// While the Wills of a client wait for room on the disk, it cannot leave more and more of them; without one it may come.
func TestManyWillsOfOneClientWait(t *testing.T) {
	m := newManager(t, openStore(t))
	w := &will{topic: "will", body: make([]byte, 1<<20)} // more than a group of this store takes: it cannot be published
	for range mostOrphans {
		m.orphan("c\x007", "c", w)
	}
	for _, tt := range []struct {
		name, client string
		will         *packet.Will
		code         byte
	}{
		{"another Will", "c", &packet.Will{Topic: "will"}, packet.CodeQuotaExceeded},
		{"none", "c", nil, 0},
		{"another client's", "other", &packet.Will{Topic: "will"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			local, remote := net.Pipe()
			defer remote.Close()
			l := m.NewLink(local)
			defer l.Close()
			l.Connect = &packet.Connect{Version: packet.V5, ClientID: tt.client, Will: tt.will}
			_, err := m.Attach(l)
			if e, _ := errors.AsType[*packet.Error](err); (e == nil) != (tt.code == 0) || e != nil && e.Code != tt.code {
				t.Errorf("got %v, want 0x%02X", err, tt.code)
			}
			m.Detach(l)
		})
	}
}

// What goes to the dead letters of a full queue is counted once it is stored, however often that was tried.
func TestOverflowIsCountedOnce(t *testing.T) {
	m := newManager(t, openStore(t))
	f, err := m.queues.Create("q")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.queues.SetPolicy("q", feed.Policy{Limits: feed.Limits{MaxMessages: 1, Reject: true}}); err != nil {
		t.Fatal(err)
	}
	for f.Admit(1) {
	}
	w := &will{topic: "$queue/q", body: []byte("gone")}
	w.flags = w.flags.WithQoS(1)
	large := *w
	large.body = make([]byte, 1<<20) // more than a group of this store takes
	for range 3 {
		if err := m.publishWill("c", "c", true, &large); err == nil {
			t.Fatal("it was stored")
		}
	}
	if n := f.Stats().Dead; n != 0 {
		t.Errorf("%d are counted, and none was stored", n)
	}
	if err := m.publishWill("c", "c", true, w); err != nil {
		t.Fatal(err)
	}
	if n := f.Stats().Dead; n != 1 {
		t.Errorf("%d are counted", n)
	}
}
