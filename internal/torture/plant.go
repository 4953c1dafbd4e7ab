package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

// Plant is a set of clients that use everything a broker has: publishers of every QoS, of retained and delayed messages and to a queue; sessions,
// queues and a shared subscription, with clients that acknowledge late, refuse, break off and take over; and Wills.
type Plant struct {
	H       *History
	Retains bool          // the broker deletes old messages
	Sizes   []int         // of payloads
	Pace    time.Duration // the longest pause between two batches of a publisher
	Delay   time.Duration // of some of the delayed messages; the others are due at once

	publishers []*publisher
	members    []*member
	mortals    []*mortal
	readers    []string
	surveyor   *Client // measures how far the broker has come
	surveyed   int
	rng        *rand.Rand
	seed       uint64
	logs       int
}

// publisher publishes to topics of its own.
type publisher struct {
	*Client
	name    string
	numbers map[string]int
	marked  bool
	restive float64 // how likely it breaks off
	twos    bool    // it publishes at QoS 2, or 1, to topics that sessions and queues read
}

// member has subscriptions. Several may share a Reader.
type member struct {
	*Client
	subs    []wish
	done    int // of them are made
	fickle  string
	has     bool    // the fickle one
	restive float64 // how likely it breaks off
}

// wish is a subscription: filter is what the reader gets by it, as how a client writes it.
type wish struct {
	as, filter string
	qos        byte
}

// mortal is a client with a Will.
type mortal struct {
	*Client
	wills int
}

// QueueName is the queue whose refused messages must come again at once: the broker's settings say so.
const QueueName = "q"

// part is what one member of a plant does.
type part struct {
	id, reader string
	v          packet.Version
	late, no   float64
	window     uint16
	restive    float64
	fickle     string
	subs       []wish
}

// NewPlant returns a plant with a history. retains: the broker deletes old messages that nobody is waiting for.
func NewPlant(seed uint64, retains bool) *Plant {
	p := newPlant(seed, retains, []int{0, 10, 100, 700, 3000}, []part{
		{"s1", "s1", packet.V5, 0, 0, 0, 0.01, "", []wish{{"t/#", "t/#", 2}}},
		{"s2", "s2", packet.V311, 0.3, 0, 0, 0.03, "", []wish{{"t/+/a", "t/+/a", 1}, {"will/#", "will/#", 1}, {"later/#", "later/#", 2}}},
		{"s3", "s3", packet.V5, 0.5, 0, 5, 0.2, "t/p1/#", []wish{{"t/p0/#", "t/p0/#", 1}}},
		{"s4", "s4", packet.V311, 0, 0, 0, 0.1, "", []wish{{"t/+/b", "t/+/b", 2}, {"t/p2/#", "t/p2/#", 1}}},
		{"qa", "q", packet.V5, 0.1, 0.05, 8, 0.05, "", []wish{{"$queue/q", "$queue/q", 1}, {"$queue/q/t/#", "t/#", 1}}},
		{"qb", "q", packet.V311, 0.3, 0, 0, 0.05, "", []wish{{"$queue/q", "$queue/q", 1}, {"$queue/q/t/#", "t/#", 1}}},
		{"qc", "q2", packet.V5, 0, 0, 0, 0.05, "", []wish{{"$queue/q2/t/#", "t/#", 2}, {"$queue/q2/later/#", "later/#", 2}}},
		{"ga", "g", packet.V5, 0.2, 0, 10, 0.05, "", []wish{{"$share/g/t/#", "t/#", 1}}},
		{"gb", "g", packet.V311, 0.2, 0, 0, 0.05, "", []wish{{"$share/g/t/#", "t/#", 1}}},
	})
	for i, v := range []packet.Version{packet.V5, packet.V311} {
		c := NewClient(p.H, fmt.Sprint("w", i), v, p.next())
		c.Durable = i == 1
		p.mortals = append(p.mortals, p.mortal(c, 0))
	}
	return p
}

// NewTwos returns a plant that is about QoS 2, both ways: nearly everything is published and read so, and clients come back and take over
// often enough to do it in the middle of a handshake.
func NewTwos(seed uint64) *Plant {
	p := newPlant(seed, true, []int{0, 10, 100}, []part{
		{"s1", "s1", packet.V5, 0, 0, 0, 0.01, "", []wish{{"t/#", "t/#", 2}}},
		{"s2", "s2", packet.V311, 0.2, 0, 0, 0.3, "", []wish{{"t/+/b", "t/+/b", 2}}},
		{"s3", "s3", packet.V5, 0, 0, 3, 0.2, "t/p1/#", []wish{{"t/p0/#", "t/p0/#", 2}}},
		{"qc", "q2", packet.V5, 0, 0, 0, 0.05, "", []wish{{"$queue/q2/t/#", "t/#", 2}}},
		{"ga", "g", packet.V5, 0, 0, 10, 0.1, "", []wish{{"$share/g/t/#", "t/#", 2}}},
		{"gb", "g", packet.V311, 0, 0, 0, 0.1, "", []wish{{"$share/g/t/#", "t/#", 2}}},
	})
	for _, x := range p.publishers {
		x.twos, x.restive = true, 0.1
	}
	return p
}

