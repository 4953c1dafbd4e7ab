package store

// Limits bound one Read; a zero does not limit.
type Limits struct {
	MaxRecords int // records returned
	MaxBytes   int // their props and payloads; the first record is returned whatever its size
	MaxScan    int // entries examined
}

// Reader walks the log for one feed. It is not safe for concurrent use.
type Reader struct{}

// NewReader returns a reader; it needs no closing.
func (s *Store) NewReader() *Reader { panic("todo") }

// Read appends to dst the committed records with offset >= from that want chooses, within lim. next is the first
// offset not examined, Committed when caught up. Lost, deleted and gone transient records are skipped, damaged ones too, counted
// and logged. The bytes returned are valid for ever.
func (r *Reader) Read(dst []Record, from uint64, lim Limits, want func(offset uint64, topic uint32) bool) (recs []Record, next uint64, err error) {
	panic("todo")
}
