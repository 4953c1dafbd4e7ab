package store

import (
	"errors"
	"testing"
)

// FuzzLimitValues reads arbitrary bytes as a topic's floor and tally; what is taken comes back when it is written again.
func FuzzLimitValues(f *testing.F) {
	l := &TopicLimit{id: 7}
	l.floor.Store(300)
	l.gone.Records, l.gone.Bytes = 3, 1<<40
	f.Add(l.mutation().Value)
	f.Add(l.tally().Value)
	f.Add([]byte{2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := parseThree(b, floorVersion, errFloor)
		if err != nil {
			if !errors.Is(err, errFloor) && !errors.Is(err, ErrVersion) {
				t.Errorf("%x: %v", b, err)
			}
			return
		}
		l := &TopicLimit{id: 7}
		l.floor.Store(v[0])
		l.gone.Records, l.gone.Bytes = v[1], v[2]
		if again, err := parseThree(l.mutation().Value, floorVersion, errFloor); err != nil || again != v {
			t.Errorf("%x is %v, and then %v, %v", b, v, again, err)
		}
	})
}
