package session

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// manager returns sessions over a running store.
func manager(t *testing.T, o store.Options) *Manager {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	o.Dir, o.JournalFileBytes, o.MinFree = t.TempDir(), 1<<20, 1
	st, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	hub := feed.NewHub(st, quiet)
	queues, err := feed.OpenQueues(hub, true)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewManager(st, hub, queues, Options{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- st.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-done, st.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// TestHosts: the address of a message is that of the connection it came on, and is forgotten with the last message of that.
func TestHosts(t *testing.T) {
	t.Parallel()
	m := manager(t, store.Options{SegmentBytes: 8 << 10, SharedBelow: 1, TailBytes: 1, RetainBytes: 64 << 10, CheckpointBytes: 16 << 10})
	h := &m.hosts
	put := func(muts ...store.Mutation) {
		t.Helper()
		w := newWaiter()
		w.add()
		msgs := make([]store.Message, 4)
		for i := range msgs {
			msgs[i] = store.Message{Topic: 1, Client: 1, PacketID: 1, Flags: record.Flags(0).WithQoS(1), Payload: make([]byte, 2000)}
		}
		if err := m.log.Append(msgs, muts, true, w); err != nil {
			t.Fatal(err)
		}
		if err := w.wait(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.log.ClientID("c", true); err != nil {
		t.Fatal(err)
	}
	if _, err := m.log.TopicID("t"); err != nil {
		t.Fatal(err)
	}
	const connections = 40
	check := func(first int) {
		t.Helper()
		for i := first; i < connections; i++ {
			want := fmt.Sprint("host-", i)
			for _, off := range []int{1 + 4*i, 4 + 4*i} {
				var o origin
				if got := h.of(&store.Record{Offset: uint64(off), Client: 1, PacketID: 1, Flags: 1}, &o); got != want {
					t.Fatalf("offset %d is from %q, want %q", off, got, want)
				}
				if o.from > uint64(off) || o.to <= uint64(off) || i < connections-1 && o.to > uint64(5+4*i) {
					t.Fatalf("offset %d: it holds from %d to %d", off, o.from, o.to)
				}
			}
		}
	}
	for i := range connections {
		put(h.note(1, fmt.Sprint("host-", i)))
		if i == 3 {
			h.find(1, 1) // known from now on
		}
	}
	check(0)
	h.sweep(t.Context(), time.Now().Add(2*time.Minute))
	if len(h.fresh) > 0 {
		t.Error("what was noted is kept for ever")
	}
	check(0)
	deadline := time.Now().Add(20 * time.Second)
	for m.log.First() < 60 {
		if time.Now().After(deadline) {
			t.Fatalf("retention does nothing: first %d", m.log.First())
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.sweep(t.Context(), time.Now())
	put()
	gone := int(m.log.First()-1) / 4
	check(gone)
	kept := 0
	if err := m.log.Range(record.BucketHosts, nil, func(_, _ []byte) bool { kept++; return true }); err != nil {
		t.Fatal(err)
	}
	if want := connections - gone; kept > want+1 || kept < want {
		t.Errorf("%d addresses are kept, want %d", kept, want)
	}
}

// What a writer remembers of one broker's clients says nothing about another one's in the same process.
func TestHostsOfTwoBrokers(t *testing.T) {
	var o origin
	for _, want := range []string{"host-a", "host-b"} {
		m := manager(t, store.Options{})
		w := newWaiter()
		w.add()
		msg := store.Message{Topic: 1, Client: 1, PacketID: 1, Flags: record.Flags(0).WithQoS(1)}
		if err := m.log.Append([]store.Message{msg}, []store.Mutation{m.hosts.note(1, want)}, true, w); err != nil {
			t.Fatal(err)
		}
		if err := w.wait(); err != nil {
			t.Fatal(err)
		}
		if got := m.hosts.of(&store.Record{Offset: 1, Client: 1, PacketID: 1, Flags: msg.Flags}, &o); got != want {
			t.Errorf("from %q, want %q", got, want)
		}
	}
}

// TestHostNotInState: of two connections in a row, neither of which is in the state yet, both count.
func TestHostNotInState(t *testing.T) {
	m := manager(t, store.Options{})
	msg := store.Message{Topic: 1, Client: 1, PacketID: 1, Flags: record.Flags(0).WithQoS(1)}
	for _, addr := range []string{"first", "second"} {
		_ = m.hosts.note(1, addr) // as if the commit did not come
		if err := m.log.Append([]store.Message{msg}, nil, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	for off, want := range map[uint64]string{1: "first", 2: "second"} {
		var o origin
		if got := m.hosts.of(&store.Record{Offset: off, Client: 1, PacketID: 1, Flags: msg.Flags}, &o); got != want {
			t.Errorf("offset %d is from %q, want %q", off, got, want)
		}
	}
}

// TestHostsOfDropped: addresses go with the messages that a topic's limits drop, though an older message of somebody else stays, and
// a client's newest goes too, but not while the client is connected.
func TestHostsOfDropped(t *testing.T) {
	t.Parallel()
	policy := &store.TopicPolicy{MaxMessages: 2, Unprotected: true}
	m := manager(t, store.Options{SegmentBytes: 8 << 10, SharedBelow: 1, TailBytes: 1, CheckpointInterval: 100 * time.Millisecond, Topic: func(name string) *store.TopicPolicy {
		if name == "full" {
			return policy
		}
		return nil
	}})
	h := &m.hosts
	put := func(client, topic string, n int, note bool) {
		t.Helper()
		id, err := m.log.ClientID(client, true)
		if err != nil {
			t.Fatal(err)
		}
		to, err := m.log.TopicID(topic)
		if err != nil {
			t.Fatal(err)
		}
		var muts []store.Mutation
		if note {
			muts = append(muts, h.note(id, client+"-host"))
		}
		w := newWaiter()
		w.add()
		msg := store.Message{Topic: to, Client: id, PacketID: 1, Flags: record.Flags(0).WithQoS(1), Payload: make([]byte, 2000)}
		if err := m.log.Append(slices.Repeat([]store.Message{msg}, n), muts, true, w); err != nil {
			t.Fatal(err)
		}
		if err := w.wait(); err != nil {
			t.Fatal(err)
		}
	}
	names := func() []string {
		var all []string
		if err := m.log.Range(record.BucketHosts, nil, func(k, _ []byte) bool {
			all = append(all, m.log.ClientName(binary.BigEndian.Uint32(k)))
			return true
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(all)
		return all
	}
	here := &Link{m: m}
	here.session.Store(&Session{m: m, id: "here"})
	m.links.add(here)
	put("pin", "kept", 1, true)
	for range 10 {
		put("gone", "full", 1, true)
	}
	put("here", "full", 4, true)
	put("other", "full", 4, true)
	put("pin", "kept", 4, false)
	h.sweep(t.Context(), time.Now())
	if got := names(); len(got) != 13 {
		t.Fatalf("before anything is deleted: %v", got)
	}
	want := []string{"here", "other", "pin"}
	for deadline := time.Now().Add(20 * time.Second); !slices.Equal(names(), want); time.Sleep(20 * time.Millisecond) {
		if h.sweep(t.Context(), time.Now().Add(time.Hour)); time.Now().After(deadline) {
			t.Fatalf("%v are kept, want %v", names(), want)
		}
	}
	if m.log.First() != 1 {
		t.Errorf("the oldest message is %d", m.log.First())
	}
}
