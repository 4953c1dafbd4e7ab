package sdk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ProducerOption configures a Producer.
type ProducerOption func(*Producer)

// WithRouter sets how partitions are chosen; the default is KeyHash.
func WithRouter(r Router) ProducerOption { return func(p *Producer) { p.router = r } }

// WithTopology sets where messages can go; the default is the producer's brokers. No other place is used then.
func WithTopology(t Topology) ProducerOption { return func(p *Producer) { p.topology = t } }

// WithPartitions makes every topic n topics, <topic>/0 to <topic>/<n-1>, at each broker.
func WithPartitions(n int) ProducerOption { return func(p *Producer) { p.partitions = n } }

// WithTries sets how often Send tries, each time at another broker if there is one, and how long each try may
// take. The default is 3 tries of a second if there are several brokers, else one that lasts as long as the context.
func WithTries(n int, each time.Duration) ProducerOption {
	return func(p *Producer) { p.tries, p.tryTimeout = max(n, 1), each }
}

// WithLatencyTable sets for how long slow and failing brokers are avoided; the default is LatencyTable5.
func WithLatencyTable(t *LatencyTable) ProducerOption {
	return func(p *Producer) { p.avoid.table = t }
}

// WithEpoch numbers this producer among those that have the same client id one after the other, as a process does that is started in the place of
// one that is given up for dead. Once the broker has seen a number it refuses (ErrRefused, with Code 0x87) what comes from producers with
// a lower one: it was not dead, and its successor has its work. Numbers count from 1, to 2^63-1; where to keep them is the program's business.
func WithEpoch(n uint64) ProducerOption { return func(p *Producer) { p.epoch = n } }

// Producer sends messages. It is safe for concurrent use; messages that one goroutine sends to one topic or
// queue keep their order.
type Producer struct {
	clients    func() []*Client // there are now
	every      func() []*Client // that may have been sent to
	topology   Topology
	router     Router
	partitions int
	tries      int
	tryTimeout time.Duration
	avoid      avoidance

	note     func(*Promise) // settled, as a value, which costs an allocation to make
	epoch    uint64
	idPrefix string
	serial   atomic.Uint64
	closed   atomic.Bool

	mu     sync.Mutex
	routes map[target][]WritableQueue
	of     []*Client // the clients that routes lead to
	failed []error   // of SendAsync, since the last Flush
	lost   int
}

// maxRoutes bounds what is remembered of destinations.
const maxRoutes = 8192

// Producer makes a producer on this client's connection.
func (c *Client) Producer(opts ...ProducerOption) *Producer {
	return NewProducer([]*Client{c}, opts...)
}

// NewProducer makes a producer that sends to any of several brokers. A broker that fails or is slow is avoided
// for a while. Closing the producer leaves the clients open.
func NewProducer(clients []*Client, opts ...ProducerOption) *Producer {
	all := func() []*Client { return clients }
	return newProducer(all, all, opts)
}

func newProducer(clients, every func() []*Client, opts []ProducerOption) *Producer {
	p := &Producer{
		clients: clients, every: every, router: KeyHash(),
		avoid:    avoidance{table: LatencyTable5(), now: time.Now},
		idPrefix: strings.ToLower(rand.Text()[:12]) + "-",
		routes:   map[target][]WritableQueue{},
	}
	p.note = p.settled
	p.topology = TopologyFunc(p.brokers)
	for _, o := range opts {
		o(p)
	}
	return p
}

// CreateBytesMessageToTopic makes a message to a topic; nothing is sent.
func (p *Producer) CreateBytesMessageToTopic(topic string, body []byte) (*Message, error) {
	if _, err := (target{topic, false}).wire(); err != nil {
		return nil, err
	}
	return NewMessage(topic, body), nil
}

// CreateBytesMessageToQueue makes a message to a queue; nothing is sent.
func (p *Producer) CreateBytesMessageToQueue(queue string, body []byte) (*Message, error) {
	if _, err := (target{queue, true}).wire(); err != nil {
		return nil, err
	}
	return NewQueueMessage(queue, body), nil
}

