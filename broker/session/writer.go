package session

import (
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"

	"github.com/edgemq/edgemq/broker/socket"
)

// States of a link's writer.
const (
	writerIdle    = iota // nobody
	writerRunning        // it will look once more before it ends
	writerAgain          // something came since it last looked
)

const (
	writeBytes = 64 << 10 // written with one system call, more or less
	// manyReady links that wait for one worker are worth waking another.
	manyReady = 8
)

// workers write to those links that have something to be written, one after the other, and never wait for a client: a socket that does
// not take all at once gets a goroutine of its own for as long as it needs one. So do links behind TLS and WebSocket, whose
// layers know no other way, and those whose deliveries wait for the disk.
//
// One worker does for a handful of links what a goroutine for each would do with a wake-up, and often a processor, for each. Workers
// exist only while there is something to write.
type workers struct {
	mu    sync.Mutex
	ready []*Link // from head on
	head  int
	busy  int
	most  int // as many as there are processors
	held  int // by goroutines that will see to what is ready
}

// add has a link looked at, after those that were there before.
func (p *workers) add(l *Link) {
	p.mu.Lock()
	p.ready = append(p.ready, l)
	start := p.held == 0 && (p.busy == 0 || len(p.ready)-p.head > manyReady*p.busy && p.busy < p.most)
	if start {
		p.busy++
		l.m.writers.Add(1)
	}
	p.mu.Unlock()
	if start {
		go p.work(l.m, unbounded)
	}
}

// hold keeps links from being looked at until release: the caller is about to make some ready.
func (p *workers) hold() {
	p.mu.Lock()
	p.held++
	p.mu.Unlock()
}

const (
	// fewReady links are written to by the one that made them ready.
	fewReady = 4
	// fewRounds is for how long: links that always have something would keep it from what its own client sends.
	fewRounds = 2 * fewReady
	unbounded = math.MaxInt
)

// release ends hold, and does what a worker would have done meanwhile.
func (p *workers) release(m *Manager) {
	p.mu.Lock()
	p.held--
	n := len(p.ready) - p.head
	start := n > 0 && p.busy == 0
	if start {
		p.busy++
		m.writers.Add(1)
	}
	p.mu.Unlock()
	switch {
	case !start:
	case n > fewReady:
		go p.work(m, unbounded)
	default:
		p.work(m, fewRounds)
	}
}

// next returns the link that has waited longest, nil if the worker is to end.
func (p *workers) next() *Link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.head == len(p.ready) {
		if p.ready, p.head = p.ready[:0], 0; cap(p.ready) > 4096 {
			p.ready = nil
		}
		p.busy--
		return nil
	}
	l := p.ready[p.head]
	p.ready[p.head] = nil
	if p.head++; p.head > 1024 && p.head > len(p.ready)/2 {
		n := copy(p.ready, p.ready[p.head:])
		clear(p.ready[n:])
		p.ready, p.head = p.ready[:n], 0
	}
	return l
}

// work is a worker until nothing is left to write, or, after so many rounds, somebody else is.
func (p *workers) work(m *Manager, rounds int) {
	var l *Link // in hand
	ended := false
	defer func() {
		if ended {
			m.writers.Add(-1)
			return
		}
		if l != nil {
			l.fault(recover())
		}
		go p.work(m, unbounded) // in place of this one, for the others
	}()
	d := desks.Get().(*desk)
	for ; rounds > 0 && !ended; rounds-- {
		if l = p.next(); l != nil {
			d = p.write(l, d)
		}
		ended = l == nil
	}
	l = nil
	desks.Put(d)
}

