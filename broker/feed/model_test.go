package feed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// The model: publishers, consumers and a script run at once over a disk that loses power now and then. What each feed
// handed out is checked against what was acknowledged to the publishers.

// acked is a publish that was acknowledged.
type acked struct {
	id     string // its payload: publisher, topic, number
	topic  string
	offset uint64
}

// tally is what the model knows of one feed, over all its lives.
type tally struct {
	name   string
	shared bool
	from   map[string]uint64 // by filter: where it holds from
	ended  map[string]bool   // filters that were removed: what only they match may or may not come
	first  map[string]int    // by publisher and topic: the number of the newest message that came
	got    map[string]*fate  // by id
}

// fate is what became of one message in one feed.
type fate struct {
	holder  *consumer // has it and has not settled it
	settled bool
	again   bool // it may come again: a holder left or refused it, or a crash
	refused bool // once; since then it comes out of turn, perhaps to the same member again
}

type world struct {
	t     *testing.T
	seed  uint64
	disk  *vfstest.Disk
	n     *node
	queue *Queues

	mu     sync.Mutex
	dead   bool // the power is off: what happens now has not happened
	acked  []acked
	number map[string]int // by publisher and topic
	tally  map[string]*tally
	feeds  map[string]*Feed
	taint  string // topics for which duplicates are allowed, by prefix
	err    error

	consumers []*consumer
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil && !w.dead {
		w.err = fmt.Errorf(format, args...)
	}
}

// small bounds make every way of falling behind happen with little data.
var small = bounds{records: 24, bytes: 4 << 10, span: 96}

var modelTopics = []string{"a/1", "a/2", "a", "b/1", "c/x", "$queue/q", "$queue/other"}

func (w *world) open() {
	w.n = open(w.t, w.disk, "data", small)
	w.queue = w.n.queues
	var err error
	for _, name := range []string{"q", "other"} {
		if w.feeds["q/"+name], err = w.queue.Use(name); err != nil {
			w.t.Fatal(err)
		}
		p := Policy{MaxDeliveries: -1, RetryDelay: []time.Duration{time.Millisecond, 5 * time.Millisecond}}
		if err := w.queue.SetPolicy(name, p); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, t := range w.tally {
		if t.shared {
			continue
		}
		var filters []Filter
		for flt, from := range t.from {
			filters = append(filters, Filter{Filter: flt, From: from, QoS: 2})
		}
		if w.feeds[t.name], err = w.n.hub.Open(t.name, Options{Durable: true, Start: Now}, filters...); err != nil {
			w.t.Fatal(err)
		}
	}
	w.dead = false
	w.n.run()
	if len(w.acked) == 0 { // the first life
		for _, f := range w.feeds {
			w.n.save(f)
		}
	}
}

// consumer is a member of a feed: a goroutine that takes and settles as it likes.
type consumer struct {
	w     *world
	t     *tally
	m     *Member
	rng   *rand.Rand
	lazy  bool // it settles late
	picky bool // it refuses some
	wake  chan struct{}
	quit  chan struct{}
	done  sync.WaitGroup
	has   []Item          // taken and not settled
	last  map[string]int  // by publisher and topic: number of the last that came
	seen  map[string]bool // ids that came
	keys  map[string]int  // by publisher: how many of has
}

func (c *consumer) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (w *world) join(t *tally, rng *rand.Rand, lazy bool) {
	c := &consumer{
		w: w, t: t, rng: rand.New(rand.NewPCG(rng.Uint64(), 1)), lazy: lazy, picky: !lazy && rng.IntN(2) == 0,
		wake: make(chan struct{}, 1), quit: make(chan struct{}),
		last: map[string]int{}, seen: map[string]bool{}, keys: map[string]int{},
	}
	w.mu.Lock()
	c.m = w.feeds[t.name].Join(c, 2)
	w.consumers = append(w.consumers, c)
	w.mu.Unlock()
	c.done.Go(c.run)
}

func (c *consumer) run() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-c.quit:
			return
		case <-c.wake:
		case <-tick.C:
		}
		c.turn(1+c.rng.IntN(8), 1+c.rng.IntN(600))
	}
}

