package bench

import (
	"slices"
	"testing"
)

func TestPayload(t *testing.T) {
	for _, size := range []int{MinSize, 128} {
		b := filler(size)
		seal(b, 7, 8, 9, 10)
		p, topic, n, at, ok := unseal(b)
		if p != 7 || topic != 8 || n != 9 || at != 10 || !ok {
			t.Errorf("size %d: %d %d %d %d %v", size, p, topic, n, at, ok)
		}
		for i := range b {
			damaged := slices.Clone(b)
			damaged[i] ^= 4
			if _, _, _, _, ok := unseal(damaged); ok {
				t.Errorf("size %d: byte %d may change", size, i)
			}
		}
	}
	if _, _, _, _, ok := unseal(make([]byte, MinSize-1)); ok {
		t.Error("less than a payload is one")
	}
}

func TestChecker(t *testing.T) {
	names := []string{"a", "b", "c"}
	const sent = 4 // messages of publisher 0 to "b"
	for _, tt := range []struct {
		name string
		seen []uint32
		want Faults
		got  int64
	}{
		{"all", []uint32{1, 2, 3, 4}, Faults{}, 4},
		{"nothing", nil, Faults{Lost: 4}, 0},
		{"the first", []uint32{2, 3, 4}, Faults{Lost: 1}, 3},
		{"the last", []uint32{1, 2, 3}, Faults{Lost: 1}, 3},
		{"swapped", []uint32{1, 3, 2, 4}, Faults{Reordered: 1}, 4},
		{"twice", []uint32{1, 2, 2, 3, 4}, Faults{Duplicates: 1}, 4},
		{"late and twice", []uint32{2, 1, 1, 3, 4}, Faults{Reordered: 1, Duplicates: 1}, 4},
		{"from the start", []uint32{1, 2, 1, 2, 3, 4}, Faults{Duplicates: 2}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := newChecker(2, stretch{1, 2, 3})
			for _, n := range tt.seen {
				b := filler(MinSize)
				seal(b, 0, 1, n, 0)
				k.see(names, []byte("b"), b)
			}
			f := k.finish(func(p, topic int) uint32 {
				if p == 0 && topic == 1 {
					return sent
				}
				return 0
			})
			if f != tt.want || k.got != tt.got {
				t.Errorf("%+v, %d new; want %+v, %d", f, k.got, tt.want, tt.got)
			}
		})
	}

	k := newChecker(2, stretch{1, 2, 3})
	for _, wrong := range []struct {
		publisher, number uint32
		topic             uint32
		name              string
	}{{0, 1, 1, "a"}, {0, 1, 0, "a"}, {2, 1, 1, "b"}, {0, 1, 3, "d"}} {
		b := filler(MinSize)
		seal(b, wrong.publisher, wrong.topic, wrong.number, 0)
		k.see(names, []byte(wrong.name), b)
	}
	if k.faults.Corrupt != 4 || k.got != 0 {
		t.Errorf("of 4 that cannot be, %+v", k.faults)
	}

	// What another run has published is none of this one's business.
	k = newChecker(1, stretch{0, 1, 1})
	k.tag = 7
	b := filler(MinSize)
	seal(b, 0, 0, 5, tagged(8, 1))
	k.see(names, []byte(names[0]), b)
	seal(b, 0, 0, 1, tagged(7, 12345))
	at, ok := k.see(names, []byte(names[0]), b)
	if !ok || at != 12345 || k.foreign != 1 || k.got != 1 || k.finish(func(int, int) uint32 { return 1 }) != (Faults{}) {
		t.Errorf("%v at %d, %+v", ok, at, k)
	}
}

// Every topic has a consumer, and the consumers know it by the same place.
func TestTopicsOf(t *testing.T) {
	for _, l := range []Load{{Topics: 10, Consumers: 3}, {Topics: 3, Consumers: 10}, {Topics: 1, Consumers: 1}, {Topics: 7, Consumers: 2, All: true}} {
		readers := make([]int, l.Topics)
		for c := range l.Consumers {
			s := l.topicsOf(c)
			n := 0
			for topic := range l.Topics {
				if i := s.index(topic); i >= 0 {
					if i != n || i >= s.len() {
						t.Fatalf("%+v: topic %d has place %d of %d, want %d", l, topic, i, s.len(), n)
					}
					n++
					readers[topic]++
				}
			}
			if n != s.len() {
				t.Fatalf("%+v: %d topics, want %d", l, n, s.len())
			}
		}
		for topic, n := range readers {
			if n == 0 || l.All && n != l.Consumers || l.Topics >= l.Consumers && !l.All && n != 1 {
				t.Errorf("%+v: topic %d has %d readers", l, topic, n)
			}
		}
	}
}

func TestBroken(t *testing.T) {
	for _, tt := range []struct {
		f    Faults
		want [3]bool // by QoS
		says string
	}{
		{Faults{}, [3]bool{}, "in order"},
		{Faults{Lost: 1}, [3]bool{false, true, true}, "1 lost"},
		{Faults{Duplicates: 1}, [3]bool{true, false, true}, "1 twice"},
		{Faults{Reordered: 2, Corrupt: 3}, [3]bool{true, true, true}, "2 reordered, 3 corrupt"},
	} {
		for qos, want := range tt.want {
			if got := tt.f.Broken(byte(qos)); got != want {
				t.Errorf("%+v at QoS %d: %v", tt.f, qos, got)
			}
		}
		if tt.f.String() != tt.says {
			t.Errorf("%+v: %s", tt.f, tt.f)
		}
	}
}
