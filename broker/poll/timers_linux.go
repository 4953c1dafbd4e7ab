package poll

import "time"

// timers are the sockets whose time will be over some day, a heap. Each knows its place, so that it can be moved.
type timers []*Socket

// set has a socket's time be over then; zero is never.
func (t *timers) set(s *Socket, due time.Duration) {
	h := *t
	switch i := int(s.place) - 1; {
	case i < 0 && due == 0:
		return
	case i < 0:
		s.due = due
		*t = append(h, s)
		t.up(len(h))
	case due == 0:
		last := len(h) - 1
		moved := h[last]
		h[i], h[last] = moved, nil
		*t = h[:last]
		if s.place = 0; i < last {
			t.up(i)
			t.down(int(moved.place) - 1)
		}
	default:
		s.due = due
		t.up(i)
		t.down(int(s.place) - 1)
	}
}

func (t *timers) up(i int) {
	h := *t
	s := h[i]
	for i > 0 {
		p := (i - 1) / 2
		if s.due >= h[p].due {
			break
		}
		h[i] = h[p]
		h[i].place = int32(i + 1)
		i = p
	}
	h[i] = s
	s.place = int32(i + 1)
}

func (t *timers) down(i int) {
	h := *t
	s := h[i]
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].due < h[c].due {
			c++
		}
		if h[c].due >= s.due {
			break
		}
		h[i] = h[c]
		h[i].place = int32(i + 1)
		i = c
	}
	h[i] = s
	s.place = int32(i + 1)
}