// turn takes something and settles something.
func (c *consumer) turn(items, bytes int) {
	if len(c.has) < 40 {
		// What is taken and what is known of it change together: another member may be handed what this one settles.
		c.w.mu.Lock()
		for _, it := range c.m.Take(nil, items, bytes) {
			c.took(it)
		}
		c.w.mu.Unlock()
	}
	if c.lazy && c.rng.IntN(20) > 0 {
		return
	}
	c.rng.Shuffle(len(c.has), func(i, j int) { c.has[i], c.has[j] = c.has[j], c.has[i] })
	c.settle(c.rng.IntN(len(c.has) + 1))
}

func parts(id string) (publisher, stream string, n int) {
	f := strings.Split(id, "|")
	_, _ = fmt.Sscan(f[2], &n)
	return f[0], f[0] + "|" + f[1], n
}

// took notes and checks one delivery; w.mu is held.
func (c *consumer) took(it Item) {
	w, t := c.w, c.t
	id := string(it.Payload)
	publisher, stream, n := parts(id)
	name := w.n.store.TopicName(it.Topic)
	if !strings.Contains(id, "|"+name+"|") {
		w.fail("%s: topic %q came with payload %q", t.name, name, id)
	}
	wanted := false
	for flt, from := range t.from {
		wanted = wanted || topic.Match(flt, name) && it.Offset >= from
	}
	tainted := strings.HasPrefix(name, w.taint)
	if !wanted && !tainted {
		w.fail("%s: got %q at %d, which no filter of %v matches", t.name, id, it.Offset, t.from)
	}
	if it.QoS > 0 {
		c.has = append(c.has, it)
	}
	f := t.got[id]
	if f == nil {
		f = &fate{}
		t.got[id] = f
		if n <= t.first[stream] && !tainted {
			w.fail("%s: %q came after number %d of its stream", t.name, id, t.first[stream])
		}
		t.first[stream] = max(t.first[stream], n)
	} else if !f.again && !tainted {
		w.fail("%s: %q came twice (holder %p, settled %v)", t.name, id, f.holder, f.settled)
	}
	if c.seen[id] && !tainted && !f.refused {
		w.fail("%s: %q came twice to one member", t.name, id)
	}
	if n <= c.last[stream] && !tainted && !f.refused {
		w.fail("%s: %q came to a member after number %d of its stream", t.name, id, c.last[stream])
	}
	for _, other := range w.consumers {
		if t.shared && other != c && other.t == t && other.keys[publisher] > 0 {
			w.fail("%s: %q came while another member has %d of its publisher", t.name, id, other.keys[publisher])
		}
	}
	c.seen[id], c.last[stream] = true, max(n, c.last[stream])
	f.again, f.holder = false, nil
	if f.settled = it.QoS == 0; !f.settled {
		f.holder = c
		c.keys[publisher]++
	}
}

// settle settles the first n of what the consumer has.
func (c *consumer) settle(n int) {
	if n == 0 {
		return
	}
	var seqs []uint64
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	for _, it := range c.has[:n] {
		id := string(it.Payload)
		publisher, _, _ := parts(id)
		c.keys[publisher]--
		f := c.t.got[id]
		if c.t.shared && c.picky && c.rng.IntN(10) == 0 {
			f.holder, f.again, f.refused = nil, true, true
			c.m.Refuse(it.Seq, "", DefaultDelay)
			continue
		}
		seqs = append(seqs, it.Seq)
		if f.holder == c {
			f.holder, f.settled = nil, true
		}
	}
	c.m.Settle(seqs...)
	c.has = slices.Delete(c.has, 0, n)
}

// leave ends a consumer.
func (c *consumer) leave() {
	close(c.quit)
	c.done.Wait()
	c.w.mu.Lock()
	for _, it := range c.has {
		if f := c.t.got[string(it.Payload)]; f.holder == c {
			f.holder, f.again = nil, true
		}
	}
	clear(c.keys)
	c.m.Leave()
	c.w.mu.Unlock()
}

func (w *world) leave(i int) {
	c := w.consumers[i]
	c.leave()
	w.mu.Lock()
	w.consumers = slices.Delete(w.consumers, i, i+1)
	w.mu.Unlock()
}

