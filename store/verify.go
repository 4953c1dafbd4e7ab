package store

import "io"

// Damage is a place on disk that does not make sense.
type Damage struct {
	Path   string
	Pos    int64 // byte position
	Length int64 // 0 if unknown
	Err    error
}

// Report is what Verify found.
type Report struct {
	Files   int
	Bytes   int64
	Records uint64
	Groups  uint64 // in the journal, not yet checkpointed
	Damage  []Damage
}

// Verify checks every byte of a stopped store. It opens nothing for writing. The error wraps ErrDamaged if Report.Damage is not empty.
func Verify(o Options) (Report, error) { panic("todo") }

// Summary is what Stat found.
type Summary struct {
	First, Next, Checkpoint uint64
	CheckpointTime          int64 // µs since 1970
	Segments                int
	SegmentBytes            int64
	LedgerBytes             int64
	JournalBytes            int64
	StateBytes              int64
	Topics, Clients         []Count // most bytes first
}

// Count is what one topic or client holds.
type Count struct {
	Name           string
	ID             uint32
	Records, Bytes uint64
}

// Stat counts what a stopped store holds.
func Stat(o Options) (Summary, error) { panic("todo") }

// Filter chooses what Dump writes.
type Filter struct {
	Topic  string // exact name; "" is any
	Client string
	From   uint64
	Limit  uint64 // 0 is all
}

// Dump writes the records of a stopped store to w, one JSON object a line.
func Dump(w io.Writer, o Options, f Filter) error { panic("todo") }
