package sdk

import "github.com/edgemq/edgemq/broker/packet"

// How an outbox writes to the connection that there is.

// live reports whether publishes may be written as they come.
func (b *outbox) live() bool { return b.up != nil && !b.probing }

// cut ends what is to be written in one piece.
func (b *outbox) cut() {
	if b.pending < len(b.chunk) {
		b.segments = append(b.segments, b.chunk[b.pending:len(b.chunk):len(b.chunk)])
		b.pending = len(b.chunk)
	}
}

// reserve makes room in the chunk, so that appending does not move it: frames in it are in use.
func (b *outbox) reserve(size int) {
	if len(b.chunk)+size <= cap(b.chunk) {
		return
	}
	b.cut()
	b.chunk, b.pending = make([]byte, 0, max(chunkBytes, size)), 0
}

// ack queues the acknowledgement of a delivery on the connection it came by. An urgent one takes all that wait with it.
func (b *outbox) ack(l *link, id uint16, urgent bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.up != l || l == nil {
		return false
	}
	b.reserve(4)
	b.chunk = packet.AppendAck(b.chunk, packet.V311, packet.TypePuback, id, 0, "")
	b.queued += 4
	b.acks++
	switch {
	case urgent || b.acks >= ackBatch:
		b.rouse()
	case b.acks == 1 && !b.awake:
		b.ackTimer.Reset(ackDelay)
	}
	return true
}

// hurry sends the acks that wait.
func (b *outbox) hurry() {
	b.mu.Lock()
	if b.acks > 0 {
		b.rouse()
	}
	b.mu.Unlock()
}

// end makes the writer return once all is written.
func (b *outbox) end() {
	b.mu.Lock()
	b.ending = true
	b.rouse()
	b.mu.Unlock()
}

// rouse wakes the writer.
func (b *outbox) rouse() {
	if !b.awake {
		b.awake = true
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

// connect makes l the connection to write to. What is not acknowledged comes first, in order.
func (b *outbox) connect(l *link, host string, resumed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.host, b.resumed = host, resumed
	b.segments, b.queued, b.progress = nil, 0, 0
	b.chunk, b.pending = nil, 0
	for _, p := range b.flights {
		if p.abandoned || p.bound { // its sender knows that it may be lost, and may have sent it elsewhere
			b.finish(p, &SendError{Known: Unknown, Err: ErrNotConnected})
		}
	}
	b.pop()
	b.up, b.acks, b.ending = l, 0, false
	if b.probing = b.strikes >= suspicious && len(b.flights) > 0; b.probing {
		b.resend(b.flights[:1])
	} else {
		b.resend(b.flights)
	}
	b.rouse()
}

// resend writes publishes to a new connection.
func (b *outbox) resend(flights []*Promise) {
	for _, p := range flights {
		if p.done {
			continue
		}
		b.reserve(len(p.frame))
		at := len(b.chunk)
		b.chunk = append(b.chunk, p.frame...)
		p.frame = b.chunk[at:len(b.chunk):len(b.chunk)]
		if p.handed && b.resumed {
			p.frame[0] |= 8 // DUP [MQTT-3.3.1-1]
		}
		p.handed = true
		b.queued += len(p.frame)
	}
}

// disconnect ends writing to l.
func (b *outbox) disconnect(l *link) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.up != l {
		return
	}
	b.up, b.probing, b.segments, b.queued, b.acks = nil, false, nil, 0, 0
	b.pending = len(b.chunk)
	n := strike(l)
	if b.progress > 0 || len(b.flights) == 0 || n == 0 {
		b.strikes = 0
	} else if b.strikes += n; b.strikes >= guilty {
		b.strikes = 0
		b.finish(b.flights[0], l.closed.Load().error())
		b.pop()
	}
}

// pardon is for when the broker cannot be reached: that is why connections were lost, and no message's fault.
func (b *outbox) pardon() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.strikes = 0
}

// write is the writer: it runs as long as the connection l, and ends it if it cannot write.
func (b *outbox) write(l *link) {
	for {
		segments, mine := b.take(l)
		if !mine {
			return
		}
		for _, s := range segments {
			if _, err := l.socket.Write(s); err != nil {
				l.fail(err)
				return
			}
		}
		if len(segments) > 0 {
			continue
		}
		select {
		case <-b.wake:
		case <-l.lost:
			return
		}
	}
}

// take returns what is to be written to l.
func (b *outbox) take(l *link) (segments [][]byte, mine bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.up != l {
		return nil, false
	}
	segments = b.segments
	if b.pending < len(b.chunk) {
		segments = append(segments, b.chunk[b.pending:len(b.chunk):len(b.chunk)])
		b.pending = len(b.chunk)
	}
	b.segments, b.queued, b.acks = nil, 0, 0
	b.awake = len(segments) > 0
	if b.ending && len(segments) == 0 {
		return nil, false
	}
	return segments, true
}
