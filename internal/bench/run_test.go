package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

func small(t *testing.T, name string) Load {
	t.Helper()
	l, ok := Find(name)
	if !ok {
		t.Fatalf("no load %s", name)
	}
	l.Count = min(l.Count, 600)
	l.Consumers = min(l.Consumers, 20)
	if l.Rate > 0 {
		l.Rate = 5000
	}
	return l
}

// The standard loads, on a real broker, in both versions of MQTT.
func TestLoads(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	for _, version := range []client.Version{client.V311, client.V5} {
		for _, l := range Loads {
			if l.Restart {
				continue
			}
			t.Run(fmt.Sprintf("%s/mqtt=%v", l.Name, version), func(t *testing.T) {
				l := small(t, l.Name)
				r, err := runQuietly(t.Context(), &Target{Name: "b", Options: client.Options{URL: b.Addr, Version: version}}, l)
				if err != nil {
					t.Fatal(err)
				}
				if r.Broken || r.Rate <= 0 || r.Seconds <= 0 {
					t.Errorf("%+v", r)
				}
				want := int64(l.Count)
				if l.All {
					want *= int64(l.Consumers)
				}
				if l.Kind == Live || l.Kind == Drain {
					if *r.Faults != (Faults{}) || r.Received != want {
						t.Errorf("%d of %d, %v", r.Received, want, r.Faults)
					}
				}
				if l.Kind != Idle && r.Messages != int64(l.Count) {
					t.Errorf("%d messages", r.Messages)
				}
				if l.QoS > 0 && l.Kind != Idle && (r.Ack == nil || r.Ack.P50 <= 0 || r.Ack.Max < r.Ack.P50) {
					t.Errorf("acknowledged in %+v", r.Ack)
				}
			})
		}
	}
	for _, s := range b.Sessions().Sessions() {
		if s.Durable { // the others go when the broker has noticed
			t.Errorf("a session is left behind: %+v", s)
		}
	}
}

// A run on a broker that has the data, and a session, of one that was killed.
func TestLeftovers(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	o := client.Options{URL: b.Addr, ID: "bench-0-c0", CleanStart: true, SessionExpiry: 1 << 20}
	c, err := client.Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Subscribe(t.Context(), client.Subscription{Filter: "bench/0/#", QoS: 1}); err != nil {
		t.Fatal(err)
	}
	c.Drop()
	l := small(t, "ingest") // what the session is owed
	for range 2 {
		if _, err := runQuietly(t.Context(), &Target{Options: client.Options{URL: b.Addr}}, l); err != nil {
			t.Fatal(err)
		}
	}
	r, err := runQuietly(t.Context(), &Target{Options: client.Options{URL: b.Addr}}, small(t, "drain"))
	if err != nil || *r.Faults != (Faults{}) || r.Foreign != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if n := b.Store().Topics(); n > uint32(l.Topics) {
		t.Errorf("three runs have made %d topics", n)
	}
}

func TestQoS2(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	for _, name := range []string{"live", "drain"} {
		l := small(t, name)
		l.QoS = 2
		r, err := Run(t.Context(), &Target{Options: client.Options{URL: b.Addr}}, l, nil)
		if err != nil {
			t.Fatal(err)
		}
		if *r.Faults != (Faults{}) || r.Received != int64(l.Count) {
			t.Errorf("%s: %+v, %v", name, r, r.Faults)
		}
	}
}

// What a broker does wrong is seen.
func TestFaults(t *testing.T) {
	t.Parallel()
	var kept packet.Outgoing
	for _, tt := range []struct {
		name   string
		fake   *fake
		faults Faults
		err    string
	}{
		{"nothing", &fake{}, Faults{}, ""},
		{"repeats", &fake{deliver: func(n int, m packet.Outgoing) []packet.Outgoing {
			if n == 10 {
				return []packet.Outgoing{m, m}
			}
			return []packet.Outgoing{m}
		}}, Faults{Duplicates: 1}, ""},
		{"swaps", &fake{deliver: func(n int, m packet.Outgoing) []packet.Outgoing {
			if n == 10 {
				kept = m
				return nil
			}
			if n == 11 {
				return []packet.Outgoing{m, kept}
			}
			return []packet.Outgoing{m}
		}}, Faults{Reordered: 1}, ""},
		{"damages", &fake{deliver: func(n int, m packet.Outgoing) []packet.Outgoing {
			if n == 10 {
				m.Payload = append(m.Payload[:20:20], m.Payload[21:]...)
			}
			return []packet.Outgoing{m}
		}}, Faults{Corrupt: 1, Lost: 1}, ""},
		{"loses", &fake{deliver: func(n int, m packet.Outgoing) []packet.Outgoing {
			if n == 10 {
				return nil
			}
			return []packet.Outgoing{m}
		}}, Faults{Lost: 1}, ""},
		{"loses the last", &fake{deliver: func(n int, m packet.Outgoing) []packet.Outgoing {
			if n == 100 {
				return nil
			}
			return []packet.Outgoing{m}
		}}, Faults{Lost: 1}, ""},
		{"refuses", &fake{refuse: 7}, Faults{}, "refused a message with PUBACK 0x97"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, tt.fake)
			l := Load{Name: "test", Kind: Live, Publishers: 1, Consumers: 2, Topics: 1, Count: 100, Size: 64, QoS: 1, Window: 10, All: true}
			l.Consumers = 1
			r, err := runQuietly(t.Context(), &Target{Options: client.Options{URL: f.addr, Version: client.V5}}, l)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if *r.Faults != tt.faults {
				t.Errorf("found %v, want %v", r.Faults, tt.faults)
			}
			if r.Broken != tt.faults.Broken(1) {
				t.Errorf("broken is %v", r.Broken)
			}
		})
	}
}

