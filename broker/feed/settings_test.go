package feed

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store"
)

var everySetting = settings{
	paused: true, set: allSettings,
	policy: Policy{
		MaxInFlight: 7, MaxDeliveries: -1, RetryDelay: []time.Duration{time.Second, time.Minute}, DeadLetter: "graves", Ordered: true, Exclusive: true,
		AckTimeout: 30 * time.Second, Limits: Limits{MaxMessages: 1000, MaxBytes: 1 << 30, MaxAge: 24 * time.Hour, Reject: true},
	},
}

func TestSettingsBytes(t *testing.T) {
	for _, tc := range []struct {
		name string
		s    settings
		want []byte
	}{
		{"nothing", settings{}, []byte{2, 0, 0}},
		{"paused", settings{paused: true}, []byte{2, 1, 0}},
		{"three deliveries", settings{set: SetMaxDeliveries, policy: Policy{MaxDeliveries: 3}}, []byte{2, 0, 2, 4}},
		{"any number of them", settings{set: SetMaxDeliveries, policy: Policy{MaxDeliveries: -1}}, []byte{2, 0, 2, 0}},
		{"dead letters", settings{set: SetDeadLetter, policy: Policy{DeadLetter: "xy"}}, []byte{2, 0, 8, 2, 'x', 'y'}},
		{"all", everySetting, []byte{0x2, 0x1, 0xff, 0xf, 0x7, 0x0, 0x2, 0x80, 0x94, 0xeb, 0xdc, 0x3, 0x80, 0xb0, 0x9d, 0xc2, 0xdf, 0x1, 0x6, 0x67, 0x72, 0x61, 0x76, 0x65, 0x73, 0x1, 0x1, 0x80, 0xd8, 0x8e, 0xe1, 0x6f, 0xe8, 0x7, 0x80, 0x80, 0x80, 0x80, 0x4, 0x80, 0x80, 0xbc, 0x8a, 0xc9, 0xd2, 0x13, 0x1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := tc.s.append(nil)
			if !bytes.Equal(b, tc.want) {
				t.Errorf("encoded % d, want % d", b, tc.want)
			}
			if got, err := parseSettings(b); err != nil || !reflect.DeepEqual(got, tc.s) {
				t.Errorf("decoded %+v, %v; want %+v", got, err, tc.s)
			}
		})
	}
	if s, err := parseSettings([]byte{1, 1}); err != nil || !s.paused || s.set != 0 {
		t.Errorf("of version 1: %+v, %v", s, err)
	}
}

func TestSettingsRefused(t *testing.T) {
	for _, tc := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, errQueue},
		{"newer", []byte{3, 0, 0}, store.ErrVersion},
		{"a setting of a later build", []byte{2, 0, 0x80, 0x80, 1, 0}, store.ErrVersion},
		{"old and long", []byte{1, 0, 0}, errQueue},
		{"short", []byte{2, 0}, errQueue},
		{"without its value", []byte{2, 0, 2}, errQueue},
		{"a name longer than the rest", []byte{2, 0, 8, 3, 'x'}, errQueue},
		{"trailing", []byte{2, 0, 0, 0}, errQueue},
	} {
		if s, err := parseSettings(tc.b); !errors.Is(err, tc.want) {
			t.Errorf("%s: %+v, %v; want %v", tc.name, s, err, tc.want)
		}
	}
}

func FuzzParseSettings(f *testing.F) {
	f.Add([]byte{1, 1})
	f.Add([]byte{2, 0, 0})
	f.Add(everySetting.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSettings(b)
		if err != nil || b[0] == 1 {
			return
		}
		again, err := parseSettings(s.append(nil))
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Fatalf("%+v came back as %+v, %v", s, again, err)
		}
	})
}