func newPlant(seed uint64, retains bool, sizes []int, parts []part) *Plant {
	h := NewHistory()
	p := &Plant{H: h, Retains: retains, Sizes: sizes, Pace: 3 * time.Millisecond, Delay: time.Second, rng: rand.New(rand.NewPCG(seed, 3)), seed: seed}
	for i, v := range []packet.Version{packet.V5, packet.V311, packet.V5} {
		id := fmt.Sprint("p", i)
		p.publishers = append(p.publishers, &publisher{Client: NewClient(h, id, v, p.next()), name: id, numbers: map[string]int{}})
	}
	for _, m := range parts {
		if !slices.Contains(p.readers, m.reader) {
			kind := map[byte]ReaderKind{'s': Session, 'q': Queue, 'g': Group}[m.reader[0]]
			h.AddReader(Reader{Name: m.reader, Kind: kind, Scattered: kind == Group && m.subs[0].qos == 2})
			p.readers = append(p.readers, m.reader)
		}
		c := NewClient(h, m.id, m.v, p.next())
		c.Reader, c.Late, c.Refuse, c.Window = m.reader, m.late, m.no, m.window
		p.members = append(p.members, &member{Client: c, subs: m.subs, fickle: m.fickle, restive: m.restive})
	}
	p.surveyor = NewClient(h, "surveyor", packet.V5, p.next())
	return p
}

func (p *Plant) next() uint64 { return p.rng.Uint64() }

func (p *Plant) mortal(c *Client, wills int) *mortal {
	m := &mortal{Client: c, wills: wills}
	c.NewWill = func() *Message {
		m.wills++
		return &Message{Source: c.ID, Topic: "will/" + c.ID, N: m.wills, QoS: byte(1 + m.wills%2), Will: true, Size: 20}
	}
	return m
}

// Clone returns a plant that goes its own way from here. No client may be connected.
func (p *Plant) Clone(seed uint64) *Plant {
	q := &Plant{H: p.H.Clone(), Retains: p.Retains, Sizes: p.Sizes, Pace: p.Pace, Delay: p.Delay, rng: rand.New(rand.NewPCG(seed, 3)), seed: seed, logs: p.logs, readers: p.readers}
	for _, x := range p.publishers {
		n := map[string]int{}
		for k, v := range x.numbers {
			n[k] = v
		}
		y := *x
		y.Client, y.numbers = x.Client.Clone(q.H, q.next()), n
		q.publishers = append(q.publishers, &y)
	}
	for _, x := range p.members {
		y := *x
		y.Client = x.Client.Clone(q.H, q.next())
		q.members = append(q.members, &y)
	}
	for _, x := range p.mortals {
		q.mortals = append(q.mortals, q.mortal(x.Client.Clone(q.H, q.next()), x.wills))
	}
	q.surveyor, q.surveyed = p.surveyor.Clone(q.H, q.next()), p.surveyed
	return q
}

func (p *Plant) clients() []*Client {
	var all []*Client
	for _, x := range p.publishers {
		all = append(all, x.Client)
	}
	for _, x := range p.members {
		all = append(all, x.Client)
	}
	for _, x := range p.mortals {
		all = append(all, x.Client)
	}
	return append(all, p.surveyor)
}

// Work has everybody at work until ctx ends. The broker may die meanwhile and come back: clients try again.
func (p *Plant) Work(ctx context.Context, addr string) {
	for _, c := range p.clients() {
		c.Addr = addr
	}
	var wg sync.WaitGroup
	each := func(c *Client, busy time.Duration, step func(rng *rand.Rand)) {
		rng := rand.New(rand.NewPCG(p.next(), 5))
		wg.Go(func() {
			for ctx.Err() == nil {
				if !c.Connected() && c.Connect() != nil {
					pause(ctx, 2*time.Millisecond)
					continue
				}
				step(rng)
				pause(ctx, time.Duration(rng.Int64N(int64(busy))))
			}
		})
	}
	for _, x := range p.publishers {
		each(x.Client, p.Pace, func(rng *rand.Rand) { x.step(rng, p) })
	}
	for _, x := range p.members {
		each(x.Client, 10*time.Millisecond, x.step)
	}
	for _, x := range p.mortals {
		each(x.Client, 40*time.Millisecond, x.step)
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			p.saved(ctx)
			p.look(addr)
		}
	})
	wg.Wait()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// saved notes that what the broker had taken a while ago is on disk by now, without anybody having waited for it. Acknowledgements of deliveries
