package sdk

import (
	"encoding/binary"
	"fmt"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
)

// What the broker says on the side of 3.1.1's acknowledgements: where messages are, and what it does not take.

// notice is a reason code of MQTT 5 with a text, from a broker that has no other way to tell a 3.1.1 client.
type notice struct {
	code byte
	text string
}

// blames reports whether it is something in what we sent, rather than the state of the broker or of the connection.
func (n *notice) blames() bool {
	switch n.code {
	case packet.CodeMalformed, packet.CodeProtocol, packet.CodeImplementation, packet.CodeTooLarge, packet.CodeTopicInvalid,
		packet.CodePayloadFormat, packet.CodeQoSNotSupported, packet.CodeRetainNotSupported:
		return true
	}
	return false
}

// receipt takes what the broker says of publishes and of the connection.
func (l *link) receipt(name string, b []byte) {
	switch {
	case name == wire.Receipts:
		l.runs = append(l.runs, b...)
	case name == wire.ReceiptsRefused && len(b) >= 3:
		l.s.out.refused(binary.BigEndian.Uint16(b), notice{b[2], string(b[3:])})
	case name == wire.ReceiptsClosed && len(b) >= 1:
		l.closed.Store(&notice{b[0], string(b[1:])})
	}
}

// locate notes where publishes are stored: runs of wire.Receipts.
func (b *outbox) locate(runs []byte) {
	for ; len(runs) >= wire.ReceiptBytes; runs = runs[wire.ReceiptBytes:] {
		id, n := binary.BigEndian.Uint16(runs), binary.BigEndian.Uint16(runs[2:])
		offset, stored := binary.BigEndian.Uint64(runs[4:]), int64(binary.BigEndian.Uint64(runs[12:]))
		for i := range n {
			if p, _ := b.flight(id + i); p != nil {
				p.offset, p.stored = offset+uint64(i), stored
			}
		}
	}
}

// What the broker refuses it says, on the side of the PUBACK (refused), or as its last word before it closes the connection, if it could not
// even read it. Then the publish at the front is sent alone on the next connection, and is given up if that ends so too.
//
// From a broker that does not talk to us on the side it looks like a bad network: 3.1.1 has no other refusal than the end of the connection. So
// after so many connections without an acknowledgement the publish at the front is sent alone, and only if that has ended so many more it
// is given up. Connections to a broker that could not be reached in between do not count.
const (
	suspicious = 3
	guilty     = 6
)

// strike is what the end of a connection that has acknowledged nothing counts.
func strike(l *link) int {
	switch n := l.closed.Load(); {
	case n != nil && n.blames():
		return suspicious
	case n != nil || l.told.Load():
		return 0
	}
	return 1
}

// refused notes that the broker does not take a publish; its PUBACK follows.
func (b *outbox) refused(id uint16, why notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p, _ := b.flight(id); p != nil {
		p.refusal = &why
	}
}

// error is the error of a publish that is refused.
func (n *notice) error() *SendError {
	if n == nil {
		return &SendError{Known: Unknown, Err: ErrRefused}
	}
	return &SendError{Known: Refused, Code: n.code, Err: fmt.Errorf("%w: %s", ErrRefused, n.text)}
}
