package feed

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/edgemq/edgemq/store"
)

func TestCursorBytes(t *testing.T) {
	for _, tc := range []struct {
		name string
		c    cursor
		want []byte
	}{
		{"nothing", cursor{}, []byte{1, 0, 0, 0, 0}},
		{"a plain one", cursor{at: 300, sent: 299}, []byte{1, 0xAC, 2, 0xAB, 2, 0, 0}},
		{"settled ahead", cursor{at: 5, sent: 9, done: []past{{0, []span{{6, 6}, {8, 9}}}}}, []byte{1, 5, 9, 1, 0, 2, 6, 0, 2, 1, 0}},
		{
			"walking back",
			cursor{at: 1, sent: 9, done: []past{{0, []span{{0, 4}}}, {3, []span{{2, 2}}}}, extra: []uint64{3, 7}},
			[]byte{1, 1, 9, 2, 0, 1, 0, 4, 3, 1, 2, 0, 2, 3, 4},
		},
		{"a gap", cursor{at: 5, since: 9, gap: Gap{From: 2, To: 300, Records: 7}}, []byte{2, 9, 2, 0xAC, 2, 7, 5, 0, 0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := tc.c.append(nil)
			if !bytes.Equal(b, tc.want) {
				t.Errorf("encoded % d, want % d", b, tc.want)
			}
			if got, err := parseCursor(b); err != nil || !reflect.DeepEqual(got, tc.c) {
				t.Errorf("decoded %+v, %v; want %+v", got, err, tc.c)
			}
		})
	}
}

func TestCursorRefused(t *testing.T) {
	for _, tc := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, errCursor},
		{"newer", []byte{3, 0, 0, 0, 0}, store.ErrVersion},
		{"no version", []byte{0, 0, 0, 0, 0}, errCursor},
		{"a gap that is none", []byte{2, 0, 0, 0, 0, 0, 0, 0, 0}, errCursor},
		{"short", []byte{1, 0, 0, 0}, errCursor},
		{"trailing", []byte{1, 0, 0, 0, 0, 0}, errCursor},
		{"many spans and no bytes", []byte{1, 0, 0, 1, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F}, errCursor},
		{"spans that touch backwards", []byte{1, 0, 0, 1, 0, 2, 6, 0, 0, 1, 0}, errCursor},
		{"extra twice", []byte{1, 0, 0, 0, 2, 3, 0}, errCursor},
		{"an era without spans", []byte{1, 0, 0, 1, 0, 0, 0}, errCursor},
		{"over the end of offsets", append([]byte{1, 0, 0, 1, 0, 1, 1}, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1, 0), errCursor},
	} {
		if c, err := parseCursor(tc.b); !errors.Is(err, tc.want) {
			t.Errorf("%s: %+v, %v; want %v", tc.name, c, err, tc.want)
		}
	}
}

func FuzzParseCursor(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0})
	f.Add((&cursor{at: 1, sent: 9, done: []past{{0, []span{{0, 4}}}, {3, []span{{2, 2}, {4, 9}}}}, extra: []uint64{3, 7}}).append(nil))
	f.Add((&cursor{at: 5, since: 9, gap: Gap{From: 2, To: 300, Records: 7}}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseCursor(b)
		if err != nil {
			return
		}
		if again := c.append(nil); !bytes.Equal(again, b) {
			t.Fatalf("decode then encode changed % x to % x", b, again)
		}
		for _, p := range c.done {
			for i, s := range p.spans {
				if s.from > s.to || i > 0 && s.from <= p.spans[i-1].to {
					t.Fatalf("spans %v out of order", p.spans)
				}
			}
		}
	})
}

func FuzzParseBinding(f *testing.F) {
	f.Add(appendBinding(Filter{From: 300, Era: 7}))
	f.Add([]byte{1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		flt, ended, last, err := parseBinding("f", b)
		again := appendBinding(flt)
		if ended {
			again = (&ghost{flt, last}).append(nil)
		}
		if err == nil && !bytes.Equal(again, b) {
			t.Fatalf("decode then encode changed % x", b)
		}
	})
}

func TestSpans(t *testing.T) {
	m := merge([]span{{8, 9}, {1, 2}, {3, 3}, {5, 6}, {5, 5}, {9, 12}})
	if want := []span{{1, 3}, {5, 6}, {8, 12}}; !reflect.DeepEqual(m, want) {
		t.Fatalf("merged to %v, want %v", m, want)
	}
	for off := range uint64(15) {
		want := off >= 1 && off <= 3 || off == 5 || off == 6 || off >= 8 && off <= 12
		if in(m, off) != want {
			t.Errorf("%d in %v: %v", off, m, !want)
		}
	}
	if in(nil, 0) || in(m, math.MaxUint64) {
		t.Error("in nothing, or beyond")
	}
	before := []past{{0, []span{{1, 2}}}, {1, []span{{7, 7}}}}
	after := addPast(before, 1, span{8, 9})
	if want := []past{{0, []span{{1, 2}}}, {1, []span{{7, 9}}}}; !reflect.DeepEqual(after, want) {
		t.Errorf("added to %v, want %v", after, want)
	}
	if !reflect.DeepEqual(before, []past{{0, []span{{1, 2}}}, {1, []span{{7, 7}}}}) {
		t.Errorf("the old one changed: %v", before)
	}
}
