package feed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// ErrNoQueue means that a queue does not exist and may not be created by using it.
var ErrNoQueue = errors.New("no such queue")

var errBinding = errors.New("feed: damaged binding")

// Queues are the feeds that live for ever: each draws its direct messages and whatever topics it is bound to.
type Queues struct {
	hub  *Hub
	auto bool

	mu     sync.Mutex
	byName map[string]*Feed  // by queue name
	base   map[string]Policy // what the configuration says, likewise
}

// OpenQueues loads the queues of the state. With auto a queue is created by its first use.
func OpenQueues(h *Hub, auto bool) (*Queues, error) {
	q := &Queues{hub: h, auto: auto, byName: map[string]*Feed{}, base: map[string]Policy{}}
	bindings := map[string][]Filter{}
	ghosts := map[string][]ghost{}
	var names []string
	own := map[string]settings{}
	var bad error
	err := h.log.Range(record.BucketQueues, nil, func(k, v []byte) bool {
		names = append(names, string(k))
		if own[string(k)], bad = parseSettings(v); bad != nil {
			bad = fmt.Errorf("queue %q: %w", k, bad)
		}
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return nil, fmt.Errorf("load queues: %w", err)
	}
	err = h.log.Range(record.BucketBindings, nil, func(k, v []byte) bool {
		name, filter, _ := strings.Cut(string(k), "\x00")
		var flt Filter
		var ended bool
		var last uint32
		if flt, ended, last, bad = parseBinding(filter, v); bad != nil {
			bad = fmt.Errorf("binding of queue %q to %q: %w", name, filter, bad)
			return false
		}
		if ended {
			ghosts[name] = append(ghosts[name], ghost{flt, last})
		} else {
			bindings[name] = append(bindings[name], flt)
		}
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return nil, fmt.Errorf("load bindings: %w", err)
	}
	for _, name := range names {
		if q.byName[name], err = q.open(name, false, own[name], bindings[name], ghosts[name]...); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// QueueID is the id of a queue's feed.
func QueueID(name string) string { return "q/" + name }

// open opens a queue's feed; mu is held, or nobody knows q yet.
func (q *Queues) open(name string, fresh bool, own settings, bindings []Filter, ghosts ...ghost) (*Feed, error) {
	direct := Filter{Filter: topic.QueuePrefix + name, QoS: 2}
	o := Options{Durable: true, Shared: true, Fresh: fresh, name: name, queues: q, chosen: own, ghosts: ghosts, policy: own.over(q.baseOf(name))}
	return q.hub.Open(QueueID(name), o, append(bindings, direct)...)
}

// Hub returns the hub that the queues' feeds belong to.
func (q *Queues) Hub() *Hub { return q.hub }

// Names returns the queues there are, sorted.
func (q *Queues) Names() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	names := make([]string, 0, len(q.byName))
	for n := range q.byName {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Use returns a queue, which it creates if that is allowed, or ErrNoQueue.
func (q *Queues) Use(name string) (*Feed, error) {
	q.mu.Lock()
	f, ok := q.byName[name]
	q.mu.Unlock()
	if ok {
		return f, nil
	}
	if !q.auto {
		return nil, fmt.Errorf("%w: %q (queue.auto_create is off)", ErrNoQueue, name)
	}
	return q.Create(name)
}

// Find returns a queue that exists, or ErrNoQueue.
func (q *Queues) Find(name string) (*Feed, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f, ok := q.byName[name]; ok {
		return f, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrNoQueue, name)
}

// Create makes a queue, if it is not there, and returns it. It starts at the beginning of the log. That it exists is
// durable with the next commit group.
func (q *Queues) Create(name string) (*Feed, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f, ok := q.byName[name]; ok {
		return f, nil
	}
	f, err := q.open(name, true, settings{}, nil) // one of that name was deleted, perhaps, and its cursor is still there
	if err != nil {
		return nil, err
	}
	mut := record.Put(record.BucketQueues, []byte(name), (&settings{}).append(nil))
	if err := q.hub.Save([]store.Mutation{mut}, nil, f); err != nil {
		f.Close()
		return nil, fmt.Errorf("create queue %q: %w", name, err)
	}
	q.byName[name] = f
	return f, nil
}

// Bind makes a queue draw from every topic that filter matches, from the beginning of the log on; one that it
// draws from already stays as it is. done is called when that is durable.
func (q *Queues) Bind(f *Feed, filter string, done store.Completion) error {
	q.mu.Lock()
	defer q.mu.Unlock() // or the queue might be deleted meanwhile, and its next life begin with the binding
	if q.byName[f.name] != f {
		return fmt.Errorf("%w: %q", ErrNoQueue, f.name)
	}
	// The feed goes back, its filters change and both are saved as one: a cursor saved in between would, after a
	// crash, walk the whole log under the old filters.
	q.hub.saver.order.Lock()
	defer q.hub.saver.order.Unlock()
	f.Bind(Filter{Filter: filter, QoS: 2})
	flt, _ := f.Filter(filter) // if it was there, what bound it may still be on its way to the disk
	put := record.Put(record.BucketBindings, bindingKey(f, filter), appendBinding(flt))
	return q.hub.saveOrdered([]store.Mutation{put}, done, f)
}

// Unbind ends a binding and reports whether there was one. done is called when that is durable.
func (q *Queues) Unbind(f *Feed, filter string, done store.Completion) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.byName[f.name] != f {
		return false, fmt.Errorf("%w: %q", ErrNoQueue, f.name)
	}
	q.hub.saver.order.Lock()
	defer q.hub.saver.order.Unlock()
	existed := f.Unsubscribe(filter)
	mut := record.Delete(record.BucketBindings, bindingKey(f, filter))
	if g := f.ghostOf(filter); g != nil {
		mut = record.Put(record.BucketBindings, bindingKey(f, filter), g.append(nil))
	}
	return existed, q.hub.saveOrdered([]store.Mutation{mut}, done, f)
}

func bindingKey(f *Feed, filter string) []byte {
	return []byte(f.id[len("q/"):] + "\x00" + filter)
}

const (
	bindingVersion = 1
	ghostVersion   = 2
)

// appendBinding encodes: version u8 1, from uvarint, era uvarint.
func appendBinding(flt Filter) []byte {
	b := binary.AppendUvarint([]byte{bindingVersion}, flt.From)
	return binary.AppendUvarint(b, uint64(flt.Era))
}

// append encodes a binding that has ended: version u8 2, from uvarint, era uvarint, last era uvarint.
func (g *ghost) append(b []byte) []byte {
	b = binary.AppendUvarint(append(b, ghostVersion), g.From)
	b = binary.AppendUvarint(b, uint64(g.Era))
	return binary.AppendUvarint(b, uint64(g.last))
}

// parseBinding reads a binding, or one that has ended in era last.
func parseBinding(filter string, b []byte) (flt Filter, ended bool, last uint32, err error) {
	if len(b) == 0 || b[0] == 0 {
		return Filter{}, false, 0, errBinding
	}
	if b[0] > ghostVersion {
		return Filter{}, false, 0, fmt.Errorf("feed: binding of version %d: %w", b[0], store.ErrVersion)
	}
	r := numbers{b: b[1:]}
	flt = Filter{Filter: filter, From: r.next(), QoS: 2, Era: uint32(r.atMost(math.MaxUint32))}
	if ended = b[0] == ghostVersion; ended {
		last = uint32(r.atMost(math.MaxUint32 - 1))
	}
	if r.bad || len(r.b) > 0 {
		return Filter{}, false, 0, errBinding
	}
	return flt, ended, last, nil
}
