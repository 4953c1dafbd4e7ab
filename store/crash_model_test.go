package store_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// The crash tests compare a store with a world: what clients appended and what they were told. For everything that was
// appended there are three states after a crash:
//
//	must be there   a durable append that was completed, and what was appended before it: the journal is one line
//	may be there    accepted, and not completed or not durable
//	must not        refused at once, or never appended
//
// An append is all there or not at all, and each client's appends survive up to one of them: that is the client's cut. So for
// each client one number says everything: the messages of all appends up to it are read back, in order and right to the last
// byte, and its keys are as if exactly those appends had been applied.

// counterKey is a key that says how many appends of a client have been applied.
func counterKey(client string) string { return "last/" + client }

// told is one append and what its client was told.
type told struct {
	no       int
	durable  bool
	refused  bool // at once
	answers  int  // times the completion ran
	err      error
	base     uint64 // offset of the first message, once completed
	messages []message
}

// message is a message before it has numbers.
type message struct {
	topic string
	store.Message
}

// world is what the clients know. It outlives stores and disks.
type world struct {
	mu      sync.Mutex
	clients map[string]*clientWorld
	protect uint64 // what Options.Protect returns, raised as the test goes
	freed   uint64 // topics and clients whose numbers were given up
	lossy   bool   // the disk was full: messages that are not durable may be missing
	sync    store.SyncMode
}

type clientWorld struct {
	appends []*told
	must    int // all appends up to this number must be there
	written int // the same after kill -9, which takes back less if Options.Sync is not SyncAlways
}

func newWorld() *world { return &world{clients: make(map[string]*clientWorld)} }

func (w *world) client(name string) *clientWorld {
	c := w.clients[name]
	if c == nil {
		c = &clientWorld{}
		w.clients[name] = c
	}
	return c
}

// clone returns a world that goes its own way from here.
func (w *world) clone() *world {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &world{clients: make(map[string]*clientWorld), protect: w.protect, lossy: w.lossy, sync: w.sync}
	for name, cw := range w.clients {
		c.clients[name] = &clientWorld{slices.Clone(cw.appends), cw.must, cw.written}
	}
	return c
}

// completed notes that a client, or a subscriber, was told of an append.
func (w *world) completed(c *clientWorld, no int) {
	c.written = max(c.written, no)
	if w.sync == store.SyncAlways {
		c.must = max(c.must, no)
	}
}

// killed returns the world after kill -9.
func (w *world) killed() *world {
	k := w.clone()
	for _, c := range k.clients {
		c.must = c.written
	}
	return k
}

// build makes the messages of a client's append: every client, number and index has its own.
func build(client string, no int) []message {
	h := uint64(no) * 2654435761
	for _, c := range []byte(client) {
		h = h*131 + uint64(c)
	}
	rng := rand.New(rand.NewPCG(h, 1))
	messages := make([]message, rng.IntN(4)) // none at all is an append of keys
	for i := range messages {
		m := &messages[i]
		m.topic = fmt.Sprintf("plant/%s/%d", client, rng.IntN(3))
		if rng.IntN(4) == 0 {
			m.topic = "plant/all"
		}
		if no%3 == 0 {
			m.topic = fmt.Sprintf("once/%s/%d", client, no) // its number is given up when the message is deleted
		}
		size := []int{0, 10, 200, 700, 3000}[rng.IntN(5)]
		m.Payload = fmt.Appendf(nil, "%s %d %d ", client, no, i)
		for range size {
			m.Payload = append(m.Payload, byte(rng.Uint32()))
		}
		if rng.IntN(2) == 0 {
			m.Props = bytes.Repeat([]byte{byte(rng.Uint32())}, 1+rng.IntN(40))
		}
		m.Flags = record.Flags(0).WithQoS(byte(rng.IntN(3)))
		m.PacketID = uint16(rng.Uint32())
		if rng.IntN(4) == 0 {
			m.Flags |= record.FlagExpiry
			m.Expiry = 1 + rng.Uint32N(1<<20)
		}
		if rng.IntN(4) == 0 {
			m.Flags |= record.FlagRetain
		}
		if rng.IntN(8) == 0 {
			m.Flags |= record.FlagTransient
		}
	}
	return messages
}

