package admin

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/session"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

const sysPrefix = "$SYS/broker/"

// Sys publishes statistics under $SYS/broker/, with the names that mosquitto gave them. What changes is sent to live
// subscribers, through the log but not kept in it, and only if somebody listens; new subscribers get the values as retained messages
// (it is a session.System).
type Sys struct {
	every   time.Duration
	version string
	start   time.Time
	logger  *slog.Logger

	mu     sync.RWMutex
	names  topic.Names[string] // the values
	values map[string]string

	// Run's own.
	rates []rate
	last  time.Time
}

// NewSys returns statistics that are made every so often.
func NewSys(every time.Duration, version string, logger *slog.Logger) *Sys {
	return &Sys{every: every, version: version, start: time.Now(), logger: logger.With("component", "sys"), values: map[string]string{}}
}

// Match implements session.System.
func (y *Sys) Match(filter string) []string {
	y.mu.RLock()
	defer y.mu.RUnlock()
	var names []string
	y.names.Match(filter, func(name, _ string) bool {
		names = append(names, name)
		return true
	})
	slices.Sort(names)
	return names
}

// Value implements session.System.
func (y *Sys) Value(name string) (string, bool) {
	y.mu.RLock()
	defer y.mu.RUnlock()
	return y.names.Get(name)
}

// Run makes statistics until ctx ends.
func (y *Sys) Run(ctx context.Context, p Parts) {
	tick := time.NewTicker(y.every)
	defer tick.Stop()
	for {
		y.publish(p, y.update(y.collect(p, time.Now())))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// update replaces the values and returns the names of those that changed.
func (y *Sys) update(values map[string]string) (changed []string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for name, v := range values {
		if old, ok := y.values[name]; !ok || old != v {
			changed = append(changed, name)
			y.names.Set(name, v)
		}
	}
	for name := range y.values {
		if _, ok := values[name]; !ok { // of a queue that is deleted
			y.names.Delete(name)
		}
	}
	y.values = values
	slices.Sort(changed)
	return changed
}

// publish sends values to those who listen.
func (y *Sys) publish(p Parts, names []string) {
	var msgs []store.Message
	defer p.Store.Use().Done()
	for _, name := range names {
		if !p.Queues.Hub().Wanted(name) {
			continue
		}
		id, err := p.Store.TopicID(name)
		if err != nil {
			return // the store is closing
		}
		v, _ := y.Value(name)
		msgs = append(msgs, store.Message{Topic: id, Flags: record.FlagTransient, Payload: []byte(v)})
	}
	if len(msgs) == 0 {
		return
	}
	if err := p.Store.Append(msgs, nil, false, nil); err != nil {
		y.logger.Debug("publishing statistics failed", "err", err)
	}
}

// rate is an exponentially weighted mean of a counter's growth a minute, over 1, 5 and 15 minutes.
type rate struct {
	last  float64
	means [3]float64
}

var rateMinutes = [3]float64{1, 5, 15}

// next takes the counter's value some time after the last one.
func (r *rate) next(v float64, passed time.Duration) {
	if passed <= 0 {
		r.last = v
		return
	}
	now := (v - r.last) / passed.Minutes()
	r.last = v
	for i, m := range rateMinutes {
		keep := math.Exp(-passed.Minutes() / m)
		r.means[i] = now + keep*(r.means[i]-now)
	}
}

// collect makes the values, by name.
func (y *Sys) collect(p Parts, now time.Time) map[string]string {
	out := map[string]string{}
	set := func(name string, v any) { out[sysPrefix+name] = fmt.Sprint(v) }
	se, st := p.Sessions.Stats(), p.Store.Stats()
	subs, shared := p.Sessions.Subscriptions()
	connected := 0
	for _, c := range p.Sessions.Connections() {
		if c.Client != "" {
			connected++
		}
	}
	in, sent := sum(se.MessagesIn), sum(se.MessagesOut)
	dropped := se.Refused + se.TooLarge + se.LostWithQoS0
	set("version", y.version)
	set("uptime", fmt.Sprintf("%d seconds", int(now.Sub(y.start).Seconds())))
	set("clients/connected", connected)
	set("clients/disconnected", max(0, se.Sessions-connected))
	set("clients/total", se.Sessions)
	set("clients/maximum", se.MaxConnections)
	set("messages/received", in)
	set("messages/sent", sent)
	set("messages/stored", st.Next-st.First)
	set("publish/messages/received", in)
	set("publish/messages/sent", sent)
	set("publish/messages/dropped", dropped)
	set("publish/bytes/received", se.PayloadIn)
	set("publish/bytes/sent", se.PayloadOut)
	set("bytes/received", se.BytesIn)
	set("bytes/sent", se.BytesOut)
	set("subscriptions/count", subs)
	set("shared_subscriptions/count", shared)
	set("retained messages/count", p.Sessions.Retained())
	set("store/messages/count", st.Next-st.First)
	set("store/messages/bytes", st.SegmentBytes)
	set("store/sync", st.Sync)
	set("store/full", st.Full)
	set("store/damaged", st.Damaged)
	set("store/disk free", st.DiskFree)
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	set("heap/current", mem.HeapAlloc)
	y.queues(p.Queues, set)
	y.load(now, set, []counter{
		{"messages/received", in},
		{"messages/sent", sent},
		{"publish/received", in},
		{"publish/sent", sent},
		{"publish/dropped", dropped},
		{"bytes/received", se.BytesIn},
		{"bytes/sent", se.BytesOut},
		{"connections", se.Connects},
	})
	return out
}

// counter is what a load is of.
type counter struct {
	name string
	v    int64
}

func (y *Sys) load(now time.Time, set func(string, any), counters []counter) {
	passed := time.Duration(0)
	if !y.last.IsZero() {
		passed = now.Sub(y.last)
	}
	y.last = now
	if y.rates == nil {
		y.rates = make([]rate, len(counters))
	}
	for i, c := range counters {
		r := &y.rates[i]
		r.next(float64(c.v), passed)
		for k, m := range rateMinutes {
			set("load/"+c.name+"/"+strconv.Itoa(int(m))+"min", strconv.FormatFloat(r.means[k], 'f', 2, 64))
		}
	}
}

func (y *Sys) queues(qs *feed.Queues, set func(string, any)) {
	names := qs.Names()
	set("queues/count", len(names))
	for _, name := range names {
		i, err := qs.Info(name)
		if err != nil {
			continue // deleted meanwhile
		}
		b, err := qs.Backlog(name)
		if err != nil {
			y.logger.Warn("counting what waits in a queue failed", "queue", name, "err", err)
			continue
		}
		_, age := since(b.Oldest)
		set("queues/"+name+"/depth", b.Messages)
		set("queues/"+name+"/lag/bytes", b.Bytes)
		set("queues/"+name+"/lag/seconds", int(age))
		set("queues/"+name+"/inflight", i.InFlight)
		set("queues/"+name+"/members", i.Members)
		set("queues/"+name+"/redelivered", i.Stats.Redelivered)
		set("queues/"+name+"/dead", i.Stats.Dead)
	}
}

var _ session.System = (*Sys)(nil)