// are saved at the broker's leisure, a few milliseconds and one commit later; what is acknowledged to a publisher after that came later in
// its journal.
func (p *Plant) saved(ctx context.Context) {
	if !p.surveyor.Connected() && p.surveyor.Connect() != nil {
		pause(ctx, 5*time.Millisecond)
		return
	}
	of := p.H.Len()
	for range 3 {
		for range 4 { // in many steps: on a busy machine one long sleep proves little
			pause(ctx, 5*time.Millisecond)
		}
		p.surveyed++
		m := &Message{Source: p.surveyor.ID, Topic: "survey", N: p.surveyed, QoS: 1}
		if p.surveyor.Publish(m) != nil {
			return
		}
		for p.surveyor.Pending() > 0 {
			if pause(ctx, time.Millisecond); ctx.Err() != nil || !p.surveyor.Connected() {
				return
			}
		}
	}
	p.H.Add(Event{Kind: Saved, Of: of})
}

// step publishes something.
func (x *publisher) step(rng *rand.Rand, p *Plant) {
	if x.Pending() > 30 {
		return
	}
	var batch []*Message
	if rng.Float64() < x.restive {
		x.restless(rng)
		return
	}
	if !x.marked && !x.twos {
		x.marked = true
		batch = append(batch, &Message{Source: x.name, Topic: "ret/" + x.name + "/~", N: 1, QoS: 1, Retain: true})
	}
	for range 1 + rng.IntN(6) {
		batch = append(batch, x.message(rng, p))
	}
	_ = x.Publish(batch...)
}

func (x *publisher) message(rng *rand.Rand, p *Plant) *Message {
	m := &Message{Source: x.name, QoS: []byte{0, 1, 1, 1, 2, 2}[rng.IntN(6)], Size: p.Sizes[rng.IntN(len(p.Sizes))]}
	k := rng.IntN(20)
	if x.twos {
		k, m.QoS = 3+k%17, []byte{1, 2, 2, 2, 2}[rng.IntN(5)]
	}
	switch {
	case k == 0:
		// A topic for each QoS: a QoS 1 publish that is sent again after a crash may come after a QoS 2 one that is not, and be the last.
		m.QoS = byte(1 + rng.IntN(2))
		m.Topic, m.Retain = fmt.Sprintf("ret/%s/%d", x.name, m.QoS), true
		m.Empty = rng.IntN(4) == 0
	case k == 1:
		m.Topic = "$queue/" + QueueName
	case k == 2:
		m.Topic, m.Later, m.QoS = "later/"+x.name, true, byte(1+rng.IntN(2))
		if rng.IntN(30) == 0 {
			m.Delay = p.Delay
		}
	case k < 12:
		m.Topic = "t/" + x.name + "/a"
	default:
		m.Topic = "t/" + x.name + "/b"
	}
	x.numbers[m.Topic]++
	m.N = x.numbers[m.Topic]
	return m
}

// subscribe makes the subscriptions that are not made yet.
func (x *member) subscribe() bool {
	if x.Anew() {
		x.done, x.has = 0, false
	}
	for x.done < len(x.subs) {
		s := x.subs[x.done]
		if x.Subscribe(s.as, s.filter, s.qos) != nil {
			return false
		}
		x.done++
	}
	return true
}

// step does something that subscribers do.
func (x *member) step(rng *rand.Rand) {
	if !x.subscribe() {
		return
	}
	switch f := rng.Float64(); {
	case f < x.restive:
		x.restless(rng)
	case f < 0.5:
		x.Settle()
		_ = x.Ping()
	case f > 0.9 && x.fickle != "":
		if x.has {
			x.has = x.Unsubscribe(x.fickle) != nil
		} else {
			x.has = x.Subscribe(x.fickle, x.fickle, 1) == nil
		}
	case f > 0.97:
		s := x.subs[rng.IntN(len(x.subs))]
		_ = x.Subscribe(s.as, s.filter, s.qos) // again, which changes nothing
	}
}

// restless ends the connection, in one of three ways.
func (c *Client) restless(rng *rand.Rand) {
	switch rng.IntN(3) {
	case 0:
		c.Break()
	case 1:
		c.Bye()
	default:
		_ = c.Connect() // a takeover
	}
}

// step ends the connection, in one way or the other.
func (x *mortal) step(rng *rand.Rand) {
	switch rng.IntN(4) {
	case 0:
		x.Break()
	case 1:
		x.Bye()
	case 2:
		_ = x.Connect()
	}
}
