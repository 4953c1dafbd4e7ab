package store

import (
	"strings"
	"unsafe"

	"github.com/edgemq/edgemq/store/journal"
	"github.com/edgemq/edgemq/store/record"
)

// batch is a group on its way: what Appends leave for the committer. Its memory is used again for a later group, but for the buffer of a large one.
type batch struct {
	base    uint64
	buf     []byte // journal.HeaderSize bytes for the journal, then records
	room    int    // how much of it to begin with, if there is none
	entries []Entry
	muts    []byte     // encoded
	echoes  int        // how many mutations at the front of list are repeated from the group before
	list    []Mutation // the same; keys and values alias muts or an earlier backing array of it
	dones   []pending
	appends int
	durable bool // somebody waits for the disk
	force   bool // and needs it whatever Options.Sync says
	called  bool // the committer has been told of it; if not, it waits for company
	waits   bool // and the appender's alarm is set for it
}

const (
	// leastBuf is the room that a batch begins with, mostBuf what it does with at most, unless a single message is larger.
	leastBuf, mostBuf = 64 << 10, maxOpen + 64<<10
	// handOver is the size from which on a group's readers get the batch's own buffer. Smaller ones are copied, so that the batch's stays where
	// the processor has it at hand; for large ones the copy would be a good part of the time that a commit takes, and all wait for that.
	handOver = 1 << 20
)

func newBatch() *batch {
	b := &batch{}
	b.lose(leastBuf)
	return b
}

// lose has b begin with a buffer of so much room, once there is something to put into it.
func (b *batch) lose(room int) { b.buf, b.room = make([]byte, journal.HeaderSize), min(room, mostBuf) }

// uncleared returns memory for n bytes or a few more, which hold anything. It is worth it where all of it is about to be written, and
// much: make would write it once before. It begins at a page if it is that large.
func uncleared(n int) []byte {
	var b strings.Builder
	b.Grow(n)
	b.WriteByte(0)
	return unsafe.Slice(unsafe.StringData(b.String()), b.Cap())[:0]
}

// grow makes room in b.buf for n more bytes.
func (b *batch) grow(n int) {
	need := len(b.buf) + n
	if need <= cap(b.buf) {
		return
	}
	room := max(need, b.room)
	if cap(b.buf) >= leastBuf {
		if room = max(room, 4*cap(b.buf)); room > handOver { // it may become as large as the publishers' windows
			room = max(need, mostBuf)
		}
	}
	b.buf = append(uncleared(room), b.buf...)
}

// handRecords returns the group's records, in memory of at most so many bytes that stays as it is.
func (b *batch) handRecords() (records []byte, memory int) {
	end := len(b.buf) - len(b.muts)
	records = b.buf[journal.HeaderSize:end:end]
	if len(records) < handOver || len(records) < cap(b.buf)/2 {
		// Exact copies, which the garbage collector takes back when the last reader has let go.
		records = append(uncleared(len(records)), records...)
		memory = cap(records)
	} else {
		memory = cap(b.buf)
	}
	if len(records) >= handOver {
		b.lose(len(b.buf) + len(b.buf)/8) // the next group in this batch is likely to be as large
	}
	return records, memory
}

// reset empties b for a group that begins at base. What a rare giant took is given back.
func (b *batch) reset(base uint64) {
	if cap(b.buf) > 2*maxOpen {
		b.lose(leastBuf)
	}
	if cap(b.muts) > maxOpen {
		b.muts = nil
	}
	clear(b.list)
	clear(b.dones)
	b.base, b.appends, b.durable, b.force, b.echoes = base, 0, false, false, 0
	b.called, b.waits = false, false
	b.buf, b.entries, b.muts = b.buf[:journal.HeaderSize], b.entries[:0], b.muts[:0]
	b.list, b.dones = b.list[:0], b.dones[:0]
}

// size is what the batch takes in the journal.
func (b *batch) size() int { return len(b.buf) + len(b.muts) }

// echo repeats the names that the group before gave numbers to. If that group is damaged on disk one day, its own records
// are lost, but those that come after are not left without a topic or client. Repeating is harmless: nothing comes between. Echoes
// alone make no group.
func (b *batch) echo(before *batch, limit int) {
	named := func(m Mutation) bool {
		return m.Bucket == record.BucketTopics || m.Bucket == record.BucketClients || m.Bucket == record.BucketMeta
	}
	// If there are too many, the newest: the last change of a key must not be undone by an earlier one.
	list := before.list[before.echoes:]
	from, size := len(list), 0
	for from > 0 {
		if m := list[from-1]; named(m) {
			if size += record.MutationSize(len(m.Key), len(m.Value)); size > limit {
				break
			}
		}
		from--
	}
	for _, m := range list[from:] {
		if named(m) {
			b.mutate(m)
			b.echoes++
		}
	}
}

// lengths are how long the parts of a batch are.
type lengths struct{ buf, entries, muts, list, dones int }

func (b *batch) lengths() lengths {
	return lengths{len(b.buf), len(b.entries), len(b.muts), len(b.list), len(b.dones)}
}

// cut takes the batch back to what it was.
func (b *batch) cut(to lengths) {
	b.buf, b.entries, b.muts, b.list, b.dones = b.buf[:to.buf], b.entries[:to.entries], b.muts[:to.muts], b.list[:to.list], b.dones[:to.dones]
}

// add encodes messages at the end of the group.
func (b *batch) add(msgs []Message, base uint64, time int64, transient bool, keyed func(props []byte) bool) {
	var r record.Record
	r.Time = time
	for i := range msgs {
		m := &msgs[i]
		r.Offset = base + uint64(i)
		r.Topic, r.Client, r.Expiry, r.PacketID = m.Topic, m.Client, m.Expiry, m.PacketID
		r.Flags = m.Flags & knownFlags
		if transient {
			r.Flags |= record.FlagTransient
		}
		if len(m.Props) > 0 && keyed(m.Props) {
			r.Flags |= record.FlagKeyed
		}
		r.Props, r.Payload = m.Props, m.Payload
		pos := len(b.buf)
		b.grow(record.Size(len(r.Props), len(r.Payload)))
		b.buf = record.Append(b.buf, &r)
		b.entries = append(b.entries, Entry{
			Time: time, Topic: r.Topic, Client: r.Client, Expiry: r.Expiry, PacketID: r.PacketID, Flags: r.Flags,
			pos: uint32(pos - journal.HeaderSize), size: uint32(len(b.buf) - pos), props: uint32(len(r.Props)),
		})
	}
}

// largeSum is the size from which on a record's own checksum is the cheaper way to the group's.
const largeSum = 4 << 10

// sum returns the CRC-32C of the first n bytes of the records, if there are large ones.
func (b *batch) sum() (sum uint32, n int) {
	records := b.buf[journal.HeaderSize:]
	for i := range b.entries {
		if e := &b.entries[i]; e.size >= largeSum {
			sum = record.Sum(sum, records[n:e.pos])
			n = int(e.pos + e.size)
			sum = record.Extend(sum, records[e.pos:n])
		}
	}
	return sum, n
}

// mutate encodes a mutation and keeps a copy of it to be applied after the commit.
func (b *batch) mutate(m Mutation) {
	at := len(b.muts) + record.MutationHeaderSize
	b.muts = record.AppendMutation(b.muts, m)
	k := at + len(m.Key)
	c := Mutation{Bucket: m.Bucket, Key: b.muts[at:k:k]}
	if m.Value != nil {
		c.Value = b.muts[k:len(b.muts):len(b.muts)]
	}
	b.list = append(b.list, c)
}
