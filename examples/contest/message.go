package main

import (
	"fmt"
	"math"
	"strconv"

	"github.com/edgemq/edgemq/sdk"
)

// plan says what is sent, message by message, so that producers and consumers, in different processes, know the
// same without having talked to each other.
type plan struct {
	Seed      uint64
	Total     int // messages of all producers
	Producers int
	Topics    int
	Queues    int // and as many consumers
	Large     int // one message in so many is large, up to 100 KB; 0: none
}

// mix is splitmix64.
func mix(xs ...uint64) uint64 {
	h := uint64(0x9E3779B97F4A7C15)
	for _, x := range xs {
		h += x*0xD1342543DE82EF95 + 0x9E3779B97F4A7C15
		h = (h ^ h>>30) * 0xBF58476D1CE4E5B9
		h = (h ^ h>>27) * 0x94D049BB133111EB
		h ^= h >> 31
	}
	return h
}

func (p *plan) names() int { return p.Topics + p.Queues }

// count is how many messages producer k sends.
func (p *plan) count(k int) int {
	n := p.Total / p.Producers
	if k < p.Total%p.Producers {
		n++
	}
	return n
}

// to is the destination of the producer's n-th message: below Topics a topic, else a queue.
func (p *plan) to(k, n int) int {
	return int(mix(p.Seed, uint64(k), uint64(n)) % uint64(p.names()))
}

func (p *plan) topic(i int) string { return "TOPIC_" + strconv.Itoa(i) }

func (p *plan) queue(i int) string { return "QUEUE_" + strconv.Itoa(i) }

// topicsOf are the topics of a consumer: a random share, each topic with one consumer.
func (p *plan) topicsOf(consumer int) []int {
	order := make([]int, p.Topics)
	for i := range order {
		j := int(mix(p.Seed, 77, uint64(i)) % uint64(i+1))
		order[i], order[j] = order[j], i
	}
	var mine []int
	for i := consumer; i < p.Topics; i += p.Queues {
		mine = append(mine, order[i])
	}
	return mine
}

// content is one message: the seq-th of producer k to a name. Its slices are used again by the next.
type content struct {
	id, offset string // the MessageId header, the PRO_OFFSET property
	body       []byte
	names      [2]string
	values     [2]sdk.Value
	n          int
}

const filler = "the dam holds what the canals will drink, and no drop of it is lost on the way; "

// fill makes the content. It depends on nothing but its arguments.
func (p *plan) fill(c *content, k, to, seq int) {
	h := mix(p.Seed, uint64(k), uint64(to)<<32|uint64(seq), 5)
	c.id = fmt.Sprintf("P%d_%d_%d", k, to, seq)
	c.offset = fmt.Sprintf("PRODUCER%d_%d", k, seq)
	c.body = append(c.body[:0], "PRODUCER_"...)
	c.body = strconv.AppendInt(c.body, int64(k), 10)
	c.body = append(c.body, '_')
	c.body = strconv.AppendInt(c.body, int64(seq), 10)
	c.body = append(c.body, ' ')
	size := 20 + int(h>>8%64)
	if p.Large > 0 && h%uint64(p.Large) == 0 {
		size = 1000 + int(h>>20%99000)
	}
	for at := int(h >> 40 % uint64(len(filler))); len(c.body) < size; at = 0 {
		c.body = append(c.body, filler[at:]...)
	}
	c.body = c.body[:size]
	c.n = 1 + int(h>>3&1)
	for i := range c.n {
		v := mix(h, uint64(i))
		c.names[i] = "prop" + strconv.Itoa(i) + "_" + strconv.Itoa(int(v%50))
		switch v >> 16 % 4 {
		case 0:
			c.values[i] = sdk.Int32(int32(v >> 32))
		case 1:
			c.values[i] = sdk.Int64(int64(v))
		case 2:
			f := math.Float64frombits(v)
			if math.IsNaN(f) {
				f = math.Inf(-1)
			}
			c.values[i] = sdk.Float64(f)
		default:
			c.values[i] = sdk.String(strconv.FormatUint(v, 36))
		}
	}
}

// message makes the message of a content.
func (p *plan) message(c *content, to int) *sdk.Message {
	var m *sdk.Message
	if to < p.Topics {
		m = sdk.NewMessage(p.topic(to), c.body)
	} else {
		m = sdk.NewQueueMessage(p.queue(to-p.Topics), c.body)
	}
	m.PutHeader(sdk.HeaderMessageID, sdk.String(c.id))
	m.PutProperty("PRO_OFFSET", sdk.String(c.offset))
	for i := range c.n {
		m.PutProperty(c.names[i], c.values[i])
	}
	return m
}

// check is one consumer's ledger: which message of each producer is next, for each of its names.
type check struct {
	p       *plan
	next    map[int][]int // by name, then producer
	want    content
	Checked int
}

func newCheck(p *plan, consumer int) *check {
	c := &check{p: p, next: map[int][]int{p.Topics + consumer: make([]int, p.Producers)}}
	for _, t := range p.topicsOf(consumer) {
		c.next[t] = make([]int, p.Producers)
	}
	return c
}

// expect prepares c.want for a message whose body is given, and advances.
func (c *check) expect(name string, queue bool, body []byte) (to int, err error) {
	prefix := "TOPIC_"
	if queue {
		prefix = "QUEUE_"
	}
	if len(name) <= len(prefix) || name[:len(prefix)] != prefix {
		return 0, fmt.Errorf("a message of %q, which nobody sent to", name)
	}
	if to, err = strconv.Atoi(name[len(prefix):]); err != nil {
		return 0, err
	}
	if queue {
		to += c.p.Topics
	}
	k, seq, err := parseBody(body)
	if err != nil {
		return to, fmt.Errorf("%s: %w", name, err)
	}
	next := c.next[to]
	if next == nil || k >= len(next) {
		return to, fmt.Errorf("a message of producer %d in %s, which is not this consumer's", k, name)
	}
	if seq != next[k] {
		return to, fmt.Errorf("%s, producer %d: message %d where %d is next", name, k, seq, next[k])
	}
	next[k]++
	c.Checked++
	c.p.fill(&c.want, k, to, seq)
	if string(c.want.body) != string(body) {
		return to, fmt.Errorf("%s, producer %d, message %d: another body", name, k, seq)
	}
	return to, nil
}

// parseBody reads "PRODUCER_<k>_<seq> ".
func parseBody(b []byte) (k, seq int, err error) {
	const prefix = "PRODUCER_"
	if len(b) < len(prefix) || string(b[:len(prefix)]) != prefix {
		return 0, 0, fmt.Errorf("body %.40q", b)
	}
	i := len(prefix)
	for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
		k = k*10 + int(b[i]-'0')
	}
	for i++; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
		seq = seq*10 + int(b[i]-'0')
	}
	return k, seq, nil
}

// done compares with what was sent in all.
func (c *check) done() error {
	sent := map[[2]int]int{}
	for k := range c.p.Producers {
		for n := range c.p.count(k) {
			sent[[2]int{c.p.to(k, n), k}]++
		}
	}
	for to, next := range c.next {
		for k, n := range next {
			if want := sent[[2]int{to, k}]; n != want {
				return fmt.Errorf("name %d, producer %d: %d of %d messages came", to, k, n, want)
			}
		}
	}
	return nil
}
