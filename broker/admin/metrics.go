package admin

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"

	"github.com/edgemq/edgemq/store"
)

// exposition writes Prometheus's text format, version 0.0.4. All that is exposed comes from snapshots which other packages keep
// anyway, so a client library's registry would have to be filled from them at each scrape just the same.
type exposition struct{ bytes.Buffer }

// head begins a metric: what follows are its samples.
func (e *exposition) head(name, kind, help string) {
	fmt.Fprintf(e, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes a value; labels are name, value, name, value …
func (e *exposition) sample(name string, v float64, labels ...string) {
	e.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		e.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(e, `%s="%s"`, labels[i], escapeLabel.Replace(labels[i+1]))
	}
	if len(labels) > 0 {
		e.WriteByte('}')
	}
	e.WriteByte(' ')
	e.WriteString(strconv.FormatFloat(v, 'g', -1, 64))
	e.WriteByte('\n')
}

var escapeLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func (e *exposition) one(name, kind, help string, v float64, labels ...string) {
	e.head(name, kind, help)
	e.sample(name, v, labels...)
}

func (e *exposition) gauge(name, help string, v float64)   { e.one(name, "gauge", help, v) }
func (e *exposition) counter(name, help string, v float64) { e.one(name, "counter", help, v) }

// seconds writes a histogram of durations. Its buckets double from a microsecond on; every second one is enough.
func (e *exposition) seconds(name, help string, h store.Histogram) {
	e.head(name, "histogram", help)
	seen := uint64(0)
	for i, n := range h.Buckets[:25] {
		if seen += n; i >= 4 && i%2 == 0 {
			e.sample(name+"_bucket", float64(seen), "le", strconv.FormatFloat(math.Ldexp(1e-6, i), 'g', 6, 64))
		}
	}
	e.sample(name+"_bucket", float64(h.Count), "le", "+Inf")
	e.sample(name+"_sum", h.Sum.Seconds())
	e.sample(name+"_count", float64(h.Count))
}

// sizes writes a histogram of counts, whose bucket i has those below 1<<i.
func (e *exposition) sizes(name, help string, buckets []uint64, sum float64) {
	e.head(name, "histogram", help)
	seen := uint64(0)
	for i, n := range buckets {
		if seen += n; i > 0 && i <= 20 {
			e.sample(name+"_bucket", float64(seen), "le", strconv.Itoa(1<<i-1))
		}
	}
	e.sample(name+"_bucket", float64(seen), "le", "+Inf")
	e.sample(name+"_sum", sum)
	e.sample(name+"_count", float64(seen))
}

// metrics answers GET /metrics.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	qs, err := s.allQueues()
	if err != nil {
		answer(w, nil, err)
		return
	}
	e := &exposition{}
	e.one("edgemq_info", "gauge", "The version, as a label.", 1, "version", s.opt.Version)
	e.gauge("edgemq_start_time_seconds", "When the broker was started, Unix time.", float64(s.started.UnixMilli())/1000)
	s.clientMetrics(e)
	storeMetrics(e, s.Store.Stats())
	queueMetrics(e, qs)
	runtimeMetrics(e)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(e.Bytes()) // the client is gone
}

func (s *Server) clientMetrics(e *exposition) {
	st := s.Sessions.Stats()
	subs, shared := s.Sessions.Subscriptions()
	byQoS := func(name, help string, v [3]int64) {
		e.head(name, "counter", help)
		for qos, n := range v {
			e.sample(name, float64(n), "qos", strconv.Itoa(qos))
		}
	}
	e.gauge("edgemq_connections", "Open connections.", float64(st.Connections))
	e.counter("edgemq_connections_total", "Connections accepted.", float64(st.Connects))
	e.gauge("edgemq_sessions", "Sessions, connected or not.", float64(st.Sessions))
	e.gauge("edgemq_subscriptions", "Subscriptions of all sessions.", float64(subs))
	e.gauge("edgemq_shared_subscriptions", "Of them shared ones.", float64(shared))
	e.gauge("edgemq_retained_messages", "Topics with a retained message.", float64(s.Sessions.Retained()))
	byQoS("edgemq_messages_received_total", "PUBLISH packets taken from clients.", st.MessagesIn)
	byQoS("edgemq_messages_sent_total", "PUBLISH packets sent to clients.", st.MessagesOut)
	e.counter("edgemq_messages_received_bytes_total", "Payload and properties of the messages received.", float64(st.PayloadIn))
	e.counter("edgemq_messages_sent_bytes_total", "Payload and properties of the messages sent.", float64(st.PayloadOut))
	e.counter("edgemq_network_received_bytes_total", "Bytes read from connections.", float64(st.BytesIn))
	e.counter("edgemq_network_sent_bytes_total", "Bytes written to connections.", float64(st.BytesOut))
	e.counter("edgemq_logins_refused_total", "Connections that were refused for want of a user's name and password.", float64(st.LoginsRefused))
	e.counter("edgemq_denied_total", "Publishes, subscriptions and Wills that rules do not allow.", float64(st.Denied))
	e.counter("edgemq_messages_refused_total", "Publishes that were refused.", float64(st.Refused))
	e.counter("edgemq_nacks_refused_total", "Of them refusals of a queue's messages ($nack) that said nothing, or of a delivery that there is not.", float64(st.NacksRefused))
	e.counter("edgemq_messages_duplicate_total", "Publishes whose @MessageId was there already: acknowledged, not stored again.", float64(st.Duplicates))
	e.counter("edgemq_panics_total", "Faults of the broker that cost one connection, or one feed a pause; the log has the stack.", float64(st.Panics))
	e.gauge("edgemq_delayed_unreadable", "Delayed messages that cannot be read and were set aside.", float64(st.UnreadableDelayed))
	e.counter("edgemq_messages_too_large_total", "Messages not sent since they exceed the client's maximum packet size.", float64(st.TooLarge))
	e.counter("edgemq_messages_lost_total", "QoS 0 publishes that could not be stored.", float64(st.LostWithQoS0))
	live, behind, idle := s.Queues.Hub().Feeds()
	e.head("edgemq_feeds", "gauge", "Walks over the log: live ones are handed messages as they come, behind ones read the log, idle ones have no member.")
	e.sample("edgemq_feeds", float64(live), "state", "live")
	e.sample("edgemq_feeds", float64(behind), "state", "behind")
	e.sample("edgemq_feeds", float64(idle), "state", "idle")
}

