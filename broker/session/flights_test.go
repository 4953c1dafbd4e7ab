package session

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

func TestFlights(t *testing.T) {
	t.Run("against a map", func(t *testing.T) {
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 0))
			var fs flights
			want := map[uint16]uint64{}
			bytes := 0
			id := uint16(r.Uint32())
			for range 5000 {
				switch {
				case r.IntN(3) > 0 && len(want) < 2000:
					if id++; id == 0 {
						id++
					}
					_, there := want[id]
					switch ok := fs.put(flight{id: id, offset: r.Uint64(), size: 10}); {
					case ok && there:
						t.Fatalf("seed %d: id %d was given twice", seed, id)
					case ok:
						want[id] = fs.get(id).offset
						bytes += 10
					}
				case len(want) > 0:
					for k, off := range want { // whichever comes first
						fl, ok := fs.take(k)
						if !ok || fl.offset != off || fl.id != k {
							t.Fatalf("seed %d: take(%d): %+v, %v", seed, k, fl, ok)
						}
						delete(want, k)
						bytes -= 10
						break
					}
				}
				if fs.n != len(want) || fs.bytes != bytes {
					t.Fatalf("seed %d: %d flights of %d bytes, want %d of %d", seed, fs.n, fs.bytes, len(want), bytes)
				}
				k := uint16(r.Uint32())
				if fl := fs.get(k); (fl != nil) != (want[k] != 0) {
					t.Fatalf("seed %d: get(%d): %+v, want offset %d", seed, k, fl, want[k])
				}
			}
		}
	})
	t.Run("a full table of ids", func(t *testing.T) {
		var fs flights
		for id := 1; id <= 65535; id++ {
			if !fs.place(flight{id: uint16(id)}) {
				t.Fatalf("no place for id %d", id)
			}
		}
		if fs.place(flight{id: 7}) {
			t.Error("an id was given twice")
		}
	})
	t.Run("ids that collide", func(t *testing.T) {
		var fs flights
		for _, id := range []uint16{1, 17, 33, 1 + 1<<14, 1 + 1<<15} {
			if !fs.place(flight{id: id}) {
				t.Fatalf("no place for id %d", id)
			}
		}
		if _, ok := fs.take(0); ok {
			t.Error("there is an id 0")
		}
		for _, id := range []uint16{1, 17, 33, 1 + 1<<14, 1 + 1<<15} {
			if _, ok := fs.take(id); !ok {
				t.Errorf("id %d is gone", id)
			}
		}
	})
}

func TestResends(t *testing.T) {
	key := func(feed string, off uint64) flightKey { return flightKey{feed, off} }
	filled := func() *resends {
		r := &resends{}
		r.add(key("a", 5), resend{1, sentQoS1})
		r.add(key("a", 9), resend{2, sentQoS2})
		r.add(key("a", 12), resend{3, released})
		r.add(key("b", 7), resend{4, sentQoS1})
		return r
	}
	for _, tc := range []struct {
		name string
		take flightKey
		to   resend
		ok   bool
		past []uint16 // ids
		left []uint16
	}{
		{"the first", key("a", 5), resend{1, sentQoS1}, true, nil, []uint16{2, 3, 4}},
		{"one out of turn", key("a", 9), resend{2, sentQoS2}, true, nil, []uint16{1, 3, 4}},
		{"one between", key("a", 10), resend{}, false, nil, []uint16{1, 2, 3, 4}},
		{"one before", key("a", 1), resend{}, false, nil, []uint16{1, 2, 3, 4}},
		{"one behind all", key("a", 13), resend{}, false, []uint16{1, 2, 3}, []uint16{4}},
		{"of another feed", key("c", 13), resend{}, false, nil, []uint16{1, 2, 3, 4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := filled()
			to, ok, past := r.take(tc.take)
			var gone []uint16
			for _, p := range past {
				gone = append(gone, p.id)
			}
			slices.Sort(gone)
			if to != tc.to || ok != tc.ok || !slices.Equal(gone, tc.past) {
				t.Errorf("got %v, %v, past %v; want %v, %v, %v", to, ok, gone, tc.to, tc.ok, tc.past)
			}
			for id := uint16(1); id <= 4; id++ {
				if r.reserved(id) != slices.Contains(tc.left, id) {
					t.Errorf("id %d reserved: %v", id, r.reserved(id))
				}
			}
			if again, ok, _ := r.take(tc.take); ok {
				t.Errorf("it comes twice: %v", again)
			}
		})
	}
	t.Run("an id that was used again before a crash", func(t *testing.T) {
		r := filled()
		r.add(key("c", 20), resend{1, sentQoS2})
		if to, ok, _ := r.take(key("a", 5)); ok {
			t.Errorf("the old one is still there: %v", to)
		}
		if to, ok, _ := r.take(key("c", 20)); !ok || to.id != 1 {
			t.Errorf("got %v, %v", to, ok)
		}
	})
	t.Run("clear", func(t *testing.T) {
		r := filled()
		if gone := r.clear(); len(gone) != 4 || !reflect.DeepEqual(*r, resends{}) {
			t.Errorf("%d are gone, left %+v", len(gone), r)
		}
	})
	t.Run("complete", func(t *testing.T) {
		r := filled()
		r.complete(3)
		r.complete(99)
		if to, ok, _ := r.take(key("a", 12)); !ok || to.stage != complete {
			t.Errorf("got %v, %v", to, ok)
		}
	})
}

// Ids that are kept for deliveries which never come again must not run out the others.
func TestPacketIDsDoNotRunOut(t *testing.T) {
	s := &Session{}
	for id := 1; id <= 65535; id++ {
		s.resend.add(flightKey{fmt.Sprint("q/", id%100), uint64(id)}, resend{uint16(id), sentQoS1})
	}
	m := &membership{key: "s/c"}
	w := &outbox{}
	it := testItem(1, 1)
	if id, dup, skip := s.file(m, &it, w); id == 0 || dup || skip {
		t.Errorf("id %d, DUP %v, skip %v", id, dup, skip)
	}
}