// TestConfigure: what was set for a queue counts over the configuration, survives a restart, and goes with the queue.
func TestConfigure(t *testing.T) {
	n, d := startDisk(t, defaultBounds)
	q, _ := n.queue("q")
	policy := func(q *Queues) Policy {
		t.Helper()
		i, err := q.Info("q")
		if err != nil {
			t.Fatal(err)
		}
		return i.Policy
	}
	file := Policy{MaxDeliveries: 9, MaxInFlight: 2}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(q.SetPolicy("q", file))
	check(q.Configure("q", SetMaxDeliveries|SetExclusive, Policy{MaxDeliveries: 3, Exclusive: true}, 0))
	if p := policy(q); p.MaxDeliveries != 3 || p.MaxInFlight != 2 || !p.Exclusive {
		t.Errorf("in force: %+v", p)
	}
	check(q.Pause("q", true)) // saves all of it again
	if err := q.Configure("q", SetDeadLetter, Policy{DeadLetter: "q"}, 0); !errors.Is(err, ErrPolicy) {
		t.Errorf("dead letters back to itself: %v", err)
	}

	n = n.restart(d)
	q = n.queues
	if p := policy(q); p.MaxDeliveries != 3 || !p.Exclusive {
		t.Errorf("after a restart, before the file is read: %+v", p)
	}
	check(q.SetPolicy("q", file))
	if p := policy(q); p.MaxDeliveries != 3 || p.MaxInFlight != 2 {
		t.Errorf("after a restart: %+v", p)
	}
	check(q.Configure("q", 0, Policy{}, SetMaxDeliveries))
	if p := policy(q); p.MaxDeliveries != 9 || !p.Exclusive {
		t.Errorf("set to default: %+v", p)
	}
	check(q.Delete("q"))
	old, err := q.Create("q")
	check(err)
	if p := policy(q); p.MaxDeliveries != 9 || p.Exclusive {
		t.Errorf("created anew: %+v", p)
	}
	if i, _ := q.Info("q"); i.Paused {
		t.Error("created anew, it is paused")
	}
	check(q.Delete("q"))
	if err := q.Bind(old, "a", nil); !errors.Is(err, ErrNoQueue) {
		t.Errorf("bind a queue that is deleted: %v", err)
	}
}

// TestExclusive: one member has all, the one that came first; the next takes over what it leaves, in order.
func TestExclusive(t *testing.T) {
	n := start(t, defaultBounds)
	q, f := n.queue("q", "a")
	if err := q.Configure("q", SetExclusive, Policy{Exclusive: true}, 0); err != nil {
		t.Fatal(err)
	}
	first, second := n.join(f), n.join(f)
	for _, p := range []string{"p1", "p2", "p3", "p4"} {
		n.put(p, "a", p)
	}
	got := first.take(4)
	second.idle()
	first.settle(got[0])
	first.Leave()
	second.want("p2", "p3", "p4")
	third := n.join(f)
	if err := q.Configure("q", 0, Policy{}, SetExclusive); err != nil {
		t.Fatal(err)
	}
	for i := range 20 { // now they share
		n.put("s"+string(rune('a'+i)), "a", "x")
	}
	await(t, "both to have some", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return second.todo.len() > 0 && third.todo.len() > 0
	})
}

// Each setting is copied, written and read by itself.
func TestEachSetting(t *testing.T) {
	if Setting(1)<<len(fields) != lastSetting {
		t.Fatalf("%d fields for the settings up to %d", len(fields), lastSetting)
	}
	var all Policy
	for bit := Setting(1); bit < lastSetting; bit <<= 1 {
		one := settings{set: bit}
		one.policy.take(bit, &everySetting.policy)
		if reflect.DeepEqual(one.policy, Policy{}) {
			t.Errorf("setting %d copies nothing", bit)
		}
		if got, err := parseSettings(one.append(nil)); err != nil || !reflect.DeepEqual(got, one) {
			t.Errorf("setting %d comes back as %+v, %v; want %+v", bit, got, err, one)
		}
		all.take(bit, &everySetting.policy)
	}
	if !reflect.DeepEqual(all, everySetting.policy) {
		t.Errorf("all together are %+v", all)
	}
}
