package session

import (
	"errors"
	"strconv"
	"sync"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// batch is the answer to the publishes of one append. It is a store.Completion.
type batch struct {
	link *Link
	acks []byte   // the answers, encoded, in the order of the packets they answer [MQTT-4.6.0-2]
	n    int32    // of them
	ends int32    // of the publishes that are over with their answer
	ids  []uint16 // QoS 2 publishes that are new
	// freed are the QoS 2 publishes that PUBRELs end.
	freed []freed
	err   error // why the publishes were refused before they got to the store; what the PUBRELs change did
	// firsts are the messages whose @MessageId is new.
	firsts []placed
	time   int64  // of the messages, µs since 1970
	owed   []owed // what goes on the receipt, if the link wants one
}

// placed is a message's place in a batch.
type placed struct {
	*first
	i int // or nowhere
}

const nowhere = -1

// freed is a packet id that a PUBREL has given back, and the link on which its PUBLISH came.
type freed struct {
	id uint16
	on *Link
}

var batches = sync.Pool{New: func() any { return &batch{} }}

// newest returns what duplicate noted of the message in hand, nil if it has no @MessageId.
func (l *Link) newest() *placed {
	if n := len(l.in.batch.firsts); n > 0 && l.in.batch.firsts[n-1].i == len(l.in.msgs) {
		return &l.in.batch.firsts[n-1]
	}
	return nil
}

// unplace takes back what duplicate noted of a message that is refused after all.
func (l *Link) unplace(msg *store.Message) {
	if f := l.newest(); f != nil {
		l.m.dedup.forget(msg.Client, f.first)
		l.in.batch.firsts = l.in.batch.firsts[:len(l.in.batch.firsts)-1]
	}
}

// unlocate notes that the message in hand has no offset yet, since it is delayed.
func (l *Link) unlocate() {
	if f := l.newest(); f != nil {
		f.i = nowhere
	}
}

// refuse answers a batch that the store did not take. What its PUBRELs change, muts, is stored all the same, and the answers
// to earlier publishes come first, so if there are any on their way, this one goes through the store as well. [MQTT-4.6.0-2]
func (l *Link) refuse(b *batch, muts []store.Mutation, err error) {
	if len(muts) > 0 || l.unanswered.Load() > b.n {
		b.err = err
		if l.m.log.Append(nil, muts, len(muts) > 0, b) == nil {
			return
		}
		b.err = nil
	}
	b.Committed(0, err)
}

// pubrels returns those of a batch's changes that are the work of PUBRELs.
func pubrels(muts []store.Mutation) []store.Mutation {
	var out []store.Mutation
	for _, m := range muts {
		if m.Bucket == record.BucketInflight && m.Value == nil {
			out = append(out, m)
		}
	}
	return out
}

// Stored implements store.Timed.
func (b *batch) Stored(time int64) { b.time = time }

// Committed implements store.Completion: the publishes are on disk, or never will be.
func (b *batch) Committed(base uint64, err error) {
	l := b.link
	unsaved := err != nil && len(b.freed) > 0 // there is no refusal in a PUBCOMP, so the connection must end
	if unsaved {
		b.keep()
	}
	if b.err != nil {
		err = b.err
	}
	if err != nil {
		b.forget()
	} else {
		b.locate(base)
	}
	switch {
	case b.n == 0 && err != nil:
		l.m.lost.Add(1)
	case b.n == 0:
	case err == nil:
		if len(b.owed) > 0 {
			b.acks = append(b.receipt(base), b.acks...)
		}
		l.answer(b.acks, b.n, b.ends)
	case l.Version == packet.V5 && !unsaved:
		acks, n := b.refused(codeOf(err), l.Reason(err.Error(), 0))
		l.m.refused.Add(n)
		l.answer(acks, b.n, b.ends+int32(len(b.ids)))
		if !errors.Is(err, store.ErrFull) {
			l.Kick(codeOf(err), err.Error())
		}
	default: // 3.1.1 has no negative acknowledgement: not acknowledged, and the connection ends
		_, n := b.refused(codeOf(err), "")
		l.m.refused.Add(n)
		l.answered(b.n)
		if n > 0 && l.Version < packet.V5 {
			l.complain(&l.m.closedOver, closedText, err.Error())
		}
		l.Kick(codeOf(err), err.Error())
	}
	b.free()
}

// locate notes where the messages with a new @MessageId are.
func (b *batch) locate(base uint64) {
	for _, f := range b.firsts {
		if f.i != nowhere {
			f.at.Store(b.time)
			f.offset.Store(base + uint64(f.i))
		}
	}
}

// forget takes the ids of publishes back that were not stored.
func (b *batch) forget() {
	for _, f := range b.firsts {
		b.link.m.dedup.forget(b.link.client, f.first)
	}
	s := b.link.session.Load()
	if s == nil || len(b.ids) == 0 {
		return
	}
	s.rxMu.Lock()
	defer s.rxMu.Unlock()
	for _, id := range b.ids {
		delete(s.received, id)
	}
}

// keep has the ids that were given back in use again, as they still are in the state: the client repeats its PUBRELs.
func (b *batch) keep() {
	s := b.link.session.Load()
	if s == nil {
		return
	}
	s.rxMu.Lock()
	defer s.rxMu.Unlock()
	for _, f := range b.freed {
		s.noteReceived(f.id, f.on)
	}
}

func (b *batch) free() {
	clear(b.firsts)
	clear(b.freed)
	clear(b.owed)
	b.firsts, b.freed, b.owed = b.firsts[:0], b.freed[:0], b.owed[:0]
	b.link, b.acks, b.ids, b.n, b.ends, b.err, b.time = nil, b.acks[:0], b.ids[:0], 0, 0, nil, 0
	if cap(b.acks) <= 1<<16 {
		batches.Put(b)
	}
}

// answer queues n answers, with which ends publishes are over.
func (l *Link) answer(acks []byte, n, ends int32) {
	l.quota.Add(-ends) // first: the client may publish as soon as it reads them
	l.Send(acks)
	l.answered(n)
}

// appendPubackAt appends a successful v5 PUBACK that says where the message is.
func appendPubackAt(dst []byte, id uint16, offset uint64) []byte {
	var num [20]byte
	props := appendUser(nil, wire.Offset, strconv.AppendUint(num[:0], offset, 10))
	dst = append(dst, byte(packet.TypePuback)<<4, byte(4+len(props)), byte(id>>8), byte(id), packet.CodeSuccess, byte(len(props)))
	return append(dst, props...)
}

// refused turns a batch's successful v5 acknowledgements into refusals, after forget, and leaves those that were refusals already,
// those of publishes that an earlier batch stored, and PUBCOMPs. It says how many it turned.
func (b *batch) refused(code byte, reason string) (out []byte, n int64) {
	s := b.link.session.Load()
	for acks := b.acks; len(acks) >= 4; {
		size := 2 + int(acks[1])
		if acks[1]&0x80 != 0 { // a two-byte length: a refusal with a long reason
			size = 3 + int(acks[1]&0x7F) + int(acks[2])<<7
		}
		t, id := packet.TypeOf(acks), uint16(acks[2])<<8|uint16(acks[3])
		if size > 4 || t == packet.TypePubcomp || t == packet.TypePubrec && s != nil && s.has(id) {
			out = append(out, acks[:size]...)
		} else {
			out = packet.AppendAck(out, packet.V5, t, id, code, reason)
			n++
		}
		acks = acks[size:]
	}
	return out, n
}