// keys are what a client's append changes: its counter, and one of five keys, now put, now deleted.
func keys(client string, no int) []record.Mutation {
	ms := []record.Mutation{record.Put(record.BucketCursors, []byte(counterKey(client)), binary.BigEndian.AppendUint32(nil, uint32(no)))}
	key := fmt.Appendf(nil, "key/%s/%d", client, no%5)
	if no%7 == 3 {
		return append(ms, record.Delete(record.BucketSessions, key))
	}
	return append(ms, record.Put(record.BucketSessions, key, bytes.Repeat([]byte{byte(no)}, no%90)))
}

// Protect is for store.Options.
func (w *world) Protect() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.protect
}

// options are such that little data makes everything happen: segments are sealed, journal files recycled, checkpoints
// made and segments deleted.
func (w *world) options(fs vfs.FS) store.Options {
	o := store.Options{
		Dir: "/srv/data", FS: fs, Sync: w.sync, SyncInterval: time.Second,
		JournalFileBytes: 64 << 10, CheckpointBytes: 64 << 10, CheckpointInterval: 2 * time.Second,
		SegmentBytes: 12 << 10, SharedBelow: 6 << 10, TailBytes: 8 << 10, CacheBytes: 256 << 10,
		RetainBytes: 40 << 10, MinFree: 1, Protect: w.Protect,
	}
	store.FreeEvery(&o, time.Second)
	return o
}

// session is a running store with clients at work.
type session struct {
	w       *world
	s       *store.Store
	waiting sync.WaitGroup // for completions
	stop    context.CancelFunc
	ran     chan error
}

