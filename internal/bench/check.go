package bench

import (
	"fmt"
	"strings"
)

// Faults counts what was wrong with the messages that came, and with those that did not.
type Faults struct {
	Lost       int64 `json:"lost"`       // acknowledged (QoS 0: sent) and never delivered
	Reordered  int64 `json:"reordered"`  // delivered after a later one of the same publisher and topic
	Duplicates int64 `json:"duplicates"` // delivered again
	Corrupt    int64 `json:"corrupt"`    // not what was published, or under another topic
}

// Add adds what o has counted.
func (f *Faults) Add(o Faults) {
	f.Lost += o.Lost
	f.Reordered += o.Reordered
	f.Duplicates += o.Duplicates
	f.Corrupt += o.Corrupt
}

// Broken reports whether MQTT's promise for the QoS was broken: duplicates are allowed at QoS 1, losses at QoS 0.
func (f Faults) Broken(qos byte) bool {
	return f.Reordered > 0 || f.Corrupt > 0 || f.Lost > 0 && qos > 0 || f.Duplicates > 0 && qos != 1
}

func (f Faults) String() string {
	var s []string
	for _, c := range []struct {
		n    int64
		what string
	}{{f.Lost, "lost"}, {f.Reordered, "reordered"}, {f.Duplicates, "twice"}, {f.Corrupt, "corrupt"}} {
		if c.n > 0 {
			s = append(s, fmt.Sprint(c.n, " ", c.what))
		}
	}
	if s == nil {
		return "in order"
	}
	return strings.Join(s, ", ")
}

// checker follows what one consumer gets.
type checker struct {
	publishers int
	topics     stretch
	last       []uint32            // highest number seen, of each publisher and topic of the stretch
	missing    map[uint64]struct{} // passed over: pair and number
	tag        uint16              // of the run
	got        int64               // messages that were new
	foreign    int64               // messages of another run, which are passed over
	faults     Faults
}

// stretch is the topics of a consumer: every step'th, from first on, below end.
type stretch struct{ first, step, end int }

func (s stretch) len() int { return (s.end - s.first + s.step - 1) / s.step }

// index is the place of a topic in the stretch, -1 if it is not in it.
func (s stretch) index(topic int) int {
	if topic < s.first || topic >= s.end || (topic-s.first)%s.step != 0 {
		return -1
	}
	return (topic - s.first) / s.step
}

// topicsOf are the topics of consumer i: all, or its share. With fewer topics than consumers, consumers share them.
func (l *Load) topicsOf(i int) stretch {
	switch {
	case l.All:
		return stretch{0, 1, l.Topics}
	case l.Topics < l.Consumers:
		t := i % l.Topics
		return stretch{t, 1, t + 1}
	}
	return stretch{i, l.Consumers, l.Topics}
}

func newChecker(publishers int, topics stretch) *checker {
	return &checker{publishers: publishers, topics: topics, last: make([]uint32, publishers*topics.len()), missing: map[uint64]struct{}{}}
}

// see notes a message and returns when it was published; ok is false if that cannot be said.
func (k *checker) see(names []string, topic, payload []byte) (at int64, ok bool) {
	p, t, number, at, ok := unseal(payload)
	if ok && uint16(uint64(at)>>timeBits) != k.tag {
		k.foreign++
		return 0, false
	}
	at &= 1<<timeBits - 1
	if !ok || int(p) >= k.publishers || int(t) >= len(names) || string(topic) != names[t] {
		k.faults.Corrupt++
		return 0, false
	}
	i := k.topics.index(int(t))
	if i < 0 {
		k.faults.Corrupt++ // not subscribed to
		return 0, false
	}
	pair := int(p)*k.topics.len() + i
	last := &k.last[pair]
	if number > *last {
		for n := *last + 1; n < number; n++ {
			k.missing[uint64(pair)<<32|uint64(n)] = struct{}{}
		}
		*last = number
		k.got++
		return at, true
	}
	key := uint64(pair)<<32 | uint64(number)
	if _, late := k.missing[key]; late {
		delete(k.missing, key)
		k.faults.Reordered++
		k.got++
	} else {
		k.faults.Duplicates++
	}
	return at, true
}

// finish counts what never came: sent has the highest number of each publisher and topic.
func (k *checker) finish(sent func(publisher, topic int) uint32) Faults {
	f := k.faults
	f.Lost = int64(len(k.missing))
	for p := range k.publishers {
		for i := range k.topics.len() {
			f.Lost += int64(sent(p, k.topics.first+i*k.topics.step) - k.last[p*k.topics.len()+i])
		}
	}
	return f
}