// write is one round of a link. It returns the desk to go on with.
func (p *workers) write(l *Link, d *desk) *desk {
	buf, over := l.round(d)
	if len(buf) > 0 {
		n, err := d.send(l.sys, buf)
		if err == nil && n < len(buf) {
			go l.write(d, buf[n:], over)
			return desks.Get().(*desk)
		}
		over = over || err != nil // the reader will learn it from its own read
	}
	d.keep(buf)
	switch {
	case over:
		l.shut()
		l.m.writers.Add(-1)
	case l.done(buf):
		l.m.writers.Add(-1)
	case l.slow.Load():
		go l.write(desks.Get().(*desk), nil, false)
	default:
		p.add(l)
	}
	return d
}

// desk is what a writer works with.
type desk struct {
	buf  []byte
	work outbox

	out []byte // what try is to send
	n   int    // how much of it is sent
	err error
	try func(fd uintptr) bool
}

var desks = sync.Pool{New: func() any {
	d := &desk{buf: make([]byte, 0, writeBytes+writeBytes/4)}
	d.try = d.trySend
	return d
}}

// send sends as much as the socket takes without waiting.
func (d *desk) send(sys syscall.RawConn, b []byte) (n int, err error) {
	d.out, d.n, d.err = b, 0, nil
	err = sys.Write(d.try)
	d.out = nil
	if err == nil {
		err = d.err
	}
	return d.n, err
}

func (d *desk) trySend(fd uintptr) bool {
	for d.n < len(d.out) {
		n, again, err := socket.Write(fd, d.out[d.n:])
		if d.n += n; again || err != nil {
			d.err = err
			break
		}
	}
	return true
}

// keep takes a buffer back. What a rare giant took is given away.
func (d *desk) keep(buf []byte) {
	if cap(buf) <= 4*writeBytes {
		d.buf = buf[:0]
	}
}

// Wake implements feed.Waker: something may be there to write.
func (l *Link) Wake() {
	for {
		switch l.state.Load() {
		case writerIdle:
			l.m.writers.Add(1) // first: who sees the state may count on the count
			if l.state.CompareAndSwap(writerIdle, writerRunning) {
				if l.sys != nil && !l.slow.Load() {
					l.m.workers.add(l)
				} else {
					go l.write(desks.Get().(*desk), nil, false)
				}
				return
			}
			l.m.writers.Add(-1)
		case writerRunning:
			if l.state.CompareAndSwap(writerRunning, writerAgain) {
				return
			}
		default:
			return
		}
	}
}

// Answer is Send for an answer that the reader has just then: if nobody is at work, the reader is the writer of it, which saves the time
// until another one is.
func (l *Link) Answer(p []byte) { l.say(p, false) }

func (l *Link) say(p []byte, greets bool) {
	direct := l.sys != nil && !l.slow.Load()
	if direct {
		l.m.writers.Add(1) // as in Wake
		if direct = l.state.CompareAndSwap(writerIdle, writerRunning); !direct {
			l.m.writers.Add(-1)
		}
	}
	l.mu.Lock()
	open := !l.closing && !l.closed
	alone := direct && open && len(l.out) == 0
	l.greeted = l.greeted || greets && open
	if open && !alone {
		l.out = append(l.out, p...)
	}
	l.mu.Unlock()
	switch {
	case alone:
		l.sendAlone(p)
	case direct:
		l.m.workers.add(l)
	default:
		l.Wake()
	}
}

// sendAlone is the writer for as long as p goes out without waiting.
func (l *Link) sendAlone(p []byte) {
	defer l.caught()
	d := desks.Get().(*desk)
	n, err := d.send(l.sys, p)
	if l.m.bytesOut.Add(int64(len(p))); err == nil && n < len(p) {
		go l.write(d, slices.Clone(p[n:]), false)
		return
	}
	switch desks.Put(d); {
	case err != nil: // the reader will learn it from its own read
		l.shut()
		l.m.writers.Add(-1)
	case l.state.CompareAndSwap(writerRunning, writerIdle):
		l.m.writers.Add(-1)
	default: // something has come meanwhile
		l.m.workers.add(l)
	}
}