// waits is the answer to one append.
type waits struct {
	w    *world
	list []acked
	done *sync.WaitGroup
}

func (a *waits) Committed(base uint64, err error) {
	defer a.done.Done()
	if err != nil {
		return
	}
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if a.w.dead {
		return
	}
	for i, m := range a.list {
		m.offset = base + uint64(i)
		a.w.acked = append(a.w.acked, m)
	}
}

// publish appends batches of one publisher until told to stop, or the store is closed.
func (w *world) publish(publisher string, rng *rand.Rand, quit chan struct{}) {
	client, err := w.n.store.ClientID(publisher, false)
	if err != nil {
		return
	}
	var pending sync.WaitGroup
	defer pending.Wait()
	for {
		select {
		case <-quit:
			return
		default:
		}
		a := &waits{w: w, done: &pending}
		var msgs []store.Message
		for range 1 + rng.IntN(12) {
			name := modelTopics[rng.IntN(len(modelTopics))]
			id, err := w.n.store.TopicID(name)
			if err != nil {
				return
			}
			stream := publisher + "|" + name
			w.mu.Lock()
			w.number[stream]++
			p := fmt.Sprintf("%s|%d", stream, w.number[stream])
			w.mu.Unlock()
			m := store.Message{Topic: id, Client: client, Payload: []byte(p)}
			m.Flags = m.Flags.WithQoS(1)
			if publisher == "p0" && rng.IntN(3) == 0 {
				m.Flags = m.Flags.WithQoS(0)
			}
			msgs = append(msgs, m)
			a.list = append(a.list, acked{id: p, topic: name})
		}
		pending.Add(1)
		if err := w.n.store.Append(msgs, nil, true, a); err != nil {
			pending.Done()
			return
		}
		if rng.IntN(3) > 0 {
			pending.Wait() // a publisher with a window of one
		}
		time.Sleep(time.Duration(rng.IntN(1500)) * time.Microsecond)
	}
}

// script changes who consumes what, for a while.
func (w *world) script(rng *rand.Rand, steps int) {
	tallies := []*tally{w.tally["q/q"], w.tally["q/other"], w.tally["s/one"], w.tally["s/two"]}
	for range steps {
		time.Sleep(time.Duration(rng.IntN(8000)) * time.Microsecond)
		t := tallies[rng.IntN(len(tallies))]
		var members []int
		for i, c := range w.consumers {
			if c.t == t {
				members = append(members, i)
			}
		}
		switch op := rng.IntN(10); {
		case op < 5 && (len(members) == 0 || t.shared && len(members) < 4):
			w.join(t, rng, rng.IntN(4) == 0)
		case op < 8 && len(members) > 0:
			w.leave(members[rng.IntN(len(members))])
		case t.shared && op == 8:
			w.bind(t, []string{"a/#", "a/1", "b/+", "+/1", "c/x", "#"}[rng.IntN(6)])
		case !t.shared:
			w.subscribe(t, []string{"b/+", "c/#", "a"}[rng.IntN(3)])
		case t.from["c/x"] > 0:
			w.mu.Lock()
			delete(t.from, "c/x")
			t.ended["c/x"] = true
			w.mu.Unlock()
			if _, err := w.queue.Unbind(w.feeds[t.name], "c/x", nil); err != nil {
				w.t.Error(err)
			}
		}
	}
}

func (w *world) subscribe(t *tally, filter string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.from[filter], _ = w.feeds[t.name].Subscribe(Filter{Filter: filter, From: Now, QoS: 2})
}

func (w *world) bind(t *tally, filter string) {
	w.mu.Lock()
	old := t.from[filter]
	t.from[filter] = 1
	w.mu.Unlock()
	done := make(answers, 1)
	err := w.queue.Bind(w.feeds[t.name], filter, done)
	if err == nil {
		err = (<-done).err
	}
	if err != nil && old == 0 {
		w.mu.Lock()
		delete(t.from, filter) // an answer that did not come: it may hold or not, and ended allows both
		t.ended[filter] = true
		w.mu.Unlock()
	}
}

