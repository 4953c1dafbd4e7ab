package session

import (
	"encoding/binary"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
)

// A PUBACK of MQTT 3.1.1 has no room for anything, and one of MQTT 5 would need a property for each message. So who wants to know where
// its messages are subscribes to wire.Receipts, and is told by one PUBLISH ahead of the answers of a batch. It is not a
// subscription that the session keeps: it belongs to the connection, as packet ids do.

// owed is a publish that a receipt is to name.
type owed struct {
	id uint16
	i  int32  // its message's place in the batch
	of *first // not nil: it is a duplicate of this one
}

// receiptRuns bounds the runs in one message; there are more only if duplicates are among new messages by turns.
const receiptRuns = 256

// owe notes that a publish in hand is to be named. of is the message that it is a duplicate of, nil if it is new.
func (l *Link) owe(p *packet.Publish, of *first) {
	if l.receipts.Load() && p.QoS > 0 {
		l.in.batch.owed = append(l.in.batch.owed, owed{p.PacketID, int32(len(l.in.msgs)), of})
	}
}

// MQTT 3.1.1 lets a server that will not have a publish do one of two: close the connection, from which the client cannot tell why, or
// acknowledge it all the same. [MQTT-3.3.5-2] With a word on the side, the second is a refusal that costs nobody the connection.

// appendRefusal appends what says that a publish is refused, and its PUBACK.
func appendRefusal(dst []byte, id uint16, code byte, reason string) []byte {
	dst = packet.AppendPublish(dst, packet.V311, &packet.Outgoing{
		Topic: wire.ReceiptsRefused, Payload: append([]byte{byte(id >> 8), byte(id), code}, reason...),
	})
	return packet.AppendAck(dst, packet.V311, packet.TypePuback, id, 0, "")
}

// appendClosed appends what stands for a DISCONNECT, which 3.1.1 does not have from a server.
func appendClosed(dst []byte, code byte, reason string) []byte {
	return packet.AppendPublish(dst, packet.V311, &packet.Outgoing{Topic: wire.ReceiptsClosed, Payload: append([]byte{code}, reason...)})
}

// receipt returns the PUBLISHes that say where the batch's messages are. base is the offset of its first.
func (b *batch) receipt(base uint64) []byte {
	var out, runs []byte
	most := receiptRuns * wire.ReceiptBytes
	if c := b.link.Connect; c != nil && c.MaximumPacketSize > 0 { // [MQTT-3.1.2-24]
		const head = 1 + 3 + 2 + len(wire.Receipts) + 1 // fixed header, topic, properties
		most = min(most, (int(c.MaximumPacketSize)-head)/wire.ReceiptBytes*wire.ReceiptBytes)
	}
	if most <= 0 {
		return nil
	}
	emit := func() {
		if len(runs) > 0 {
			out = packet.AppendPublish(out, b.link.Version, &packet.Outgoing{Topic: wire.Receipts, Payload: runs})
			runs = runs[:0]
		}
	}
	var id, n uint16 // the run at the end of runs
	var offset uint64
	var time int64
	for _, o := range b.owed {
		at, t := base+uint64(o.i), b.time
		if o.of != nil {
			if at, t = o.of.offset.Load(), o.of.at.Load(); at == 0 {
				continue // delayed: it has no place yet
			}
		}
		if len(runs) > 0 && o.id == id+n && n > 0 && at == offset+uint64(n) && t == time {
			n++
			binary.BigEndian.PutUint16(runs[len(runs)-wire.ReceiptBytes+2:], n)
			continue
		}
		if len(runs) == most {
			emit()
		}
		id, n, offset, time = o.id, 1, at, t
		runs = binary.BigEndian.AppendUint16(runs, id)
		runs = binary.BigEndian.AppendUint16(runs, n)
		runs = binary.BigEndian.AppendUint64(runs, offset)
		runs = binary.BigEndian.AppendUint64(runs, uint64(time))
	}
	emit()
	return out
}
