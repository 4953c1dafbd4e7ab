package store

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// SyncMode says what is on disk when an append is answered.
type SyncMode uint8

const (
	// SyncAlways answers after fdatasync: what is acknowledged survives a power cut.
	SyncAlways SyncMode = iota
	// SyncInterval answers after the write and syncs every Options.SyncInterval: a power cut may take
	// back that much, a crash of the process nothing.
	SyncInterval
	// SyncNone answers after the write and syncs at checkpoints only.
	SyncNone
)

// String is the word that config.yaml and the metrics use.
func (m SyncMode) String() string {
	switch m {
	case SyncAlways:
		return "always"
	case SyncInterval:
		return "interval"
	case SyncNone:
		return "none"
	}
	return fmt.Sprintf("SyncMode(%d)", uint8(m))
}

// ParseSyncMode reads the word that String writes.
func ParseSyncMode(s string) (SyncMode, error) {
	for _, m := range []SyncMode{SyncAlways, SyncInterval, SyncNone} {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("store: sync mode %q is not always, interval or none", s)
}

// Options say where a store lives and how it behaves; every zero is a default.
type Options struct {
	Dir          string        // the data directory
	Sync         SyncMode      // default SyncAlways
	SyncInterval time.Duration // for SyncInterval; default 100 ms

	JournalFileBytes   int64         // size of one journal file; default 64 MiB
	CheckpointBytes    int64         // checkpoint after so much journal; default 256 MiB
	CheckpointInterval time.Duration // and at least so often while anything changed; default 30 s
	SegmentBytes       int64         // seal a segment past this size; default 64 MiB
	SharedBelow        int64         // clients that wrote less share segments; default 64 KiB
	TailBytes          int64         // flushed records kept in memory for readers that keep up; default 32 MiB
	CacheBytes         int64         // block cache of readers; default 32 MiB
	MaxFiles           int           // files it may have open at once; default 1024

	RetainAge   time.Duration // delete records older than this; 0 keeps them
	RetainBytes int64         // delete the oldest past this many bytes of segments; 0 keeps them
	MinFree     uint64        // refuse durable appends below this many free bytes on disk; default 64 MiB
	// Protect returns the lowest offset somebody still needs; retention deletes nothing at or
	// above it. nil protects nothing.
	Protect func() uint64
	// MaxAge returns the age limit of one topic; 0 means RetainAge, negative means for ever. nil means RetainAge for all.
	MaxAge func(topic string) time.Duration

	// Topic returns how much of a topic is kept, nil if nothing in particular. It is asked once for each topic.
	Topic func(topic string) *TopicPolicy
	// ProtectTopic is Protect for one topic, which its policy's limits respect; nil protects nothing from them.
	ProtectTopic func(topic string) uint64

	// InUse calls topic and client with the numbers that are kept outside the store, though no message from First on may have them, and that are not looked
	// up anew in each Use. What limits of topics dropped below the offset that it returns, all have been told of. nil: no numbers are kept.
	InUse func(topic, client func(number uint32)) (told uint64, err error)

	// Mend returns what may take the place of a value of the state that is damaged, false if nothing may and the store must not open.
	Mend func(bucket record.Bucket, key []byte) (Mutation, bool)

	// Keys calls yield for each key in a message's properties by which it is to be found (see Lookup), until that returns false.
	Keys func(props []byte, yield func(kind byte, value []byte) bool)

	refill func(s *Store, used *numbers) error // adds records behind those of replay; see Salvage

	freeEvery  time.Duration // 0 means freeEvery; for tests
	indexBlock uint64        // offsets a block of the index; 0 means a ledger file's; for tests

	FS     vfs.FS           // nil means the real disk
	Logger *slog.Logger     // nil discards
	Now    func() time.Time // nil means time.Now
}

// withDefaults fills in the zeros.
func (o Options) withDefaults() Options {
	def := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.JournalFileBytes, 64<<20)
	def(&o.CheckpointBytes, 256<<20)
	def(&o.SegmentBytes, 64<<20)
	def(&o.SharedBelow, 64<<10)
	def(&o.TailBytes, 32<<20)
	def(&o.CacheBytes, 32<<20)
	if o.MaxFiles == 0 {
		o.MaxFiles = 1024
	}
	if o.SyncInterval == 0 {
		o.SyncInterval = 100 * time.Millisecond
	}
	if o.CheckpointInterval == 0 {
		o.CheckpointInterval = 30 * time.Second
	}
	if o.MinFree == 0 {
		o.MinFree = 64 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}