// start opens the store and runs it.
func (w *world) start(o store.Options) (*session, error) {
	s, err := store.Open(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	x := &session{w: w, s: s, stop: cancel, ran: make(chan error, 1)}
	go func() { x.ran <- s.Run(ctx) }()
	return x, nil
}

// end stops the store, cleanly if it can, and sees to it that everybody got an answer.
func (x *session) end(t *testing.T) error {
	t.Helper()
	x.stop()
	err := <-x.ran
	st := x.s.Stats()
	x.w.freed += min(st.FreedTopics, st.FreedClients)
	err = errors.Join(err, x.s.Close())
	x.waiting.Wait()
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	for client, c := range x.w.clients {
		for _, a := range c.appends {
			if want := 1; a.answers != want && !a.refused {
				t.Errorf("append %d of %s was answered %d times", a.no, client, a.answers)
			}
		}
	}
	return err
}

// append makes a client's next append; the error is that of a refusal.
func (x *session) append(client string, durable bool) error {
	defer x.s.Use().Done()
	id, err := x.s.ClientID(client, client == "persistent")
	if err != nil {
		return err
	}
	x.w.mu.Lock()
	c := x.w.client(client)
	a := &told{no: len(c.appends) + 1, durable: durable}
	c.appends = append(c.appends, a)
	x.w.mu.Unlock()
	a.messages = build(client, a.no)
	messages := make([]store.Message, len(a.messages))
	for i := range a.messages {
		m := &a.messages[i]
		if m.Topic, err = x.s.TopicID(m.topic); err != nil {
			break
		}
		m.Client = id
		messages[i] = m.Message
	}
	if err == nil {
		x.waiting.Add(1)
		if done := (&completion{x, client, a}); durable && a.no%3 == 0 {
			_, err = x.s.AppendHere(messages, keys(client, a.no), done, nil)
		} else {
			err = x.s.Append(messages, keys(client, a.no), durable, done)
		}
		if err != nil {
			x.waiting.Done()
		}
	}
	if err != nil {
		x.w.mu.Lock()
		a.refused = true
		x.w.mu.Unlock()
	}
	return err
}

// completion notes what the store says of an append.
type completion struct {
	x      *session
	client string
	a      *told
}

func (c *completion) Committed(base uint64, err error) {
	w := c.x.w
	w.mu.Lock()
	defer w.mu.Unlock()
	c.a.answers++
	c.a.base, c.a.err = base, err
	if err == nil && c.a.durable {
		w.completed(w.client(c.client), c.a.no)
	}
	if c.a.answers == 1 {
		c.x.waiting.Done()
	}
}

// follow notes that what is delivered with QoS 1 or 2 must not be taken back any more.
func (x *session) follow(ctx context.Context, t *testing.T) {
	var next uint64
	_ = x.s.Follow(ctx, func(g *store.Group) {
		if next != 0 && g.Base != next {
			t.Errorf("followed to %d, then came %d", next, g.Base)
		}
		next = g.Base + uint64(len(g.Entries))
		x.w.mu.Lock()
		defer x.w.mu.Unlock()
		for i := range g.Entries {
			client, no, _, err := parse(g.Record(i).Payload)
			if err != nil {
				t.Error(err)
				continue
			}
			if c := x.w.client(client); c.appends[no-1].durable {
				x.w.completed(c, no)
			}
		}
	})
}

func parse(payload []byte) (client string, no, i int, err error) {
	head, _, _ := strings.Cut(string(payload[:min(len(payload), 60)]), "\x00")
	if _, err := fmt.Sscanf(head, "%s %d %d ", &client, &no, &i); err != nil {
		return "", 0, 0, fmt.Errorf("a message that nobody sent: %q", payload)
	}
	return client, no, i, nil
}

// readAll reads everything from offset from, in portions.
func readAll(s *store.Store, from uint64, seed uint64) ([]store.Record, error) {
	rng := rand.New(rand.NewPCG(seed, 7))
	var all []store.Record
	r := s.NewReader()
	for end := s.Committed(); from < end; {
		lim := store.Limits{MaxRecords: 1 + rng.IntN(30), MaxBytes: 1 + rng.IntN(20_000), MaxScan: 1 + rng.IntN(100)}
		recs, next, err := r.Read(all, from, lim, func(uint64, uint32) bool { return true })
		if err != nil {
			return all, fmt.Errorf("read at %d: %w", from, err)
		}
		if next <= from {
			return all, fmt.Errorf("read at %d: no progress", from)
		}
		all, from = recs, next
	}
	return all, nil
}

// found is what a store holds of one client.
type found struct {
	cut     int // the last append that was applied
	records []store.Record
}

// check compares what a store holds with the world.
func (w *world) check(s *store.Store, seed uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := s.First()
	from := first
	if seed%2 == 0 {
		from = 1
	}
	records, err := readAll(s, from, seed)
	if err != nil {
		return err
	}
	clients := make(map[string]*found)
	for name := range w.clients {
		clients[name] = &found{}
	}
	for i, r := range records {
		if i > 0 && (r.Offset <= records[i-1].Offset || r.Time < records[i-1].Time) {
			return fmt.Errorf("record %d at %d follows %d at %d", r.Offset, r.Time, records[i-1].Offset, records[i-1].Time)
		}
		if r.Offset < first || r.Offset >= s.Next() {
			return fmt.Errorf("offset %d read, the store has %d to %d", r.Offset, first, s.Next())
		}
		client, _, _, err := parse(r.Payload)
		if err != nil {
			return err
		}
		if clients[client] == nil {
			return fmt.Errorf("a message of nobody: %q", r.Payload)
		}
		clients[client].records = append(clients[client].records, r)
	}
	if len(records) > 0 {
		r := records[int(seed%uint64(len(records)))]
		if o := s.SearchTime(r.Time); o > max(r.Offset, s.First()) { // retention may be at work
			return fmt.Errorf("SearchTime(%d) is %d, but offset %d has that time", r.Time, o, r.Offset)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(clients)) {
		if err := w.checkClient(s, name, clients[name], first); err != nil {
			return fmt.Errorf("client %s, told up to %d of %d: %w", name, w.clients[name].must, len(w.clients[name].appends), err)
		}
	}
	return nil
}

func (w *world) checkClient(s *store.Store, name string, f *found, first uint64) error {
	c := w.clients[name]
	v, ok, err := s.Get(record.BucketCursors, []byte(counterKey(name)))
	if err != nil {
		return err
	}
	if ok {
		f.cut = int(binary.BigEndian.Uint32(v))
	}
	if f.cut < c.must {
		return fmt.Errorf("the store has appends up to %d", f.cut)
	}
	if f.cut > len(c.appends) || f.cut > 0 && c.appends[f.cut-1].refused {
		return fmt.Errorf("the store has append %d, which was refused", f.cut)
	}
	if err := w.checkMessages(s, name, f, first); err != nil {
		return fmt.Errorf("cut at %d: %w", f.cut, err)
	}
	want := make(map[string][]byte)
	for _, a := range c.appends[:f.cut] {
		for _, m := range keys(name, a.no) {
			switch {
			case a.refused || m.Bucket != record.BucketSessions:
			case m.Value == nil:
				delete(want, string(m.Key))
			default:
				want[string(m.Key)] = m.Value
			}
		}
	}
	got := make(map[string][]byte)
	err = s.Range(record.BucketSessions, []byte("key/"+name+"/"), func(k, v []byte) bool {
		got[string(k)] = bytes.Clone(v)
		return true
	})
	if err != nil {
		return err
	}
	if !maps.EqualFunc(got, want, bytes.Equal) {
		return fmt.Errorf("cut at %d: keys are %v, want %v", f.cut, got, want)
	}
	return nil
}

// checkMessages goes through what should be read and what was read side by side.
func (w *world) checkMessages(s *store.Store, name string, f *found, first uint64) error {
	rest := f.records
	for _, a := range w.clients[name].appends[:f.cut] {
		if a.refused {
			continue
		}
		for i, m := range a.messages {
			// What may be missing: what retention deleted and what is for live subscribers only.
			known := a.answers > 0 && a.err == nil
			may := m.Flags.Has(record.FlagTransient) || known && a.base+uint64(i) < w.protect || w.lossy && !a.durable
			if len(rest) > 0 {
				if _, no, j, _ := parse(rest[0].Payload); no == a.no && j == i {
					if err := same(s, name, m, rest[0]); err != nil {
						return fmt.Errorf("message %d of append %d, offset %d: %w", i, a.no, rest[0].Offset, err)
					}
					if known && rest[0].Offset != a.base+uint64(i) {
						return fmt.Errorf("message %d of append %d is at %d, answered as %d", i, a.no, rest[0].Offset, a.base+uint64(i))
					}
					rest = rest[1:]
					continue
				}
			}
			if !may {
				return fmt.Errorf("message %d of append %d (durable %v, answered %v, base %d, %v) is missing; first %d, next %d",
					i, a.no, a.durable, known, a.base, m.Flags, first, s.Next())
			}
		}
	}
	if len(rest) > 0 {
		_, no, i, _ := parse(rest[0].Payload)
		return fmt.Errorf("message %d of append %d at %d is out of order, there twice or should not be there", i, no, rest[0].Offset)
	}
	return nil
}

func same(s *store.Store, client string, m message, r store.Record) error {
	const flags = ^record.FlagTransient
	switch {
	case !bytes.Equal(r.Payload, m.Payload):
		return fmt.Errorf("payload is %q, want %q", r.Payload, m.Payload)
	case !bytes.Equal(r.Props, m.Props):
		return fmt.Errorf("props are %q, want %q", r.Props, m.Props)
	case s.TopicName(r.Topic) != m.topic:
		return fmt.Errorf("topic is %q, want %q", s.TopicName(r.Topic), m.topic)
	case s.ClientName(r.Client) != client:
		return fmt.Errorf("client is %q, want %q", s.ClientName(r.Client), client)
	case r.Flags&flags != m.Flags&flags, r.Expiry != m.Expiry, r.PacketID != m.PacketID:
		return fmt.Errorf("flags %v, expiry %d, packet id %d, want %v, %d, %d", r.Flags, r.Expiry, r.PacketID, m.Flags, m.Expiry, m.PacketID)
	}
	return nil
}

// learn makes certain what a store shows: what has been seen once must not be taken back.
func (w *world) learn(s *store.Store) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	records, err := readAll(s, s.First(), 1)
	if err != nil {
		return err
	}
	cuts := make(map[string]int)
	for name := range w.clients {
		v, ok, err := s.Get(record.BucketCursors, []byte(counterKey(name)))
		if err != nil {
			return err
		}
		if ok {
			cuts[name] = int(binary.BigEndian.Uint32(v))
		}
	}
	for name, c := range w.clients {
		c.must, c.written = cuts[name], cuts[name]
		// What is not there now will never be: forget it, so that the clients go on from here.
		for _, a := range c.appends[c.must:] {
			c.appends[a.no-1] = &told{no: a.no, refused: true}
		}
	}
	for _, r := range records {
		name, no, i, err := parse(r.Payload)
		if err != nil {
			return err
		}
		c := w.clients[name]
		a := *c.appends[no-1] // a copy: other worlds share the original
		a.answers, a.err, a.base = 1, nil, r.Offset-uint64(i)
		c.appends[no-1] = &a
	}
	return nil
}