// Send sends a message and returns when the broker has it on disk. Otherwise the error is a *SendError, which says
// what is known of the message, or says what is wrong with it. The message is copied: it may be changed and sent again afterwards.
func (p *Producer) Send(ctx context.Context, m *Message) (Result, error) {
	e, err := p.enhance(ctx, m)
	if err != nil {
		return Result{}, err
	}
	tries, each := p.tries, p.tryTimeout
	if tries == 0 {
		if tries = 1; len(p.clients()) > 1 {
			tries, each = 3, time.Second
		}
	}
	last := ""
	for try := 1; ; try++ {
		q, part, sticky, err := p.route(e, last)
		if err != nil {
			return Result{}, err
		}
		res, err := p.write(ctx, each, q, e)
		if err == nil {
			res.MessageID, res.Partition = e.ID, part
			return res, nil
		}
		if try >= tries || sticky || ctx.Err() != nil || !worthAnother(err) {
			return Result{}, err
		}
		last = part.Broker
	}
}

// write makes one try.
func (p *Producer) write(ctx context.Context, each time.Duration, q WritableQueue, e *EnhancedMessage) (Result, error) {
	try := ctx
	if each > 0 {
		var cancel context.CancelFunc
		try, cancel = context.WithTimeout(ctx, each)
		defer cancel()
	}
	start := time.Now()
	res, err := q.Write(try, e)
	if ctx.Err() == nil { // a caller that gave up says nothing about the broker
		p.avoid.record(q.Partition().Broker, time.Since(start), err != nil && worthAnother(err))
	}
	return res, err
}

// worthAnother reports whether another broker might take what this one did not.
func worthAnother(err error) bool {
	return !errors.Is(err, ErrRefused) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrName) && !errors.Is(err, ErrDestination)
}

// SendAsync sends a message and does not wait. It blocks while the window is full, no longer than ctx. Flush
// waits for all; the Promise need not be kept. It does not go to another broker if this one fails.
func (p *Producer) SendAsync(ctx context.Context, m *Message) (*Promise, error) {
	return p.async(ctx, m, false)
}

// SendOneway sends a message at QoS 0: there is no acknowledgement, and it may be lost. ErrNotConnected means that it was.
func (p *Producer) SendOneway(ctx context.Context, m *Message) error {
	_, err := p.async(ctx, m, true)
	return err
}

func (p *Producer) async(ctx context.Context, m *Message, oneway bool) (*Promise, error) {
	e, err := p.enhance(ctx, m)
	if err != nil {
		return nil, err
	}
	q, part, _, err := p.route(e, "")
	if err != nil {
		return nil, err
	}
	a, ok := q.(asyncQueue)
	if !ok {
		return nil, fmt.Errorf("edgemq: %T cannot send without waiting", q)
	}
	promise, err := a.WriteAsync(ctx, e, oneway, p.note)
	if promise != nil {
		promise.partition = part
	}
	return promise, err
}

// settled takes note of what Flush is to report.
func (p *Producer) settled(pr *Promise) {
	if pr.err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost++
	if len(p.failed) < 16 {
		p.failed = append(p.failed, pr.err)
	}
}

