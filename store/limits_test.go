package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store/record"
)

// policies gives topics the policy of the first word of their name.
func policies(by map[string]*TopicPolicy) func(string) *TopicPolicy {
	return func(topic string) *TopicPolicy {
		word, _, _ := strings.Cut(topic, "/")
		return by[word]
	}
}

// publish is put for a topic with limits: it asks first, as the broker does.
func (r *running) publish(msg Message) error {
	r.t.Helper()
	if l := r.Limit(msg.Topic); l != nil {
		if err := l.Admit(len(msg.Props) + len(msg.Payload)); err != nil {
			return err
		}
		msg.Flags |= FlagAdmitted
	}
	r.put(msg)
	return nil
}

// numbers returns the numbers of the messages that can be read of a topic.
func (r *running) numbers(topic string) []int {
	r.t.Helper()
	out := []int{}
	for _, rec := range r.read(1) {
		if r.TopicName(rec.Topic) != topic {
			continue
		}
		n, err := number(rec)
		if err != nil {
			r.t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

// span are the whole numbers from a to b.
func span(a, b int) []int {
	out := []int{}
	for i := a; i <= b; i++ {
		out = append(out, i)
	}
	return out
}

func (r *running) want(what, topic string, numbers []int) {
	r.t.Helper()
	if got := r.numbers(topic); !slices.Equal(got, numbers) {
		r.t.Errorf("%s: %s holds %v, not %v", what, topic, got, numbers)
	}
}

func TestTopicLimits(t *testing.T) {
	size := int64(record.Size(0, 100))
	tests := []struct {
		name    string
		policy  TopicPolicy
		left    []int // of 20
		refused int
	}{
		{"messages", TopicPolicy{MaxMessages: 7}, span(13, 19), 0},
		{"bytes", TopicPolicy{MaxBytes: 5*size + 1}, span(15, 19), 0},
		{"whichever is less", TopicPolicy{MaxBytes: 5 * size, MaxMessages: 3}, span(17, 19), 0},
		{"one", TopicPolicy{MaxMessages: 1}, span(19, 19), 0},
		{"a message that is too long", TopicPolicy{MaxBytes: size - 1}, span(1, 0), 20},
		{"reject messages", TopicPolicy{MaxMessages: 7, Reject: true}, span(0, 6), 13},
		{"reject bytes", TopicPolicy{MaxBytes: 3*size + size/2, Reject: true}, span(0, 2), 17},
		{"last", TopicPolicy{Last: true}, span(19, 19), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := small(t.TempDir())
			o.Topic = policies(map[string]*TopicPolicy{"a": &tt.policy})
			r := start(t, o)
			refused := 0
			for i := range 20 {
				switch err := r.publish(numbered(r.topic("a/1"), r.client("c"), i, 100)); {
				case errors.Is(err, ErrTopicFull), errors.Is(err, ErrTopicTooLong):
					refused++
				case err != nil:
					t.Fatal(err)
				}
				r.put(numbered(r.topic("other"), r.client("c"), i, 100))
			}
			check := func(when string) {
				t.Helper()
				r.want(when, "a/1", tt.left)
				r.want(when, "other", span(0, 19))
				totals, err := r.TopicTotals()
				if err != nil || totals[r.topic("a/1")].Records != uint64(len(tt.left)) {
					t.Errorf("%s: %v in all, %v", when, totals[r.topic("a/1")], err)
				}
			}
			check("at once")
			if refused != tt.refused || r.Stats().TopicRefused != uint64(refused) {
				t.Errorf("%d refused, %d counted", refused, r.Stats().TopicRefused)
			}
			if st := r.Stats(); !tt.policy.Last && int(st.TopicDropped)+len(tt.left)+refused != 20 {
				t.Errorf("%d dropped, %d left, %d refused", st.TopicDropped, len(tt.left), refused)
			}
			r.kill()
			r = start(t, o)
			r.await("what is too much to be dropped again", func() bool { return len(r.numbers("a/1")) <= len(tt.left) })
			check("after a kill")
			r.checkpointAll()
			r.end()
			if report, err := Verify(o); err != nil {
				t.Errorf("verify: %v %v", err, report.Damage)
			}
			r = start(t, o)
			check("after a stop")
			for i := 20; i < 23; i++ {
				if err := r.publish(numbered(r.topic("a/1"), r.client("c"), i, 100)); (err != nil) != (tt.refused > 0) {
					t.Errorf("after restarts: %v", err)
				}
			}
			if n := len(r.numbers("a/1")); n != len(tt.left) {
				t.Errorf("%d after restarts and three more, %d before", n, len(tt.left))
			}
		})
	}
}

// What somebody has yet to consume is not dropped: then drop_oldest refuses.
func TestTopicLimitsProtect(t *testing.T) {
	var low atomic.Uint64
	low.Store(1)
	o := small(t.TempDir())
	o.ProtectTopic = func(string) uint64 { return low.Load() }
	o.Topic = policies(map[string]*TopicPolicy{"a": {MaxMessages: 5}, "free": {MaxMessages: 5, Unprotected: true}})
	r := start(t, o)
	a, free, c := r.topic("a"), r.topic("free"), r.client("c")
	for i := range 8 {
		if err := r.publish(numbered(a, c, i, 10)); (err != nil) != (i >= 5) {
			t.Errorf("publish %d: %v", i, err)
		}
	}
	r.want("protected", "a", span(0, 4))
	low.Store(r.Committed() - 2) // 0, 1 and 2 are consumed
	for i := range 5 {
		if err := r.publish(numbered(a, c, 10+i, 10)); (err != nil) != (i >= 3) {
			t.Errorf("publish %d: %v", 10+i, err)
		}
	}
	r.want("consumed in part", "a", []int{3, 4, 10, 11, 12})
	low.Store(1)
	r.ProtectionChanged()
	for i := range 8 {
		if err := r.publish(numbered(free, c, i, 10)); err != nil {
			t.Errorf("unprotected: %v", err)
		}
	}
	r.want("unprotected", "free", span(3, 7))
	if st := r.Stats(); st.TopicRefused != 5 || st.TopicDropped != 6 {
		t.Errorf("%d refused, %d dropped", st.TopicRefused, st.TopicDropped)
	}
}

func TestTopicMaxAge(t *testing.T) {
	var low atomic.Uint64
	low.Store(^uint64(0))
	o := small(t.TempDir())
	r, c := aged(t, func(a *Options) {
		a.ProtectTopic = func(string) uint64 { return low.Load() }
		a.Topic = policies(map[string]*TopicPolicy{"hour": {MaxAge: time.Hour}, "last": {MaxAge: time.Hour, Last: true}})
		o = *a
	})
	for i := range 90 {
		r.put(numbered(r.topic("hour"), r.client("c"), i, 10))
		if i < 5 {
			r.put(numbered(r.topic("last"), r.client("c"), i, 10))
		}
		r.put(numbered(r.topic("ever"), r.client("c"), i, 10))
		c.advance(time.Minute)
	}
	r.await("the oldest to go", func() bool { return slices.Equal(r.numbers("hour"), span(30, 89)) })
	r.await("the last one of all to go", func() bool { return len(r.numbers("last")) == 0 })
	r.want("no limit", "ever", span(0, 89))
	if st := r.Stats(); st.TopicAged != 31 {
		t.Errorf("%d are too old", st.TopicAged)
	}
	low.Store(1)
	r.ProtectionChanged()
	c.advance(time.Hour)
	time.Sleep(60 * time.Millisecond)
	r.want("protected", "hour", span(30, 89))
	r.end()
	r = start(t, o)
	r.want("after a restart", "hour", span(30, 89))
	r.put(numbered(r.topic("last"), r.client("c"), 7, 10))
	r.want("a new last one", "last", span(7, 7))
}

// TestTopicLimitsConcurrent: however many publish at once, never is more admitted than may be, and what can be read is the newest.
func TestTopicLimitsConcurrent(t *testing.T) {
	o := small(t.TempDir())
	o.Topic = policies(map[string]*TopicPolicy{"a": {MaxMessages: 50}, "r": {MaxMessages: 50, Reject: true}})
	r := start(t, o)
	a, full := r.topic("a"), r.topic("r")
	var wg sync.WaitGroup
	var taken atomic.Int64
	for w := range 4 {
		wg.Go(func() {
			c := r.client(fmt.Sprint("c", w))
			for i := range 300 {
				if err := r.publish(numbered(a, c, i, 10)); err != nil {
					t.Error(err)
				}
				if r.publish(numbered(full, c, i, 10)) == nil {
					taken.Add(1)
				}
			}
		})
	}
	wg.Wait()
	r.await("the limit to be kept", func() bool { return len(r.numbers("a")) == 50 })
	if n := len(r.numbers("r")); n != 50 || taken.Load() != 50 {
		t.Errorf("%d of the topic that rejects, %d were taken", n, taken.Load())
	}
	l := r.Store.limits.table().get(a)
	if n := l.messages.Load(); n != 50 {
		t.Errorf("%d are counted", n)
	}
}

// The bytes of what was dropped go when their segment can go, and nothing else does.
func TestTopicLimitsFreeSegments(t *testing.T) {
	for _, policy := range []TopicPolicy{{MaxMessages: 10}, {Last: true}} {
		o := small(t.TempDir())
		o.SegmentBytes, o.SharedBelow, o.TailBytes = 8<<10, 1, 1
		o.Topic = policies(map[string]*TopicPolicy{"a": &policy})
		o.Protect = func() uint64 { return 1 } // somebody needs everything, of topics without limits
		r := start(t, o)
		for i := range 200 {
			if err := r.publish(numbered(r.topic("a"), r.client("one"), i, 1000)); err != nil {
				t.Fatal(err)
			}
			if i%20 == 0 {
				r.put(numbered(r.topic("b"), r.client("two"), i, 1000))
			}
		}
		r.checkpointAll()
		r.await("segments to go", func() bool { return r.Stats().SegmentBytes < 40<<10 })
		left := span(190, 199)
		if policy.Last {
			left = span(199, 199)
		}
		r.want("a", "a", left)
		if n := len(r.numbers("b")); n != 10 {
			t.Errorf("%d of the other topic are left", n)
		}
		r.end()
		if report, err := Verify(o); err != nil {
			t.Errorf("verify: %v %v", err, report.Damage)
		}
		r = start(t, o)
		r.want("after a restart", "a", left)
		r.end()
	}
}

// A policy may come and go between two runs.
func TestTopicPolicyChanges(t *testing.T) {
	o := small(t.TempDir())
	put := func(policy *TopicPolicy, from, to int) *running {
		o.Topic = policies(map[string]*TopicPolicy{"a": policy})
		r := start(t, o)
		for _, i := range span(from, to) {
			_ = r.publish(numbered(r.topic("a"), r.client("c"), i, 10))
		}
		return r
	}
	r := put(nil, 0, 9)
	r.want("no policy", "a", span(0, 9))
	r.end()
	r = put(&TopicPolicy{MaxMessages: 12, Reject: true}, 10, 14)
	r.want("twelve", "a", span(0, 11))
	r.end()
	r = put(&TopicPolicy{MaxMessages: 4}, 0, -1)
	r.await("four to be left", func() bool { return slices.Equal(r.numbers("a"), span(8, 11)) })
	r.kill()
	r = put(nil, 12, 15)
	r.want("what was dropped stays so", "a", span(8, 15))
	r.end()
	r = put(&TopicPolicy{MaxMessages: 6}, 16, 16)
	r.want("counted again", "a", span(11, 16))
	r.end()
	r = put(&TopicPolicy{Last: true}, 0, -1)
	r.want("the last", "a", span(16, 16))
	r.end()
	r = put(&TopicPolicy{MaxMessages: 3}, 17, 18)
	r.want("no longer the last alone", "a", span(16, 18))
	r.end()
}

// What a reader is not handed since it was dropped is counted, if it wants to know.
func TestReadCountsDropped(t *testing.T) {
	o := small(t.TempDir())
	o.TailBytes, o.indexBlock = 1, 16
	o.Topic = policies(map[string]*TopicPolicy{"a": {MaxMessages: 5}, "l": {Last: true}})
	r := start(t, o)
	a, b, l, c := r.topic("a"), r.topic("b"), r.topic("l"), r.client("c")
	for i := range 40 {
		for _, topic := range []uint32{a, b, l} {
			if err := r.publish(numbered(topic, c, i, 10)); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(when string) {
		t.Helper()
		var gap Gap
		recs, next := []Record(nil), uint64(10)
		for next < r.Committed() {
			var err error
			recs, next, err = r.NewReader().Read(recs, next, Limits{Dropped: &gap, Topics: func(t uint32) bool { return t != b }}, func(_ uint64, t uint32) bool { return t != b })
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(recs) != 6 || gap != (Gap{From: 10, To: 104, Records: 32}) { // 4, 7, … are of a
			t.Errorf("%s: %d records, %+v", when, len(recs), gap)
		}
		if n, err := r.Count(10, r.Committed(), func(t uint32) bool { return t != b }); err != nil || n.Records != 6 {
			t.Errorf("%s: counted %v, %v", when, n, err)
		}
		first, last, err := r.Ends(func(t uint32) bool { return t == a })
		if err != nil || first != 106 || last != 118 {
			t.Errorf("%s: from %d to %d, %v", when, first, last, err)
		}
	}
	check("in memory")
	r.checkpointAll()
	check("on disk")
	r.await("the index", func() bool { return r.Stats().Indexed >= 112 })
	check("with an index")
}

// TestLimitTable: a number that was given before, to a topic that could not be stored, has the limits of the topic that has it now.
func TestLimitTable(t *testing.T) {
	var x limits
	x.init(&Store{})
	if x.table().get(2) != nil {
		t.Error("limits before there is a table")
	}
	for _, p := range []*TopicPolicy{{MaxMessages: 1}, {MaxMessages: 2}} {
		x.put(2, p)
		if l := x.table().get(2); l == nil || l.policy != p {
			t.Error("the new policy is not in force")
		}
	}
	x.put(2, nil)
	x.put(3, nil)
	if x.table().get(2) != nil || x.table().get(3) != nil || x.table().get(manyTopics) != nil {
		t.Error("limits of a topic that has none")
	}
}

// What a full topic will drop next is read in advance, and not by the publisher whose message takes its place.
func TestDropsAreReadInAdvance(t *testing.T) {
	o := small(t.TempDir())
	o.Topic = policies(map[string]*TopicPolicy{"a": {MaxMessages: 2 * readAhead}})
	r := start(t, o)
	id, client := r.topic("a"), r.client("c")
	publish := func(n int) {
		for i := range n {
			if err := r.publish(numbered(id, client, i, 10)); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := r.Limit(id)
	ahead := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.ahead)
	}
	publish(2*readAhead + 1) // the first drop
	for range 5 {
		publish(readAhead * 3 / 4)
		r.await("more to be read in advance", func() bool { return ahead() >= readAhead/2 })
	}
	if got := r.Stats().TopicDropped; got != 1+5*readAhead*3/4 {
		t.Errorf("%d dropped", got)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.depth != readAhead {
		t.Errorf("a publisher had to read itself: %d are read in advance now", l.depth)
	}
}