func storeMetrics(e *exposition, st store.Stats) {
	e.head("edgemq_store_sync", "gauge", "1 for the level of store.sync in force.")
	for _, m := range []store.SyncMode{store.SyncAlways, store.SyncInterval, store.SyncNone} {
		e.sample("edgemq_store_sync", is(m == st.Sync), "level", m.String())
	}
	e.seconds("edgemq_store_fsync_seconds", "Time of one fsync of the journal.", st.SyncLatency)
	e.seconds("edgemq_store_commit_seconds", "Time of one group commit: write, fsync, answers.", st.CommitLatency)
	e.sizes("edgemq_store_commit_group_records", "Records of one group commit.", st.GroupSizes[:], float64(st.Records))
	e.counter("edgemq_store_appends_total", "Appends; many share a group.", float64(st.Appends))
	e.counter("edgemq_store_records_total", "Records committed.", float64(st.Records))
	e.counter("edgemq_store_journal_written_bytes_total", "Bytes written to the journal.", float64(st.Bytes))
	e.gauge("edgemq_store_journal_bytes", "Journal that no checkpoint covers: the work of a restart.", float64(st.JournalBytes))
	e.gauge("edgemq_store_first_offset", "The oldest offset that is kept.", float64(st.First))
	e.gauge("edgemq_store_next_offset", "The offset that the next message gets.", float64(st.Next))
	e.gauge("edgemq_store_tail_bytes", "The newest messages, in memory.", float64(st.TailBytes))
	e.gauge("edgemq_store_unflushed_bytes", "Of them not yet in segments.", float64(st.UnflushedBytes))
	e.gauge("edgemq_store_cache_bytes", "Blocks of segments in memory.", float64(st.CacheBytes))
	e.counter("edgemq_store_cache_hits_total", "Reads of blocks that were in memory.", float64(st.CacheHits))
	e.counter("edgemq_store_cache_misses_total", "Reads of blocks that came from the disk.", float64(st.CacheMisses))
	e.gauge("edgemq_store_segments", "Segment files.", float64(st.Segments))
	e.gauge("edgemq_store_segment_bytes", "And their bytes.", float64(st.SegmentBytes))
	e.gauge("edgemq_store_ledger_bytes", "Bytes of the ledger.", float64(st.LedgerBytes))
	e.counter("edgemq_store_segments_deleted_total", "Segments that retention deleted.", float64(st.DeletedSegments))
	e.counter("edgemq_store_records_deleted_total", "Messages in segments that retention deleted.", float64(st.DeletedRecords))
	e.head("edgemq_topic_dropped_total", "counter", "Messages that limits of their topics (topics in the settings) dropped: for being too many, too old, or in a segment that retention deleted.")
	e.sample("edgemq_topic_dropped_total", float64(st.TopicDropped), "why", "limit")
	e.sample("edgemq_topic_dropped_total", float64(st.TopicAged), "why", "age")
	e.sample("edgemq_topic_dropped_total", float64(st.TopicRetained), "why", "retention")
	e.counter("edgemq_topic_refused_total", "Publishes refused since their topic was full.", float64(st.TopicRefused))
	e.gauge("edgemq_store_topics", "Topics whose names are known.", float64(st.Topics))
	e.gauge("edgemq_store_clients", "Clients whose names are known, as of the last checkpoint.", float64(st.Clients))
	e.counter("edgemq_store_topics_freed_total", "Topics whose names were forgotten, since nothing refers to them any more.", float64(st.FreedTopics))
	e.counter("edgemq_store_clients_freed_total", "Clients whose names were forgotten, since nothing refers to them any more.", float64(st.FreedClients))
	e.counter("edgemq_store_checkpoints_total", "Checkpoints.", float64(st.Checkpoints))
	e.gauge("edgemq_store_checkpoint_age_seconds", "Time since the last checkpoint.", st.CheckpointAge.Seconds())
	e.gauge("edgemq_store_checkpoint_duration_seconds", "How long it took.", st.CheckpointLatency.Seconds())
	e.gauge("edgemq_store_indexed_offset", "The index has all below.", float64(st.Indexed))
	e.gauge("edgemq_store_disk_free_bytes", "Free space where the data is.", float64(st.DiskFree))
	e.counter("edgemq_store_damaged_total", "Records or groups that could not be read back.", float64(st.Damaged))
	e.gauge("edgemq_store_full", "1 while publishes of QoS 1 and 2 are refused for want of space.", is(st.Full))
	e.counter("edgemq_store_fulls_total", "How often that began.", float64(st.Fulls))
	e.counter("edgemq_store_no_descriptors_total", "How often messages could not be moved from the journal for want of file descriptors.", float64(st.Starved))
	e.counter("edgemq_store_unstored_total", "QoS 0 messages that went to live subscribers only, since the disk was full.", float64(st.Unstored))
	e.gauge("edgemq_store_failed", "1 after a failed write or fsync, when nothing is stored any more.", is(st.Failed != nil))
}

