package feed

import (
	"cmp"
	"slices"
	"time"
)

// state of a slot in the window.
type state uint8

const (
	waiting state = iota // for its member to take it
	sent                 // taken, not yet settled
	refused              // to be sent again later, see Feed.tries
	settled              // answered, expired or void
)

// slot is one record between the cursor and the position.
type slot struct {
	Item
	state state
	extra bool // taken before the feed went back: says nothing about the cursor
	m     *Member
	key   *key
	// blocks is the key that a refused item of an ordered queue holds back.
	blocks *key
	sentAt time.Duration // since Hub.began, whatever becomes of the clock; of queues with an AckTimeout
}

// window is a queue of slots named by sequence numbers that are never used twice. Slots leave at the head, once settled.
type window struct {
	slots      []slot // a power of two
	head, tail uint64
}

func (w *window) len() int { return int(w.tail - w.head) }

func (w *window) at(seq uint64) *slot { return &w.slots[seq&uint64(len(w.slots)-1)] }

// has tells whether seq is still in the window.
func (w *window) has(seq uint64) bool { return seq >= w.head && seq < w.tail }

// push returns the new slot at the tail, zero but for its Seq: so trim leaves those that are free.
func (w *window) push() *slot {
	if w.len() == len(w.slots) {
		w.grow()
	}
	s := w.at(w.tail)
	s.Seq = w.tail
	w.tail++
	return s
}

func (w *window) grow() {
	bigger := make([]slot, max(16, 2*len(w.slots)))
	for seq := w.head; seq < w.tail; seq++ {
		bigger[seq&uint64(len(bigger)-1)] = *w.at(seq)
	}
	w.slots = bigger
}

// trim drops the settled slots at the head.
func (w *window) trim() {
	for w.head < w.tail && w.at(w.head).state == settled {
		*w.at(w.head) = slot{}
		w.head++
	}
	if w.head == w.tail && len(w.slots) > 1024 {
		w.slots = nil // an idle feed costs no window
	}
}

// clear empties the window. Sequence numbers go on, so that late settles find nothing.
func (w *window) clear() {
	w.head = w.tail
	w.slots = nil
}

// span is a range of offsets, both ends in it.
type span struct{ from, to uint64 }

// past is what the filters of an era and of all before it have done with: chosen and settled, or not wanted.
type past struct {
	era   uint32
	spans []span // sorted, apart from each other
}

// addPast adds spans to what filters up to era have done with. It changes nothing in place.
func addPast(ps []past, era uint32, spans ...span) []past {
	out := make([]past, 0, len(ps)+1)
	for _, p := range ps {
		if p.era == era {
			spans = append(slices.Clone(spans), p.spans...)
		} else {
			out = append(out, p)
		}
	}
	return append(out, past{era, merge(slices.Clone(spans))})
}

// in tells whether off lies in one of the sorted spans.
func in(spans []span, off uint64) bool {
	i, _ := slices.BinarySearchFunc(spans, off, func(s span, off uint64) int {
		if s.to < off {
			return -1
		}
		return 1
	})
	return i < len(spans) && spans[i].from <= off
}

// merge sorts spans, in place, and joins those that touch.
func merge(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	out := spans[:0]
	for _, s := range spans {
		if n := len(out); n > 0 && s.from <= out[n-1].to+1 {
			out[n-1].to = max(out[n-1].to, s.to)
			continue
		}
		out = append(out, s)
	}
	return out
}

func sorted(offs []uint64) []uint64 {
	slices.Sort(offs)
	return slices.Compact(offs)
}

// seqs is a queue of sequence numbers.
type seqs struct {
	buf  []uint64
	head int
}

func (q *seqs) len() int { return len(q.buf) - q.head }

func (q *seqs) push(seq uint64) {
	if q.head > 0 && q.head == len(q.buf) {
		q.buf, q.head = q.buf[:0], 0
	} else if q.head > 1024 && q.head > len(q.buf)/2 {
		n := copy(q.buf, q.buf[q.head:])
		q.buf, q.head = q.buf[:n], 0
	}
	q.buf = append(q.buf, seq)
}

func (q *seqs) pop() uint64 {
	seq := q.buf[q.head]
	q.head++
	return seq
}

func (q *seqs) peek() uint64 { return q.buf[q.head] }

func (q *seqs) clear() { q.buf, q.head = q.buf[:0], 0 }