// write is the link's own writer, which waits for its client. It ends when there is nothing to write. What is left of an earlier round
// is written first; over says that nothing follows it.
func (l *Link) write(d *desk, left []byte, over bool) {
	defer l.caught()
	l.writeAll(d, left, over)
	desks.Put(d) // not after a panic, which leaves anything in it
	l.m.writers.Add(-1)
}

func (l *Link) writeAll(d *desk, left []byte, over bool) {
	for ; ; left = nil {
		buf := left
		if left == nil {
			buf, over = l.round(d)
		}
		if len(buf) > 0 {
			if _, err := l.raw.Write(buf); err != nil {
				over = true // the reader will learn it from its own read
			}
		}
		if over {
			l.shut()
			return
		}
		if left == nil {
			if d.keep(buf); l.done(buf) {
				return
			}
		}
	}
}

// round collects what is to be written; over says that the link is to be closed after it. Of a link's rounds there is one at a time.
func (l *Link) round(d *desk) (buf []byte, over bool) {
	l.state.Store(writerRunning)
	// What deliveries wait for is queued before they are let go. So if they are held now, or come to be before deliver
	// looks, they must wait for the next round: this one's answers have been taken, perhaps without it.
	d.work.holds = l.holds.Load()
	held := l.holding.Load() || l.answering.Load()
	if held {
		l.missed.Store(true) // and look again: if it is over by now, nobody may have seen this
		held = l.holding.Load() || l.answering.Load()
	}
	buf, over = l.takeOut(d.buf[:0])
	if !over && !held && l.live.Load() {
		if s := l.session.Load(); s != nil {
			if buf = s.deliver(l, &d.work, buf); l.holds.Load() != d.work.holds { // it may have been cut short
				l.missed.Store(true)
				if !l.holding.Load() && !l.answering.Load() {
					l.Wake()
				}
			}
		}
	}
	l.m.bytesOut.Add(int64(len(buf)))
	return buf, over
}

// done ends the writer if the round that led to buf took all there was and nothing has come since.
func (l *Link) done(buf []byte) bool {
	return len(buf) < writeBytes && l.state.CompareAndSwap(writerRunning, writerIdle)
}

// takeOut moves the queued packets to buf.
func (l *Link) takeOut(buf []byte) (_ []byte, closing bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	buf = append(buf, l.out...)
	if cap(l.out) > 4096 {
		l.out = nil // an idle connection holds no buffer
	} else {
		l.out = l.out[:0]
	}
	if l.room != nil {
		l.room.Broadcast()
	}
	return buf, l.closing || l.closed
}

// caught ends a panic of the link's writer, which ends the connection and not the process.
func (l *Link) caught() {
	if p := recover(); p != nil {
		l.fault(p)
	}
}

// fault closes the link whose writer has panicked. That one's place in Manager.writers is given up.
func (l *Link) fault(panicked any) {
	l.m.Fault("panic in a writer, whose connection was closed", panicked, "client", l.clientID(), "remote", l.Remote)
	l.shut()
	l.m.writers.Add(-1)
}

// Fault logs and counts a panic that was caught where it concerns one client. It is called while the stack is still there.
func (m *Manager) Fault(msg string, panicked any, attrs ...any) {
	m.faults.Add(1)
	m.logger.Error(msg, append(attrs, "panic", panicked, "stack", string(debug.Stack()))...)
}

// clientID is the session's, "" if there is none yet.
func (l *Link) clientID() string {
	if s := l.session.Load(); s != nil {
		return s.id
	}
	return ""
}

// shut closes the socket. The writer ends in a state in which Wake starts no other one.
func (l *Link) shut() {
	l.mu.Lock()
	l.closing, l.closed = true, true
	l.out = nil
	if l.room != nil {
		l.room.Broadcast()
	}
	l.mu.Unlock()
	_ = l.raw.Close() // the last use of it; there is nobody to tell
	l.state.Store(writerAgain)
}