func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func queueMetrics(e *exposition, qs []Queue) {
	for _, m := range []struct {
		name, kind, help string
		value            func(q *Queue) float64
	}{
		{"depth", "gauge", "Messages not settled.", func(q *Queue) float64 { return float64(q.Depth) }},
		{"lag_bytes", "gauge", "Bytes of the messages not settled.", func(q *Queue) float64 { return float64(q.LagBytes) }},
		{"lag_seconds", "gauge", "Age of the oldest message not settled.", func(q *Queue) float64 { return q.LagSeconds }},
		{"in_flight", "gauge", "Messages with consumers.", func(q *Queue) float64 { return float64(q.InFlight) }},
		{"retrying", "gauge", "Messages refused that are to come again.", func(q *Queue) float64 { return float64(q.Retrying) }},
		{"members", "gauge", "Sessions attached.", func(q *Queue) float64 { return float64(q.Members) }},
		{"paused", "gauge", "1 while the queue is paused.", func(q *Queue) float64 { return is(q.Paused) }},
		{"sent_total", "counter", "Messages handed to consumers.", func(q *Queue) float64 { return float64(q.Sent) }},
		{"settled_total", "counter", "Messages done with.", func(q *Queue) float64 { return float64(q.Settled) }},
		{"expired_total", "counter", "Messages that expired before they were sent.", func(q *Queue) float64 { return float64(q.Expired) }},
		{"redelivered_total", "counter", "Refusals by consumers.", func(q *Queue) float64 { return float64(q.Redelivered) }},
		{"dead_total", "counter", "Messages gone to the dead letters.", func(q *Queue) float64 { return float64(q.Dead) }},
	} {
		if len(qs) == 0 {
			return
		}
		name := "edgemq_queue_" + m.name
		e.head(name, m.kind, m.help)
		for i := range qs {
			e.sample(name, m.value(&qs[i]), "queue", qs[i].Name)
		}
	}
}

// runtimeMetrics are under the names that Prometheus's own collectors give them.
func runtimeMetrics(e *exposition) {
	e.gauge("go_goroutines", "Goroutines.", float64(runtime.NumGoroutine()))
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(samples)
	e.gauge("go_memstats_heap_alloc_bytes", "Memory of live and dead objects.", float64(samples[0].Value.Uint64()))
	e.gauge("go_memstats_sys_bytes", "Memory taken from the system.", float64(samples[1].Value.Uint64()))
	e.counter("go_gc_cycles_total", "Garbage collections.", float64(samples[2].Value.Uint64()))
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		e.gauge("process_open_fds", "Open file descriptors.", float64(len(fds)-1))
	}
	if b, err := os.ReadFile("/proc/self/statm"); err == nil {
		if f := bytes.Fields(b); len(f) > 1 {
			pages, _ := strconv.ParseFloat(string(f[1]), 64)
			e.gauge("process_resident_memory_bytes", "Resident memory.", pages*float64(os.Getpagesize()))
		}
	}
	if b, err := os.ReadFile("/proc/self/stat"); err == nil {
		if f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]); len(f) > 12 {
			user, _ := strconv.ParseFloat(string(f[11]), 64)
			system, _ := strconv.ParseFloat(string(f[12]), 64)
			e.counter("process_cpu_seconds_total", "Processor time used.", (user+system)/100)
		}
	}
}