// life is one run of the broker's part, ended cleanly or not.
func (w *world) life(rng *rand.Rand, clean bool) {
	quit := make(chan struct{})
	var publishers sync.WaitGroup
	for i := range 3 {
		r := rand.New(rand.NewPCG(rng.Uint64(), 2))
		publishers.Go(func() { w.publish(fmt.Sprint("p", i), r, quit) })
	}
	w.script(rng, 15+rng.IntN(15))
	if clean && rng.IntN(2) == 0 {
		close(quit)
		publishers.Wait()
	}
	var image *vfstest.Disk
	if !clean {
		w.mu.Lock()
		image = w.disk.AfterCut(vfstest.InOrder + 1 + rng.Uint64N(1000))
		w.dead = true
		for _, t := range w.tally {
			for _, f := range t.got {
				f.again = true
			}
		}
		w.mu.Unlock()
	}
	for len(w.consumers) > 0 {
		w.leave(0)
	}
	if err := w.n.end(); err != nil && clean {
		w.t.Errorf("seed %d: clean stop: %v", w.seed, err)
	}
	select {
	case <-quit:
	default:
		close(quit)
		publishers.Wait()
	}
	if image != nil {
		w.disk = image
		for _, t := range w.tally { // what only the dead life knew
			for _, f := range t.got {
				f.holder, f.again = nil, true
			}
		}
	}
}

// drain lets one quick member of each feed take all that is left, and checks that everything came.
func (w *world) drain(rng *rand.Rand) {
	for _, t := range w.tally {
		w.join(t, rng, false)
		c := w.consumers[len(w.consumers)-1]
		w.mu.Lock()
		c.picky = false
		w.mu.Unlock()
		f := w.feeds[t.name]
		await(w.t, t.name+" to have everything settled", func() bool {
			c.Wake()
			f.mu.Lock()
			at, _ := f.progress()
			left := len(f.extra) > 0 || at < w.n.store.Committed() || f.held > 0
			f.mu.Unlock()
			w.mu.Lock()
			defer w.mu.Unlock()
			return !left || w.err != nil
		})
	}
	for len(w.consumers) > 0 {
		w.leave(0)
	}
	for _, t := range w.tally {
		for _, a := range w.acked {
			wanted := false
			for flt, from := range t.from {
				wanted = wanted || topic.Match(flt, a.topic) && a.offset >= from
			}
			if f := t.got[a.id]; wanted && (f == nil || !f.settled) {
				w.fail("%s: %q at %d was acknowledged to its publisher and never came (%+v)", t.name, a.id, a.offset, f)
			}
		}
	}
}

// TestModel runs the model for several seeds. What it found is in the table tests beside it.
func TestModel(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	base := uint64(time.Now().UnixNano())
	for i := range rounds {
		seed := base + uint64(i)
		t.Run(fmt.Sprint("seed", i), func(t *testing.T) {
			t.Parallel()
			runModel(t, seed)
		})
	}
}

func runModel(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := &world{
		t: t, seed: seed, disk: vfstest.NewDisk(vfstest.Never), taint: "c/",
		number: map[string]int{}, tally: map[string]*tally{}, feeds: map[string]*Feed{},
	}
	first := w.disk
	defer func() {
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	}()
	for name, filters := range map[string][]string{"q/q": {"$queue/q"}, "q/other": {"$queue/other"}, "s/one": {"a/#", "b/1"}, "s/two": {"#", "a/1"}} {
		ta := &tally{name: name, shared: name[0] == 'q', from: map[string]uint64{}, ended: map[string]bool{}, first: map[string]int{}, got: map[string]*fate{}}
		for _, flt := range filters {
			ta.from[flt] = 1
		}
		w.tally[name] = ta
	}
	for range 4 {
		w.open()
		w.life(rng, rng.IntN(2) == 0)
		if w.err != nil {
			break
		}
	}
	if w.err == nil {
		w.open()
		w.drain(rng)
		w.n.stop()
	}
	if w.err != nil {
		t.Errorf("seed %d: %v", seed, w.err)
	}
	if len(w.acked) < 50 {
		t.Errorf("only %d messages were published", len(w.acked))
	}
}
