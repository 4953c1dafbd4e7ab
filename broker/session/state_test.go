package session

import (
	"bytes"
	"errors"
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

func testItem(offset uint64, qos byte) feed.Item {
	return feed.Item{Record: store.Record{Offset: offset}, QoS: qos}
}

func TestSessionValue(t *testing.T) {
	for _, tc := range []struct {
		name    string
		expiry  uint32
		offline time.Time
		user    string
	}{
		{"connected", 60, time.Time{}, ""},
		{"offline", Never, time.UnixMilli(1_700_000_000_123), "ann"},
	} {
		s := &Session{id: "c", expiry: tc.expiry, offline: tc.offline, user: tc.user}
		if tc.offline.IsZero() {
			s.link = &Link{}
		}
		mut := s.mutation()
		var got Session
		err := got.parse(mut.Value)
		if err != nil || got.expiry != tc.expiry || !got.offline.Equal(tc.offline) || got.user != tc.user || mut.Bucket != record.BucketSessions {
			t.Errorf("%s: %d, %v, %q, %v", tc.name, got.expiry, got.offline, got.user, err)
		}
		// Version 1 ended before the user.
		old := append([]byte{1}, mut.Value[1:13]...)
		if err := got.parse(old); err != nil || got.expiry != tc.expiry || !got.offline.Equal(tc.offline) || got.user != "" {
			t.Errorf("%s, version 1: %d, %v, %q, %v", tc.name, got.expiry, got.offline, got.user, err)
		}
	}
}

func TestSubscriptionValue(t *testing.T) {
	for _, sub := range []subscription{
		{Subscription: packet.Subscription{Filter: "f"}},
		{Subscription: packet.Subscription{Filter: "f", QoS: 2, NoLocal: true, RetainAsPublished: true, RetainHandling: 2}, ID: 268_435_455, From: 1 << 60},
		{Subscription: packet.Subscription{Filter: "f", QoS: 1}, ID: 1, From: 9, Retained: true, After: "a/b", Replay: true},
	} {
		b := appendSubscription(nil, sub)
		if got, err := parseSubscription("f", b); err != nil || got != sub {
			t.Errorf("%+v came back as %+v, %v", sub, got, err)
		}
	}
}

func TestInflightValues(t *testing.T) {
	var r resends
	if mut := r.mutation("c"); mut.Value != nil {
		t.Errorf("nothing in flight is saved as %x", mut.Value)
	}
	r.add(flightKey{"s/c", 5}, resend{1, sentQoS1})
	r.add(flightKey{"q/x", 1 << 40}, resend{65535, sentQoS1})
	r.add(flightKey{"q/x", 3}, resend{9, sentQoS2}) // has a key of its own
	s := &Session{id: "c", received: map[uint16]*Link{}}
	if err := s.loadInflight("a", r.mutation("c").Value); err != nil {
		t.Fatal(err)
	}
	mut := s.saveFlight("q/x", &flight{id: 9, stage: sentQoS2, offset: 3})
	if err := s.loadInflight(string(mut.Key[len("c\x00"):]), mut.Value); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(s.resend.byKey, r.byKey) || !maps.Equal(s.resend.ids, r.ids) || !reflect.DeepEqual(s.resend.last, r.last) {
		t.Errorf("%+v came back as %+v", r, s.resend)
	}
	if err := s.loadInflight(string(receivedKey("c", 77)[len("c\x00"):]), []byte{inflightVersion}); err != nil || !s.has(77) {
		t.Errorf("a received id: %v, %v", s.received, err)
	}
}

func TestNewerValues(t *testing.T) {
	s := &Session{received: map[uint16]*Link{}}
	err1 := new(Session).parse([]byte{99, 0, 0})
	_, err2 := parseSubscription("f", []byte{99, 0, 0, 0})
	_, err3 := parseRetained([]byte{99})
	_, err4 := parseWill([]byte{99})
	for _, err := range []error{err1, err2, err3, err4, s.loadInflight("a", []byte{99}), s.loadInflight("r\x00\x01", []byte{99}), s.loadInflight("s\x00\x01", []byte{99})} {
		if !errors.Is(err, store.ErrVersion) {
			t.Errorf("got %v", err)
		}
	}
}

func TestWillValue(t *testing.T) {
	w := &will{user: "ann", topic: "t", flags: record.Flags(0).WithQoS(2), expiry: 7, delay: 8, props: []byte("props"), body: []byte("body"), due: time.UnixMilli(9)}
	mut := w.mutation("c")
	if got, err := parseWill(mut.Value); err != nil || !reflect.DeepEqual(got, w) {
		t.Errorf("%+v came back as %+v, %v", w, got, err)
	}
	// Version 1 had no user between the properties and the payload.
	old := bytes.Replace(mut.Value, []byte("\x03ann"), nil, 1)
	old[0] = 1
	w.user = ""
	if got, err := parseWill(old); err != nil || !reflect.DeepEqual(got, w) {
		t.Errorf("version 1 came back as %+v, %v", got, err)
	}
}

// FuzzValues reads arbitrary bytes as each of the values in the state.
func FuzzValues(f *testing.F) {
	var r resends
	r.add(flightKey{"s/c", 5}, resend{1, sentQoS1})
	f.Add(r.mutation("c").Value)
	f.Add((&Session{id: "c", expiry: 5, offline: time.UnixMilli(5)}).mutation().Value)
	f.Add(appendSubscription(nil, subscription{Subscription: packet.Subscription{QoS: 1}, ID: 300, From: 300, After: "x"}))
	f.Add((&Session{}).saveFlight("q/x", &flight{id: 9, stage: released, offset: 300}).Value)
	f.Add(appendRetained(nil, 1, &store.Message{Props: []byte("props"), Payload: []byte("payload"), Client: 7}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Session
		if err := s.parse(b); err == nil {
			if s.offline.IsZero() {
				s.link = &Link{}
			}
			if again := s.mutation().Value; !bytes.Equal(again[1:], b[1:]) {
				t.Errorf("a session changed from %x to %x", b, again)
			}
		}
		if sub, err := parseSubscription("f", b); err == nil {
			if again, err := parseSubscription("f", appendSubscription(nil, sub)); err != nil || again != sub {
				t.Errorf("a subscription changed from %+v to %+v, %v", sub, again, err)
			}
		}
		if rec, err := parseRetained(b); err == nil {
			m := &store.Message{Flags: rec.Flags, Expiry: rec.Expiry, Client: rec.Client, Props: rec.Props, Payload: rec.Payload}
			again, err := parseRetained(appendRetained(nil, rec.Time, m))
			if err != nil || !reflect.DeepEqual(again, rec) {
				t.Errorf("a retained message changed from %+v to %+v, %v", rec, again, err)
			}
		}
		if name, rec, envelope, err := parseKept(b); err == nil {
			m := &store.Message{Flags: rec.Flags, Expiry: rec.Expiry, Client: rec.Client, Props: rec.Props, Payload: rec.Payload}
			again, rec2, envelope2, err := parseKept(appendKept(nil, envelope, name, appendRetained(nil, rec.Time, m)))
			if err != nil || again != name || envelope2 != envelope || !reflect.DeepEqual(rec2, rec) {
				t.Errorf("a kept message changed from %+v to %+v, %v", rec, rec2, err)
			}
		}
		if w, err := parseWill(b); err == nil {
			if again, err := parseWill(w.mutation("c").Value); err != nil || !reflect.DeepEqual(again, w) {
				t.Errorf("a Will changed from %+v to %+v, %v", w, again, err)
			}
		}
		for _, what := range []string{"a", "r\x00\x07", "s\x00\x07", "", "x", "sxx"} {
			s := &Session{id: "c", received: map[uint16]*Link{}}
			if s.loadInflight(what, b) != nil {
				continue
			}
			for k, to := range s.resend.byKey {
				if id, ok := s.resend.ids[to.id]; to.id == 0 || !ok || id != k || len(s.resend.ids) != len(s.resend.byKey) {
					t.Errorf("%q: %v is known as %v, %v", what, k, to, id)
				}
			}
		}
	})
}

func TestKeptValue(t *testing.T) {
	msg := &store.Message{Flags: record.Flags(0).WithQoS(2), Props: []byte("props"), Payload: []byte("payload"), Client: 7}
	b := appendKept(nil, true, "a/b", appendRetained(nil, 9, msg))
	name, rec, envelope, err := parseKept(b)
	if err != nil || name != "a/b" || !envelope || rec.Time != 9 || string(rec.Payload) != "payload" || string(rec.Props) != "props" {
		t.Errorf("%q %+v %v %v", name, rec, envelope, err)
	}
	for n := range b[:len(b)-len("payload")-1] {
		if _, _, _, err := parseKept(b[:n]); err == nil {
			t.Errorf("%d bytes of it are read", n)
		}
	}
}
