// Package bench puts standard loads on an MQTT broker, any broker, and checks what comes back.
//
// It speaks MQTT with frames of its own (wire.go): a publisher or consumer is one goroutine that writes as much as it may in one
// call, reads as much as there is in one call, and allocates nothing for a message, so that the broker and not the tool
// is what is measured. Every payload carries its publisher, topic, number and time under a checksum (payload.go), so loss,
// reordering, duplicates and damage are counted (check.go).
//
// Latencies of a paced load count from the time at which a message was due when the broker held the publisher up: a
// broker that stalls for a second has a second's worth of late messages, not one.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/client"
)

// Kind is what a load does.
type Kind int

// The kinds of load.
const (
	Publish Kind = iota // publishers alone, until everything is acknowledged
	Drain               // durable sessions, offline while it is published; then they read everything
	Live                // publishers and consumers at the same time
	Idle                // connections that subscribe and do nothing
)

// Load is a load and its size.
type Load struct {
	Name       string `json:"name"`
	Short      string `json:"short"` // a line of help
	Kind       Kind   `json:"kind"`
	Publishers int    `json:"publishers"`
	Consumers  int    `json:"consumers"` // of Idle: the connections
	Topics     int    `json:"topics"`
	Count      int    `json:"count"` // messages in all
	Size       int    `json:"size"`  // of a payload
	QoS        byte   `json:"qos"`
	Window     int    `json:"window"`  // what a publisher may have unacknowledged; of Idle: connections that are opened at once
	Rate       int    `json:"rate"`    // messages a second in all; 0 is as fast as it goes
	All        bool   `json:"all"`     // every consumer subscribes to every topic; otherwise they are split among the consumers
	Restart    bool   `json:"restart"` // of Drain: the broker is stopped and started before the consumers come back
}

// Loads are the standard loads, in the order in which they are run.
var Loads = []Load{
	{Name: "ingest", Short: "20 publishers, pipelined: what a fleet of devices does", Kind: Publish, Publishers: 20, Topics: 100, Count: 400_000, Size: 128, QoS: 1, Window: 256},
	{Name: "sync1", Short: "one publisher, one message at a time: the price of an acknowledgement", Kind: Publish, Publishers: 1, Topics: 1, Count: 10_000, Size: 128, QoS: 1, Window: 1},
	{Name: "big", Short: "messages of 64 KiB", Kind: Publish, Publishers: 10, Topics: 10, Count: 4_000, Size: 64 << 10, QoS: 1, Window: 16},
	{Name: "drain", Short: "published while the consumers are offline, then read by them", Kind: Drain, Publishers: 20, Consumers: 10, Topics: 100, Count: 300_000, Size: 128, QoS: 1, Window: 256},
	{Name: "contest", Short: "drain, and the broker is restarted in between (needs --start)", Kind: Drain, Publishers: 20, Consumers: 10, Topics: 100, Count: 300_000, Size: 128, QoS: 1, Window: 256, Restart: true},
	{Name: "live", Short: "10 publishers to 10 consumers as fast as it goes", Kind: Live, Publishers: 10, Consumers: 10, Topics: 100, Count: 300_000, Size: 128, QoS: 1, Window: 256},
	{Name: "paced", Short: "10 to 10 at 10,000 messages a second: latency under a load that leaves room", Kind: Live, Publishers: 10, Consumers: 10, Topics: 100, Count: 50_000, Size: 128, QoS: 1, Window: 256, Rate: 10_000},
	{Name: "fanout", Short: "one publisher to 50 consumers, QoS 0", Kind: Live, Publishers: 1, Consumers: 50, Topics: 1, Count: 10_000, Size: 128, QoS: 0, Window: 256, All: true},
	{Name: "conns", Short: "idle connections: how fast they come, what they cost", Kind: Idle, Consumers: 5_000, Size: MinSize, QoS: 1, Window: 1},
}

// maxPairs bounds the pairs of publisher and topic (times consumers, with All) whose order is kept track of.
const maxPairs = 1 << 26

// Check says what is wrong with a load.
func (l *Load) Check() error {
	switch {
	case l.Kind == Idle && l.Consumers < 1:
		return errors.New("there are no connections to open")
	case l.Kind == Idle:
		return nil
	case l.Publishers < 1 || l.Topics < 1 || l.Count < l.Publishers:
		return errors.New("publishers and topics must be at least 1, and there must be a message for each publisher")
	case l.Kind != Publish && l.Consumers < 1:
		return errors.New("there are no consumers")
	case l.Size < MinSize:
		return fmt.Errorf("a payload has at least %d bytes: what proves its order and content", MinSize)
	case l.QoS > 2:
		return fmt.Errorf("there is no QoS %d", l.QoS)
	case l.Window < 1 || l.Window > 65535:
		return errors.New("the window is 1 to 65535 messages")
	case l.Rate < 0:
		return errors.New("the rate is negative")
	}
	pairs := l.Publishers * l.Topics
	if l.All {
		pairs *= max(1, l.Consumers)
	}
	if pairs > maxPairs {
		return fmt.Errorf("%d publishers and %d topics are too many pairs to check the order of", l.Publishers, l.Topics)
	}
	return nil
}

