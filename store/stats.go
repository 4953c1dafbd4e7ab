package store

import "time"

// Stats is a picture of the store for metrics and $SYS. Counts start at Open.
type Stats struct {
	Sync SyncMode

	First, Next, Committed, Flushed, Checkpointed uint64 // offsets

	Appends, Groups, Records, Mutations, Bytes, Syncs uint64 // journal traffic
	SyncLatency                                       Histogram
	CommitLatency                                     Histogram // of a group: write, sync, completions

	JournalBytes                     int64 // written since the last checkpoint
	TailBytes, UnflushedBytes        int64
	CacheBytes                       int64
	CacheHits, CacheMisses           uint64
	Segments                         int
	SegmentBytes, LedgerBytes        int64
	DeletedSegments                  uint64
	Topics                           int
	Checkpoints                      uint64
	CheckpointAge, CheckpointLatency time.Duration // since the last one; how long it took
	DiskFree                         uint64

	Damaged uint64 // records or groups that could not be read back
	Full    bool   // durable appends are refused for want of disk
	Fulls   uint64 // how often that began
	Failed  error  // nil while the store works
}

// Histogram counts durations in buckets of doubling width.
type Histogram struct {
	Count   uint64
	Sum     time.Duration
	Buckets [32]uint64 // Buckets[i] counts durations < 1<<i µs not counted before
}

// Quantile returns an upper bound of the q-quantile (0 < q <= 1).
func (h Histogram) Quantile(q float64) time.Duration { panic("todo") }

// Stats returns the present figures.
func (s *Store) Stats() Stats { panic("todo") }