// Flush waits until everything sent so far is on the brokers' disks. If some of it is not and will not be, since
// the last Flush, the error says how many and joins the first few.
func (p *Producer) Flush(ctx context.Context) error {
	for _, c := range p.every() {
		if err := c.session.out.flush(ctx); err != nil {
			return fmt.Errorf("edgemq: flush, %d messages are not acknowledged: %w", c.Pending(), err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost == 0 {
		return nil
	}
	err := fmt.Errorf("edgemq: flush: %d messages failed: %w", p.lost, errors.Join(p.failed...))
	p.failed, p.lost = nil, 0
	return err
}

// Close makes further sends fail with ErrClosed. What was sent goes on; Flush still waits for it.
func (p *Producer) Close() error {
	p.closed.Store(true)
	return nil
}

// enhance checks a message and adds its id and time.
func (p *Producer) enhance(ctx context.Context, m *Message) (*EnhancedMessage, error) {
	if _, err := m.target(); err != nil {
		return nil, err
	}
	if p.closed.Load() {
		return nil, ErrClosed
	}
	e := &EnhancedMessage{Message: m, ID: m.MessageID(), Epoch: p.epoch, Trace: TraceID(ctx), Born: time.Now()}
	if e.ID == "" {
		var b [40]byte
		e.ID = string(strconv.AppendUint(append(b[:0], p.idPrefix...), p.serial.Add(1), 36))
	}
	return e, nil
}

// route chooses where a message goes.
func (p *Producer) route(e *EnhancedMessage, last string) (WritableQueue, Partition, bool, error) {
	qs, err := p.topology.Queues(e.Message)
	if err != nil {
		return nil, Partition{}, false, err
	}
	if len(qs) == 0 {
		return nil, Partition{}, false, ErrNoPartitions
	}
	if _, ours := p.router.(*keyHash); ours && len(qs) == 1 {
		return qs[0], qs[0].Partition(), false, nil
	}
	ps := make([]Partition, len(qs))
	for i, q := range qs {
		ps[i] = q.Partition()
	}
	p.avoid.mark(ps, last)
	i := p.router.Route(e.Message, ps)
	if i < 0 || i >= len(qs) {
		return nil, Partition{}, false, fmt.Errorf("%w: the router chose %d of %d", ErrPartition, i, len(qs))
	}
	s, ok := p.router.(interface{ Sticky(*Message) bool })
	return qs[i], ps[i], ok && s.Sticky(e.Message), nil
}

// brokers is the topology of the producer's clients.
func (p *Producer) brokers(m *Message) ([]WritableQueue, error) {
	t, err := m.target()
	if err != nil {
		return nil, err
	}
	clients := p.clients()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.of, clients) {
		clear(p.routes)
		p.of = clients
	}
	if qs, ok := p.routes[t]; ok {
		return qs, nil
	}
	name, err := t.wire()
	if err != nil {
		return nil, err
	}
	var qs []WritableQueue
	for _, c := range clients {
		if t.queue || p.partitions <= 0 {
			qs = append(qs, newClientQueue(c, name, 0))
			continue
		}
		for i := range p.partitions {
			qs = append(qs, newClientQueue(c, name+"/"+strconv.Itoa(i), i))
		}
	}
	if len(p.routes) >= maxRoutes {
		clear(p.routes)
	}
	p.routes[t] = qs
	return qs, nil
}

// clientQueue writes to a topic of a broker.
type clientQueue struct {
	c    *Client
	at   Partition
	wire string
}

func newClientQueue(c *Client, name string, index int) *clientQueue {
	return &clientQueue{c, Partition{Broker: c.o.url.Host, Topic: name, Index: index, Available: true}, v5Prefix + name}
}

func (q *clientQueue) Partition() Partition { return q.at }

func (q *clientQueue) Write(ctx context.Context, e *EnhancedMessage) (Result, error) {
	p, err := q.WriteAsync(ctx, e, false, nil)
	if err != nil {
		return Result{}, err
	}
	return p.wait(ctx, true)
}

func (q *clientQueue) WriteAsync(ctx context.Context, e *EnhancedMessage, oneway bool, done func(*Promise)) (*Promise, error) {
	pub := publication{
		m: e.Message, to: q.wire, qos: 1, done: done,
		stamp: stamp{id: e.ID, born: e.Born.UnixMilli(), producer: q.c.o.clientID, epoch: e.Epoch, trace: e.Trace},
	}
	if oneway {
		pub.qos = 0
	}
	if e.Delay > 0 {
		seconds := min((e.Delay+time.Second-1)/time.Second, math.MaxUint32)
		pub.to = v5Prefix + "$delayed/" + strconv.FormatInt(int64(seconds), 10) + "/" + q.at.Topic
	}
	if ms := timeout(e.Message); ms > 0 {
		pub.expires, pub.expiry = true, uint32(min((ms+999)/1000, math.MaxUint32))
	}
	p, err := q.c.session.out.publish(ctx, &pub)
	if err != nil && !errors.Is(err, ErrName) {
		return nil, &SendError{MessageID: e.ID, To: q.at.Topic, Known: NotSent, Err: err}
	}
	return p, err
}

// timeout is the Timeout header, in ms; 0 is never.
func timeout(m *Message) int64 {
	v := m.headers.Get(HeaderTimeout)
	if v.kind != KindInt32 && v.kind != KindInt64 {
		return 0
	}
	return int64(v.bits)
}
