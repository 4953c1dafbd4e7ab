package session

import (
	"errors"
	"slices"
	"sync"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// appendBytes is handed to the store at once, at most (a single larger message apart).
const appendBytes = 512 << 10

// ingest collects the publishes of one read for one append.
type ingest struct {
	msgs    []store.Message
	props   []byte // stored forms of properties that had to be cut
	bytes   int
	counts  [3]int64 // by QoS
	begun   int32    // publishes above QoS 0, refused ones included
	durable bool
	muts    []store.Mutation
	due     int64    // when the first of the delayed ones is, 0 if there is none
	retain  []retain // what muts does to retained messages
	batch   *batch
}

var ingests = sync.Pool{New: func() any { return &ingest{} }}

// Publish takes one PUBLISH; what it points to must stay as it is until Flush. An error is the end of the connection:
// a *packet.Error with the code to give.
func (l *Link) Publish(p *packet.Publish) error {
	if p.QoS > l.m.opt.MaxQoS {
		return &packet.Error{Code: packet.CodeQoSNotSupported, Rule: "MQTT-3.2.2-11", Msg: "QoS is above the maximum"}
	}
	if p.Retain && l.m.opt.NoRetain {
		return &packet.Error{Code: packet.CodeRetainNotSupported, Rule: "MQTT-3.2.2-14", Msg: "retained messages are not supported"}
	}
	if l.after != nil {
		for _, gone := range l.after {
			<-gone
		}
		l.after = nil
	}
	if l.m.opt.Auth.Rules() != l.rules {
		if err := l.relook(); err != nil {
			return err
		}
	}
	if !l.using {
		if err := l.begin(); err != nil {
			return err
		}
	}
	ref, err := l.resolve(p)
	if err != nil {
		return err
	}
	if ref.code == 0 && ref.envelope {
		if err := packet.ParseEnvelope(p.Payload, p); err != nil {
			ref = &topicRef{code: codeOf(err), reason: err.Error()}
		}
	}
	in := l.collect()
	if p.QoS == 2 && l.session.Load().has(p.PacketID) {
		in.batch.n++
		in.batch.acks = append(in.batch.acks, byte(packet.TypePubrec)<<4, 2, byte(p.PacketID>>8), byte(p.PacketID))
		return nil // sent again: stored already, or on its way [MQTT-4.3.3-10]
	}
	if p.QoS > 0 {
		in.begun++
		if l.Version == packet.V5 && int(l.quota.Load()+in.begun) > l.m.opt.ReceiveMaximum {
			return &packet.Error{Code: packet.CodeReceiveMaximum, Rule: "MQTT-3.3.4-7", Msg: "more publishes in flight than Receive Maximum"}
		}
		in.batch.n++
		if p.QoS == 1 {
			in.batch.ends++
		}
	}
	if ref.code != 0 {
		return l.refuseOne(p, ref)
	}
	if ref.nacks {
		if err := l.session.Load().nack(ref.nack, p); err != nil {
			if l.m.nacksRefused.Add(1); p.QoS == 0 {
				l.complain(&l.m.saidNothing, "refusal of a queue's message that says nothing, at QoS 0", err.Error())
			}
			return l.refuseOne(p, &topicRef{code: codeOf(err), reason: err.Error()})
		}
		return l.accept(p)
	}
	msg := in.next()
	l.message(msg, p, ref)
	if dup, err := l.duplicate(p, msg); err != nil {
		return l.refuseOne(p, &topicRef{code: codeOf(err), reason: err.Error()})
	} else if dup {
		return nil
	}
	if err := l.admit(ref, msg); err != nil {
		l.unplace(msg)
		return l.refuseOne(p, &topicRef{code: packet.CodeQuotaExceeded, reason: err.Error()})
	}
	if ref.delayed {
		l.delay(ref, msg)
		return l.accept(p)
	}
	if p.Retain && !ref.queue {
		r := newRetain(ref.name, msg, l.m.log.Now())
		in.retain = append(in.retain, r)
		in.muts = append(in.muts, r.mut)
	}
	l.owe(p, nil)
	in.msgs = in.msgs[:len(in.msgs)+1] // msg
	in.counts[p.QoS]++
	if in.bytes += record.Size(len(msg.Props), len(msg.Payload)); in.bytes >= appendBytes {
		defer l.flush()
	}
	return l.accept(p)
}

// delay has a message wait for its time: it is a change of state, and not one of the messages that are appended.
func (l *Link) delay(ref *topicRef, msg *store.Message) {
	in := l.in
	l.unlocate()
	if ref.queue {
		msg.Props = withHost(msg.Props, l.host())
	}
	mut, due := l.m.delayed.put(ref, msg)
	if in.muts = append(in.muts, mut); in.due == 0 || due < in.due {
		in.due = due
	}
	in.bytes += len(mut.Value)
}

var errQueueFull = errors.New("the queue is full")

// admit counts a message in where its topic or queue has a limit, or says why it must be refused.
func (l *Link) admit(ref *topicRef, msg *store.Message) error {
	size := len(msg.Props) + len(msg.Payload)
	if ref.to != nil && !l.fits(ref, size) {
		return errQueueFull
	}
	if ref.limit == nil || ref.delayed || msg.Flags.Has(record.FlagTransient) { // what is delayed is let in: it was acknowledged
		return nil
	}
	if err := ref.limit.Admit(size); err != nil {
		return err
	}
	msg.Flags |= store.FlagAdmitted
	return nil
}

// fits tells whether a queue has room for a message. A delayed one takes none before its time comes; if there is none
// then it goes to the dead letters.
func (l *Link) fits(ref *topicRef, size int) bool {
	if ref.delayed {
		return ref.to.Room(size)
	}
	return ref.to.Admit(size)
}

// next returns the place behind msgs, where the next message is made: it is one of them when they are made longer.
func (in *ingest) next() *store.Message {
	n := len(in.msgs)
	in.msgs = slices.Grow(in.msgs, 1)
	return &in.msgs[:n+1][n]
}

// message makes what is stored of a publish.
func (l *Link) message(msg *store.Message, p *packet.Publish, ref *topicRef) {
	msg.Topic, msg.Client, msg.PacketID = ref.id, l.client, p.PacketID
	msg.Payload, msg.Props = p.Payload, p.Props
	msg.Flags, msg.Expiry = record.Flags(0).WithQoS(p.QoS), 0
	if p.Retain {
		msg.Flags |= record.FlagRetain
	}
	if p.UTF8 {
		msg.Flags |= record.FlagUTF8
	}
	if p.HasExpiry {
		msg.Flags |= record.FlagExpiry
		msg.Expiry = p.Expiry
	}
	if l.m.transient(p.QoS, ref.transient) {
		msg.Flags |= record.FlagTransient
	} else if p.QoS > 0 {
		l.in.durable = true
	}
	if p.Cut {
		in := l.in
		at := len(in.props)
		in.props = p.AppendStoredProps(in.props)
		msg.Props = in.props[at:len(in.props):len(in.props)]
	}
}

// duplicate tells whether the publisher has used the message's @MessageId already; then the answer is noted. If not, the id
// is taken. One of a producer that is fenced is refused.
func (l *Link) duplicate(p *packet.Publish, msg *store.Message) (bool, error) {
	d := &l.m.dedup
	if len(msg.Props) == 0 {
		return false, nil
	}
	id, ok := packet.FindUser(msg.Props, wire.MessageID)
	if !ok {
		return false, nil
	}
	if err := l.publishEpoch(msg.Props); err != nil {
		return false, err
	}
	if d.window == 0 {
		return false, nil
	}
	f, dup := d.check(l.client, id, l.m.log.Now().UnixMicro())
	if !dup {
		l.in.batch.firsts = append(l.in.batch.firsts, placed{f, len(l.in.msgs)})
		return false, nil
	}
	l.m.duplicates.Add(1)
	if p.QoS == 0 {
		return true, nil
	}
	l.owe(p, f)
	if off := f.offset.Load(); off > 0 && p.QoS == 1 && l.Version == packet.V5 {
		l.in.batch.acks = appendPubackAt(l.in.batch.acks, p.PacketID, off)
		return true, nil
	}
	_ = l.accept(p) // never fails
	return true, nil
}

// accept notes the answer to a publish that is stored.
func (l *Link) accept(p *packet.Publish) error {
	if p.QoS == 0 {
		return nil
	}
	t := packet.TypePuback
	if p.QoS == 2 {
		t = packet.TypePubrec
		l.receive(p.PacketID)
	}
	b := l.in.batch
	b.acks = append(b.acks, byte(t)<<4, 2, byte(p.PacketID>>8), byte(p.PacketID))
	return nil
}

// collect returns the ingest that the reader fills.
func (l *Link) collect() *ingest {
	if l.in == nil {
		l.in = ingests.Get().(*ingest)
		l.in.batch = batches.Get().(*batch)
		l.in.batch.link = l
		l.unanswered.Add(1) // for all that is collected, until Flush counts it
	}
	return l.in
}

// receive notes a QoS 2 publish: its id goes into the state together with the message, so that it is stored once
// however often it is sent.
func (l *Link) receive(id uint16) {
	s := l.session.Load()
	s.rxMu.Lock()
	s.noteReceived(id, l)
	s.rxMu.Unlock()
	in := l.in
	in.batch.ids = append(in.batch.ids, id)
	if s.durable {
		in.muts = append(in.muts, record.Put(record.BucketInflight, receivedKey(s.id, id), []byte{inflightVersion}))
	}
}

// noteReceived notes the packet id of a QoS 2 publish; rxMu is held.
func (s *Session) noteReceived(id uint16, on *Link) {
	if s.received == nil {
		s.received = map[uint16]*Link{}
	}
	s.received[id] = on
}

// has tells whether a QoS 2 publish with the id was received and not released.
func (s *Session) has(id uint16) bool {
	s.rxMu.Lock()
	defer s.rxMu.Unlock()
	_, ok := s.received[id]
	return ok
}

// Release takes one PUBREL; the PUBCOMP follows when the id's return is on disk: were it not, a new publish under
// the same id would be taken, after a crash, for the old one sent again.
func (l *Link) Release(a *packet.Ack) {
	s := l.session.Load()
	s.rxMu.Lock()
	on, ok := s.received[a.PacketID]
	delete(s.received, a.PacketID)
	s.rxMu.Unlock()
	in := l.collect()
	b := in.batch
	b.n++
	code := packet.CodeSuccess
	switch {
	case !ok:
		code = packet.CodePacketIDNotFound
	case on == l:
		b.ends++
	}
	if ok && s.durable {
		b.freed = append(b.freed, freed{a.PacketID, on})
		in.durable = true
		in.muts = append(in.muts, record.Delete(record.BucketInflight, receivedKey(s.id, a.PacketID)))
	}
	b.acks = packet.AppendAck(b.acks, l.Version, packet.TypePubcomp, a.PacketID, code, "")
}

// refuseOne answers a publish that must not be stored, in its turn.
func (l *Link) refuseOne(p *packet.Publish, ref *topicRef) error {
	if l.m.refused.Add(1); ref.denied {
		l.m.denied.Add(1)
	}
	switch {
	case p.QoS == 0 && ref.denied && l.Version == packet.V5: // whoever publishes where it may not is to know
		return &packet.Error{Code: ref.code, Msg: ref.reason}
	case p.QoS == 0:
		return nil // there is no answer to QoS 0
	case l.Version < packet.V5 && p.QoS == 1 && l.receipts.Load():
		l.in.batch.acks = appendRefusal(l.in.batch.acks, p.PacketID, ref.code, ref.reason)
		return nil
	case l.Version < packet.V5:
		l.complain(&l.m.closedOver, closedText, ref.reason)
		return &packet.Error{Code: ref.code, Msg: ref.reason}
	}
	b, t := l.in.batch, packet.TypePuback
	if p.QoS == 2 {
		t = packet.TypePubrec
		b.ends++ // there will be no PUBREL
	}
	b.acks = packet.AppendAck(b.acks, l.Version, t, p.PacketID, packet.CodeFor(t, ref.code), l.Reason(ref.reason, 0))
	return nil
}

// Reason returns the reason string for an answer with so many codes, "" if the client does not want any, or if it would
// make the packet larger than the client accepts. [MQTT-3.1.2-29] [MQTT-3.4.2-2] [MQTT-3.9.2-1] [MQTT-3.14.2-3]
func (l *Link) Reason(reason string, codes int) string {
	if c := l.Connect; c != nil {
		const rest = 16 // fixed header, packet id, code, lengths
		if c.NoProblemInfo || c.MaximumPacketSize > 0 && len(reason)+codes+rest > int(c.MaximumPacketSize) {
			return ""
		}
	}
	return reason
}

// unadmit takes messages that are not stored out of the counts of their topics.
func (l *Link) unadmit(msgs []store.Message) {
	for i := range msgs {
		if m := &msgs[i]; m.Flags.Has(store.FlagAdmitted) {
			l.m.log.Limit(m.Topic).Return(len(m.Props) + len(m.Payload))
		}
	}
}

// hand appends what was collected. A publish that came alone, from a client that waits for its answer, is committed right here if possible, and answered
// and delivered: nobody has to be woken for it.
func (l *Link) hand(in *ingest, done store.Completion) error {
	if len(in.msgs) != 1 || !in.durable || in.due != 0 || len(in.retain) > 0 || l.epoch != 0 || l.unanswered.Load() != 1 {
		return l.unfenced(func() error { return l.m.retained.append(l.m.log, in.msgs, in.muts, in.retain, in.durable, done) })
	}
	held := false
	defer func() {
		if held { // after a panic, too: without workers no connection would be told that the store has failed
			l.m.workers.release(l.m)
		}
	}()
	_, err := l.m.log.AppendHere(in.msgs, in.muts, done, func() {
		l.m.workers.hold()
		held = true
	})
	return err
}

// begin has numbers hold until Flush, and those that are remembered looked up again if some have been given up since.
func (l *Link) begin() error {
	l.use, l.using = l.m.log.Use(), true
	if n := l.m.log.Renumbered(); n != l.numbers {
		l.numbers = n
		if l.client != 0 || len(l.recent) > 0 {
			return l.renumber()
		}
	}
	return nil
}

// finish ends what begin began.
func (l *Link) finish() {
	if l.using {
		l.use.Done()
		l.use, l.using = store.Use{}, false
	}
}

// Flush hands the collected publishes to the store. It blocks only while the store's open group is full.
func (l *Link) Flush() {
	l.flush()
	l.finish()
}

func (l *Link) flush() {
	in := l.in
	if in == nil {
		return
	}
	l.in = nil
	b := in.batch
	l.quota.Add(in.begun) // once for all, and before any of them can be over
	l.answered(1 - b.n)
	for qos, n := range in.counts {
		if n > 0 {
			l.m.messagesIn[qos].Add(n)
		}
	}
	l.m.payloadIn.Add(int64(in.bytes - len(in.msgs)*record.HeaderSize))
	in.counts, in.begun = [3]int64{}, 0
	var done store.Completion = b
	if b.n == 0 && len(b.firsts) == 0 {
		done = nil
	}
	noted := l.noted
	if !noted && len(in.msgs) > 0 {
		in.muts, noted = append(in.muts, l.m.hosts.note(l.client, l.host())), true
	}
	if len(in.msgs) > 0 || len(in.muts) > 0 || done != nil {
		if err := l.hand(in, done); err != nil {
			l.unadmit(in.msgs)
			l.refuse(b, pubrels(in.muts), err)
			done = b
		} else {
			if l.noted = noted; in.due != 0 {
				l.m.delayed.note(in.due)
			}
		}
	}
	if done == nil {
		b.free()
	}
	clear(in.msgs[:min(len(in.msgs)+1, cap(in.msgs))]) // and what next made that was refused
	clear(in.muts)
	clear(in.retain)
	in.retain, in.due = in.retain[:0], 0
	in.msgs, in.muts, in.props, in.bytes, in.durable, in.batch = in.msgs[:0], in.muts[:0], in.props[:0], 0, false, nil
	if cap(in.msgs) <= 4096 && cap(in.props) <= 1<<20 {
		ingests.Put(in)
	}
}
