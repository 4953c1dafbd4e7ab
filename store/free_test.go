package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store/record"
)

// freeing is a store that keeps little and looks for numbers to give up when it is told to.
func freeing(dir string) Options {
	o := indexed(dir)
	o.RetainBytes, o.SegmentBytes, o.freeEvery = 64<<10, 4<<10, time.Hour
	return o
}

// free looks for numbers to give up, and forgets their names with the next look.
func (r *running) free() {
	r.t.Helper()
	for range 2 {
		r.indexAll()
		if err := r.Store.free(context.Background()); err != nil {
			r.t.Fatal(err)
		}
	}
}

// turnOver has retention delete all that there is by now.
func (r *running) turnOver() {
	r.t.Helper()
	end := r.Committed()
	id, client := r.topic("filler"), r.client("filler")
	r.await("retention", func() bool {
		for i := range 20 {
			r.put(numbered(id, client, i, 900))
		}
		r.indexAll()
		return r.First() >= end
	})
}

func TestNumbersAreGivenUp(t *testing.T) {
	r := start(t, freeing(t.TempDir()))
	const n = 300
	for i := range n {
		r.put(numbered(r.topic(fmt.Sprint("one/", i)), r.client(fmt.Sprint("c", i)), i, 100))
	}
	first, late := r.topic("one/0"), r.topic("late") // which nothing is published to
	client := r.client("c0")
	r.free()
	if st := r.Stats(); st.FreedTopics != 1 || st.FreedClients != 0 || r.TopicName(late) != "" {
		t.Fatalf("%d topics and %d clients went that have messages, or that has none did not: %q", st.FreedTopics-1, st.FreedClients, r.TopicName(late))
	}
	r.turnOver()
	r.free()
	if st := r.Stats(); st.Topics > 2 || st.FreedTopics < n || st.FreedClients < n {
		t.Errorf("%d topics are left, %d and %d clients went", st.Topics, st.FreedTopics, st.FreedClients)
	}
	if r.TopicName(first) != "" || r.ClientName(client) != "" {
		t.Errorf("names are left: %q, %q", r.TopicName(first), r.ClientName(client))
	}
	if _, ok := r.LookupTopic([]byte("one/0")); ok {
		t.Error("a number is left")
	}
	keys := func(b record.Bucket) (n int) {
		if err := r.Range(b, nil, func(_, _ []byte) bool { n++; return true }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if topics, clients := keys(record.BucketTopics), keys(record.BucketClients); topics > 2 || clients > 2 {
		t.Errorf("the state has %d topics, %d keys of clients", topics, clients)
	}
	again, back := r.topic("one/0"), r.client("c0")
	if again <= late || back <= client || r.TopicName(again) != "one/0" || r.ClientName(back) != "c0" {
		t.Errorf("numbers are used twice: %d after %d, %d after %d", again, late, back, client)
	}
	r.put(numbered(again, back, 7, 100))

	// Numbers are not used twice after a restart either, though the highest were given up.
	high := r.topic("high")
	r.free()
	for i, stop := range []func(*running){(*running).kill, (*running).end} {
		stop(r)
		o := freeing(r.opt.Dir)
		if rep, err := Verify(o); err != nil {
			t.Fatalf("verify: %v, %+v", err, rep)
		}
		r = start(t, o)
		if id := r.topic(fmt.Sprint("next", i)); id <= high {
			t.Errorf("number %d of one that was given up is used again", id)
		} else {
			high = id
		}
		if id, ok := r.LookupTopic([]byte("one/0")); !ok || id != again || r.ClientName(back) != "c0" {
			t.Errorf("one/0 is %d, not %d", id, again)
		}
		for _, rec := range r.read(r.First()) {
			if r.TopicName(rec.Topic) == "" || r.ClientName(rec.Client) == "" {
				t.Errorf("record %d has topic %d, client %d without names", rec.Offset, rec.Topic, rec.Client)
			}
		}
	}
}

// TestNumbersInUseStay: what a Use looked up is not given up before it is done, nor what the program keeps.
func TestNumbersInUseStay(t *testing.T) {
	o := freeing(t.TempDir())
	var keepTopic, keepClient atomic.Uint32
	o.InUse = func(topic, client func(uint32)) (uint64, error) {
		topic(keepTopic.Load())
		client(keepClient.Load())
		return 0, nil
	}
	r := start(t, o)
	keepTopic.Store(r.topic("kept"))
	keepClient.Store(r.client("kept"))
	epoch := r.client("fenced")
	if _, err := r.tryPut([]Mutation{record.Put(record.BucketDedup, topicKey(epoch), []byte{1, 1})}); err != nil {
		t.Fatal(err)
	}
	use := r.Use()
	topic, client := r.topic("used"), r.client("used")
	ctx, cancel := context.WithCancel(context.Background())
	looked := make(chan error)
	before := r.Renumbered()
	go func() { looked <- r.Store.free(ctx) }()
	r.await("it to begin", func() bool { return r.Renumbered() != before })
	asked := r.topic("asked") // it has just begun to leave, or is new
	r.put(numbered(topic, client, 1, 100))
	cancel()
	<-looked
	use.Done()
	r.free()
	for _, id := range []uint32{topic, keepTopic.Load()} {
		if r.TopicName(id) == "" {
			t.Errorf("topic %d was given up", id)
		}
	}
	for _, id := range []uint32{client, keepClient.Load(), epoch} {
		if r.ClientName(id) == "" {
			t.Errorf("client %d was given up", id)
		}
	}
	if r.TopicName(asked) != "" {
		t.Error("what nobody has used was not given up")
	}
}

// TestLimitsOfTopicsThatGo: floor and tally go with the number, and a topic that comes back begins anew.
func TestLimitsOfTopicsThatGo(t *testing.T) {
	o := freeing(t.TempDir())
	o.Topic = policies(map[string]*TopicPolicy{"a": {MaxMessages: 3}, "b": {MaxMessages: 3, Reject: true}})
	r := start(t, o)
	for i := range 10 {
		r.put(numbered(r.topic("a"), r.client("c"), i, 100))
	}
	old := r.topic("a")
	r.topic("b")
	r.turnOver()
	r.await("it to be quiet", func() bool { return r.limits.table().get(old).quiet() || r.limits.table().get(old).untold.To > 0 })
	r.limits.tell()
	r.free()
	if r.TopicName(old) != "" || r.limits.table().get(old) != nil {
		t.Fatal("a topic with limits was not given up")
	}
	for _, b := range []record.Bucket{record.BucketFloors, record.BucketTallies} {
		_ = r.Range(b, nil, func(k, _ []byte) bool {
			t.Errorf("%v of %x is left", b, k)
			return true
		})
	}
	for i := range 5 {
		r.put(numbered(r.topic("a"), r.client("c"), 100+i, 100))
	}
	r.await("the limit to hold", func() bool { return len(r.numbers("a")) <= 3 })
	r.kill()
	r = start(t, o)
	if got := r.numbers("a"); len(got) < 3 || got[len(got)-1] != 104 {
		t.Errorf("after a restart there are %v", got)
	}
}

// TestNumbersInMemoryStay: a message for live subscribers only can be read for a while after it was flushed, and has no segment then.
func TestNumbersInMemoryStay(t *testing.T) {
	o := freeing(t.TempDir())
	o.TailBytes = 1 << 20
	r := start(t, o)
	r.put(numbered(r.topic("stored"), r.client("c"), 0, 10))
	m := numbered(r.topic("live"), r.client("live"), 1, 10)
	m.Flags |= record.FlagTransient
	r.put(m)
	r.free()
	if recs := r.read(r.First()); len(recs) != 2 || r.TopicName(recs[1].Topic) != "live" || r.ClientName(recs[1].Client) != "live" {
		t.Errorf("there are %d messages, the last without a name", len(recs))
	}
}

// TestNumbersUnderWay: publishers use names and leave them, and come back to some, while numbers are given up all the time.
func TestNumbersUnderWay(t *testing.T) {
	o := freeing(t.TempDir())
	o.freeEvery = time.Millisecond
	r := start(t, o)
	var wg sync.WaitGroup
	deadline := time.Now().Add(time.Second)
	check := func(rec *Record, known map[uint32]string) {
		name := r.TopicName(rec.Topic)
		if name == "" || r.ClientName(rec.Client) == "" {
			if rec.Offset >= r.First() {
				t.Errorf("record %d has topic %d, client %d without names", rec.Offset, rec.Topic, rec.Client)
			}
			return
		}
		if was, ok := known[rec.Topic]; ok && was != name {
			t.Errorf("topic %d was %q and is %q", rec.Topic, was, name)
		}
		known[rec.Topic] = name
	}
	for p := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(p), 1))
			var gen uint64
			known := map[int]uint32{} // what the publisher remembers
			for i := 0; time.Now().Before(deadline) && !t.Failed(); i++ {
				func() {
					use := r.Use()
					defer use.Done()
					if g := r.Renumbered(); g != gen {
						gen = g
						clear(known)
					}
					k := rnd.IntN(30)
					if rnd.IntN(3) == 0 {
						k = 100 + rnd.IntN(100_000)
					}
					id, ok := known[k]
					if !ok {
						id = r.topic(fmt.Sprint("t/", k))
						known[k] = id
					}
					m := numbered(id, r.client(fmt.Sprint("c", p, "/", k)), k, 200)
					if rnd.IntN(4) == 0 {
						m.Flags |= record.FlagTransient
					}
					if rnd.IntN(8) == 0 {
						time.Sleep(time.Duration(rnd.IntN(3)) * time.Millisecond)
					}
					if _, err := r.tryPut(nil, m); err != nil {
						t.Error(err)
					}
				}()
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		known := map[uint32]string{}
		_ = r.Follow(ctx, func(g *Group) {
			for i := range g.Entries {
				rec := g.Record(i)
				check(&rec, known)
			}
		})
	})
	r.await("the end", func() bool {
		poke(r.checkpointNow)
		poke(r.Store.flusher.wake)
		return time.Now().After(deadline) && r.Stats().FreedTopics > 0 && r.Stats().FreedClients > 0 || t.Failed()
	})
	r.end()
	cancel()
	wg.Wait()
	r = start(t, freeing(r.opt.Dir))
	known := map[uint32]string{}
	for _, rec := range r.read(r.First()) {
		check(&rec, known)
		if k, err := number(rec); err == nil && r.TopicName(rec.Topic) != fmt.Sprint("t/", k) {
			t.Errorf("record %d of topic t/%d is found under %q", rec.Offset, k, r.TopicName(rec.Topic))
		}
	}
}
