package store

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/store/record"
)

// Stats is a picture of the store for metrics and $SYS. Counts start at Open.
type Stats struct {
	Sync SyncMode

	First, Next, Committed, Flushed, Checkpointed uint64 // offsets

	Appends, Groups, Records, Mutations, Bytes, Syncs uint64 // journal traffic
	SyncLatency                                       Histogram
	CommitLatency                                     Histogram  // of a group: write, sync, completions
	GroupSizes                                        [32]uint64 // GroupSizes[i] counts groups of fewer than 1<<i records not counted before
	Indexed                                           uint64     // the index has all below this offset

	JournalBytes                     int64 // written since the last checkpoint
	TailBytes, UnflushedBytes        int64
	CacheBytes                       int64
	CacheHits, CacheMisses           uint64
	Segments                         int
	SegmentBytes, LedgerBytes        int64
	DeletedSegments, DeletedRecords  uint64 // by retention; records include those that had been dropped or superseded
	Topics                           int    // that have a number
	Clients                          int    // likewise, as of the last checkpoint
	FreedTopics, FreedClients        uint64 // whose numbers were given up
	Checkpoints                      uint64
	CheckpointAge, CheckpointLatency time.Duration // since the last one; how long it took
	DiskFree                         uint64

	TopicDropped, TopicAged uint64 // messages dropped since their topic had too much, or since they were too old
	TopicRetained           uint64 // messages of topics with limits that went with a segment that retention deleted
	TopicRefused            uint64 // messages that were refused since their topic was full

	Damaged uint64 // records or groups that could not be read back
	Full    bool   // durable appends are refused for want of disk
	Fulls   uint64 // how often that began
	Starved uint64 // how often records could not be moved for want of file descriptors
	// Unstored counts messages of QoS 0 that went to live subscribers only meanwhile.
	Unstored uint64
	Failed   error // nil while the store works
}

// Histogram counts durations in buckets of doubling width.
type Histogram struct {
	Count   uint64
	Sum     time.Duration
	Buckets [32]uint64 // Buckets[i] counts durations < 1<<i µs not counted before
}

// Quantile returns an upper bound of the q-quantile (0 < q <= 1).
func (h Histogram) Quantile(q float64) time.Duration {
	rank := uint64(q * float64(h.Count))
	for i, seen := 0, uint64(0); i < len(h.Buckets); i++ {
		if seen += h.Buckets[i]; seen > 0 && seen >= rank {
			return time.Duration(1<<i) * time.Microsecond
		}
	}
	return 0
}

// histogram is a Histogram that is being filled.
type histogram struct {
	sum     atomic.Int64
	buckets [32]atomic.Uint64
}

func (h *histogram) observe(d time.Duration) {
	h.sum.Add(int64(d))
	h.buckets[min(bits.Len64(uint64(d.Microseconds())), len(h.buckets)-1)].Add(1)
}

func (h *histogram) snapshot() (out Histogram) {
	out.Sum = time.Duration(h.sum.Load())
	for i := range h.buckets {
		out.Buckets[i] = h.buckets[i].Load()
		out.Count += out.Buckets[i]
	}
	return out
}

// counters are what the goroutines of a store count as they go.
type counters struct {
	appends, groups, records, mutations, bytes, syncs     atomic.Uint64
	checkpoints, deletedSegments, damaged, fulls, starved atomic.Uint64
	topicDropped, topicAged, topicRetained                atomic.Uint64
	topicRefused, deletedRecords, unstored                atomic.Uint64
	syncLatency, commitLatency                            histogram
	groupSizes                                            [32]atomic.Uint64
	checkpointLatency, checkpointAt                       atomic.Int64 // ns; wall clock µs
	diskFree                                              atomic.Uint64
}

// Stats returns the present figures.
func (s *Store) Stats() Stats {
	c := &s.count
	out := Stats{
		Sync:  s.opt.Sync,
		First: s.First(), Next: s.Next(), Committed: s.Committed(),
		Flushed: s.tail.flushedUntil.Load(), Checkpointed: s.checkpointedNext.Load(),
		Appends: c.appends.Load(), Groups: c.groups.Load(), Records: c.records.Load(),
		Mutations: c.mutations.Load(), Bytes: c.bytes.Load(), Syncs: c.syncs.Load(),
		SyncLatency: c.syncLatency.snapshot(), CommitLatency: c.commitLatency.snapshot(),
		JournalBytes: s.journalBytes(),
		TailBytes:    s.tail.bytes.Load(), UnflushedBytes: s.tail.pushed.Load() - s.tail.flushed.Load(),
		LedgerBytes: s.ledger.Bytes(), DeletedSegments: c.deletedSegments.Load(), DeletedRecords: c.deletedRecords.Load(),
		Topics: int(s.Topics()), Clients: int(s.state.Keys(record.BucketClients) / 2), // each by its name and by its number
		FreedTopics: s.freer.topics.Load(), FreedClients: s.freer.clients.Load(), Checkpoints: c.checkpoints.Load(),
		CheckpointLatency: time.Duration(c.checkpointLatency.Load()),
		DiskFree:          c.diskFree.Load(),
		TopicDropped:      c.topicDropped.Load(), TopicAged: c.topicAged.Load(),
		TopicRetained: c.topicRetained.Load(), TopicRefused: c.topicRefused.Load(),
		Damaged: c.damaged.Load(), Full: s.full.Load() != 0, Fulls: c.fulls.Load(), Starved: c.starved.Load(), Unstored: c.unstored.Load(), Failed: s.failure(),
	}
	for i := range c.groupSizes {
		out.GroupSizes[i] = c.groupSizes[i].Load()
	}
	out.Indexed = s.index.until.Load()
	out.CacheBytes, out.CacheHits, out.CacheMisses = s.cache.stats()
	out.Segments, out.SegmentBytes = s.table.totals()
	if at := c.checkpointAt.Load(); at > 0 {
		out.CheckpointAge = max(0, s.opt.Now().Sub(time.UnixMicro(at)))
	}
	return out
}