// runQuietly is Run that waits for nothing long.
func runQuietly(ctx context.Context, t *Target, l Load) (*Result, error) {
	return runWith(ctx, t, l, nil, patience{time.Second, stall, 0})
}

// A broker that answers nothing is given up.
func TestStuck(t *testing.T) {
	f := newFake(t, &fake{deaf: true})
	l := small(t, "ingest")
	_, err := runWith(t.Context(), &Target{Options: client.Options{URL: f.addr}}, l, nil, patience{quiet, 50 * time.Millisecond, 0})
	if err == nil || !strings.Contains(err.Error(), "nothing was acknowledged for 50ms") {
		t.Error(err)
	}
}

func TestCancel(t *testing.T) {
	f := newFake(t, &fake{deaf: true})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, &Target{Options: client.Options{URL: f.addr}}, small(t, "live"), func(p Progress) {
		if p.Phase == "publishing and reading" {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A paced publisher keeps its pace, and counts what waited for the broker from when it was due.
func TestPace(t *testing.T) {
	f := newFake(t, &fake{})
	l := Load{Name: "test", Kind: Publish, Publishers: 2, Topics: 1, Count: 100, Size: 64, QoS: 1, Window: 10, Rate: 1000}
	r, err := Run(t.Context(), &Target{Options: client.Options{URL: f.addr}}, l, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Seconds < .098 {
		t.Errorf("100 messages at 1000/s took %vs", r.Seconds)
	}

	p := &publisher{run: &run{Load: l, heads: publishHeads(packet.V311, []string{"t"}, 1, 64), version: packet.V311}, filler: filler(64), seqs: make([]uint32, 1)}
	p.flight, p.free = make([]int64, 3), []uint16{1, 2}
	p.conn = &conn{Conn: discard{}}
	p.interval, p.first = time.Millisecond, now()-int64(time.Second)
	p.held = p.first + 1
	first := p.first
	if err := p.send(2); err != nil {
		t.Fatal(err)
	}
	if p.flight[2] != first || p.flight[1] < first+int64(time.Second) {
		t.Errorf("published at %d and %d; the first was held up since %d, the second was not", p.flight[2], p.flight[1], first)
	}
}

func TestNoRestart(t *testing.T) {
	l, _ := Find("contest")
	if _, err := Run(t.Context(), &Target{}, l, nil); !errors.Is(err, ErrNoRestart) {
		t.Error(err)
	}
}

func TestCheckLoad(t *testing.T) {
	for _, l := range Loads {
		if err := l.Check(); err != nil {
			t.Errorf("%s: %v", l.Name, err)
		}
	}
	for name, change := range map[string]func(*Load){
		"publishers": func(l *Load) { l.Publishers = 0 },
		"count":      func(l *Load) { l.Count = l.Publishers - 1 },
		"consumers":  func(l *Load) { l.Consumers = 0 },
		"topics":     func(l *Load) { l.Topics = 0 },
		"size":       func(l *Load) { l.Size = MinSize - 1 },
		"QoS":        func(l *Load) { l.QoS = 3 },
		"window":     func(l *Load) { l.Window = 0 },
		"window, up": func(l *Load) { l.Window = 65536 },
		"rate":       func(l *Load) { l.Rate = -1 },
		"pairs":      func(l *Load) { l.Publishers, l.Topics, l.Count = 1<<14, 1<<14, 1<<20 },
	} {
		l, _ := Find("live")
		change(&l)
		if l.Check() == nil {
			t.Errorf("%s: nothing is wrong with %+v", name, l)
		}
	}
}