// Target is a broker to put a load on.
type Target struct {
	Name     string
	Options  client.Options // URL, TLS, Version, User, Password and Timeout are used
	Names    string         // in client ids and topics, which are the same for every run; two at a time on one broker need two. "" means 0
	Process  *Process       // where it is known which process the broker is
	Restarts func(context.Context) error
}

// Progress is how far a run is.
type Progress struct {
	Phase       string
	Done, Total int64
}

// ErrNoRestart means that a load restarts the broker, and that this one cannot be.
var ErrNoRestart = errors.New("the load restarts the broker, which only one that was started here can be")

// ErrNoPace means that a load has a rate, which needs reads that end in time: over WebSocket those end the connection.
var ErrNoPace = errors.New("no rate can be kept over WebSocket: use mqtt://, mqtts:// or unix://")

// patience says how long a run waits.
type patience struct {
	quiet  time.Duration // with nothing arriving, until what is missing counts as lost
	stall  time.Duration // with nothing acknowledged, until the broker counts as stuck
	settle time.Duration // with idle connections, until the broker's memory is read
}

const (
	quiet  = 5 * time.Second
	stall  = 30 * time.Second
	settle = 2 * time.Second
)

// run is one pass of one load on one broker.
type run struct {
	Load
	target  *Target
	version packet.Version
	id      string   // Target.Names
	tag     uint16   // in payloads: what an earlier run has published is not this one's
	names   []string // of the topics
	heads   [][]byte // the PUBLISH of each topic up to the packet id
	report  func(Progress)
	patience

	publishers []*publisher
	consumers  []*consumer

	phase    atomic.Pointer[string]
	progress atomic.Int64 // messages done with in this phase
	total    atomic.Int64 // of this phase, as far as known
	expected atomic.Int64 // what consumers shall get in all
	received atomic.Int64
	last     atomic.Int64  // when the newest arrived
	arrived  chan struct{} // something for whoever waits for the consumers
}

// Run runs a load once. The error is about the run; what was found wrong with the messages is in the result.
func Run(ctx context.Context, t *Target, l Load, report func(Progress)) (*Result, error) {
	return runWith(ctx, t, l, report, patience{quiet, stall, settle})
}

func runWith(ctx context.Context, t *Target, l Load, report func(Progress), waits patience) (*Result, error) {
	if err := l.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", l.Name, err)
	}
	if l.Restart && t.Restarts == nil {
		return nil, fmt.Errorf("%s: %w", l.Name, ErrNoRestart)
	}
	if u, err := client.ParseURL(t.Options.URL); err == nil && l.Rate > 0 && strings.HasPrefix(u.Scheme, "ws") {
		return nil, fmt.Errorf("%s: %w", l.Name, ErrNoPace)
	}
	r := &run{Load: l, target: t, id: cmp.Or(t.Names, "0"), tag: uint16(rand.Uint32()), report: report, patience: waits, arrived: make(chan struct{}, 1)}
	r.version = packet.Version(cmp.Or(t.Options.Version, client.V5))
	r.expected.Store(1 << 62)
	for i := range l.Topics {
		r.names = append(r.names, fmt.Sprintf("bench/%s/t%d", r.id, i))
	}
	r.heads = publishHeads(r.version, r.names, l.QoS, l.Size)
	result := &Result{Broker: t.Name, Load: l.Name}
	stop := r.reporting(ctx)
	defer stop()
	own := ownCPU()
	var err error
	switch l.Kind {
	case Publish:
		err = r.publishOnly(ctx, result)
	case Drain:
		err = r.drain(ctx, result)
	case Live:
		err = r.live(ctx, result)
	case Idle:
		err = r.idle(ctx, result)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.Name, err)
	}
	result.ToolCPU = perMessage(ownCPU()-own, result.handled())
	return result, nil
}

// begin names what happens now.
func (r *run) begin(phase string, total int64) {
	r.progress.Store(0)
	r.total.Store(total)
	r.phase.Store(&phase)
}

// reporting calls report now and then until its result is called.
func (r *run) reporting(ctx context.Context) (stop func()) {
	if r.report == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if phase := r.phase.Load(); phase != nil {
					r.report(Progress{*phase, r.progress.Load(), r.total.Load()})
				}
			}
		}
	}()
	return func() { cancel(); <-done }
}

// Find returns a standard load.
func Find(name string) (Load, bool) {
	i := slices.IndexFunc(Loads, func(l Load) bool { return l.Name == name })
	if i < 0 {
		return Load{}, false
	}
	return Loads[i], true
}
