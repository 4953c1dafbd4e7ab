package session

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/socket"
	"github.com/edgemq/edgemq/store"
)

const (
	writeTimeout = 2 * time.Second // for what is left to write on a connection that is to close
	maxUnsent    = 256 << 10       // of answers: above, the client's packets are not read any more
)

// Link is one connection, from accept to close. The reading side calls Publish, Ack and Flush from one goroutine; Send,
// Kick, Close and Wake may be called from any.
type Link struct {
	m       *Manager
	raw     net.Conn
	sys     syscall.RawConn // nil if raw cannot be written without waiting
	Connect *packet.Connect // set by the reader before Attach
	Version packet.Version
	Remote  string
	since   time.Time

	owner // set by the reader before Attach

	session    atomic.Pointer[Session]
	draining   atomic.Bool   // nothing more is read
	live       atomic.Bool   // CONNACK is on its way: deliveries may follow
	holding    atomic.Bool   // deliveries wait for a commit
	answering  atomic.Bool   // deliveries wait for a SUBACK
	missed     atomic.Bool   // the writer looked while they had to wait
	holds      atomic.Uint64 // counts how often one of the two began
	unanswered atomic.Int32  // publishes and PUBRELs whose answer is not yet queued
	quota      atomic.Int32  // publishes above QoS 0 that are not over, see Receive Maximum
	state      atomic.Uint32 // of the writer
	slow       atomic.Bool   // the writer may have to wait for more than the socket

	mu      sync.Mutex
	out     []byte     // whole packets to be written
	room    *sync.Cond // told when out has been taken; made at first use
	greeted bool       // the CONNACK is among out, or was
	closing bool       // close once out is written
	closed  bool
	cause   string // why we closed it

	receipts atomic.Bool // subscribed to wire.Receipts; changed by the reader

	sentAliases map[uint32]uint16 // topic aliases towards the client, by topic number; the writer's

	over bool          // the reader is done: all that came is in the store's hands; guarded by Manager.mu
	gone chan struct{} // closed then; made by awaited; guarded by Manager.mu

	// What only the reader uses.
	after   []<-chan struct{} // gone of the connections that its first publish has to wait for
	resumes bool              // the session has deliveries that earlier connections left unfinished
	resumed []byte            // what is to be sent of them first
	in      *ingest
	recent  recent
	touched byte // what Foresee looked at, so that it is looked at
	aliases []*topicRef
	client  uint32    // the store's number; 0 until the first publish
	use     store.Use // of numbers: from the first publish of a read to Flush
	using   bool
	numbers uint64 // store.Renumbered when those that are remembered were looked up
	epoch   uint64 // of its producer; 0 for none
	fence   *fence // of its client; nil while there was no epoch
	noted   bool   // the state has, or is about to have, where its publishes come from
	answers []answer

	seqs []uint64 // guarded by Session.mu
}

// NewLink returns the link of a connection that has just been accepted.
func (m *Manager) NewLink(raw net.Conn) *Link {
	l := &Link{m: m, raw: raw, sys: socket.Direct(raw), Version: packet.V311, Remote: raw.RemoteAddr().String(), since: time.Now()}
	m.links.add(l)
	return l
}

// Direct returns the way to the socket's descriptor, nil if there is none (package socket).
func (l *Link) Direct() syscall.RawConn { return l.sys }

// Session returns the session the link serves, nil if none (yet).
func (l *Link) Session() *Session { return l.session.Load() }

// Send queues a whole packet. It never blocks.
func (l *Link) Send(p []byte) {
	l.mu.Lock()
	if !l.closing && !l.closed {
		l.out = append(l.out, p...)
	}
	l.mu.Unlock()
	l.Wake()
}

// Accept sends the CONNACK that lets the client in. From now on it is told why its connection ends.
func (l *Link) Accept(connack []byte) { l.say(connack, true) }

// Start allows deliveries. The CONNACK has been sent before.
func (l *Link) Start() {
	if l.resumes {
		// How far deliveries had come on the last connection may still be on its way to the disk. Until it is there, a crash
		// would have us send again what this connection is told is over: a PUBLISH after its PUBREL, or under another id.
		l.holds.Add(1)
		l.holding.Store(true)
		h := &held{l: l, out: l.resumed, release: true}
		if err := l.m.log.Append(nil, nil, false, h); err != nil {
			h.Committed(0, err)
		}
	}
	l.resumed = nil
	l.live.Store(true)
	if s := l.Session(); s != nil && s.fed() {
		l.Wake()
	}
}

// Kick ends the connection from our side: a v5 client is told the code and why. [MQTT-4.13.1-1]
func (l *Link) Kick(code byte, reason string) {
	l.close(func() {
		l.cause = reason
		if l.greeted && l.Version == packet.V5 { // in this order: Version is the reader's until then [MQTT-3.14.0-1]
			d := packet.Disconnect{Code: code, ReasonString: l.Reason(reason, 0)}
			l.out = packet.AppendDisconnect(l.out, l.Version, &d)
		} else if l.receipts.Load() {
			l.out = appendClosed(l.out, code, reason)
		}
	})
}

// Stuck ends the connection of a queue's consumer that keeps a message for longer than the queue allows.
func (l *Link) Stuck() {
	l.Kick(packet.CodeQuotaExceeded, "a message was not acknowledged within the queue's ack_timeout")
}

// Orphaned ends the connection of a queue's consumer when the queue is deleted.
func (l *Link) Orphaned() { l.Kick(codeAdministrative, "the queue was deleted") }

// Cause returns why we ended the connection, "" if we did not.
func (l *Link) Cause() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// Close ends the connection after what is queued has been written, or could not be within a short time.
func (l *Link) Close() { l.close(func() {}) }

// close is Close, but for the last word, which queues what nothing may follow.
func (l *Link) close(last func()) {
	l.mu.Lock()
	if l.closing || l.closed {
		l.mu.Unlock()
		return
	}
	last()
	l.closing = true
	if l.room != nil {
		l.room.Broadcast()
	}
	l.mu.Unlock()
	l.live.Store(false)
	_ = l.raw.SetWriteDeadline(time.Now().Add(writeTimeout)) // frees a writer that is stuck; an error means it is closed already
	_ = l.raw.SetReadDeadline(time.Unix(1, 0))               // and the reader
	l.Wake()
}

// Closing tells whether the link is closed or about to be.
func (l *Link) Closing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closing || l.closed
}

// HoldDeliveries keeps deliveries back, or lets them go. MQTT allows a delivery before the SUBACK of its subscription,
// but not every client expects it.
func (l *Link) HoldDeliveries(hold bool) {
	if hold {
		l.holds.Add(1)
	}
	l.answering.Store(hold)
	if !hold && l.missed.Swap(false) {
		l.Wake()
	}
}

// Draining tells whether the link takes no more packets because the broker is stopping.
func (l *Link) Draining() bool { return l.draining.Load() }

// Drain waits, if the broker is stopping, until Shutdown has seen to it that what was accepted is answered.
func (l *Link) Drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.draining.Load() && !l.closing && !l.closed {
		l.wait()
	}
}

// awaitAnswers waits until what was accepted is answered, the link closes or ctx ends, who does that calling notify. The link is draining.
func (l *Link) awaitAnswers(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.unanswered.Load() > 0 && !l.closing && !l.closed && ctx.Err() == nil {
		l.wait()
	}
}

// answered takes answers that are queued from what is waited for.
func (l *Link) answered(n int32) {
	if l.unanswered.Add(-n) == 0 && l.draining.Load() {
		l.notify()
	}
}

// notify has everybody look again who waits for the link.
func (l *Link) notify() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.room != nil {
		l.room.Broadcast()
	}
}

// wait waits for room in out, for the end, or for the last answer; mu is held.
func (l *Link) wait() {
	if l.room == nil {
		l.room = sync.NewCond(&l.mu)
	}
	l.room.Wait()
}

// WaitRoom blocks the reader while too many answers are waiting to be written: a client that does not read is not read
// from either. It reports false when the link is closing.
func (l *Link) WaitRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.out) > maxUnsent && !l.closing && !l.closed {
		l.wait()
	}
	return !l.closing && !l.closed
}

// links is the set of open links.
type links struct {
	mu  sync.Mutex
	all map[*Link]struct{}
}

func (s *links) add(l *Link) {
	l.m.connects.Add(1)
	s.mu.Lock()
	s.all[l] = struct{}{}
	n := int64(len(s.all))
	if n > l.m.peers.Load() {
		l.m.peers.Store(n)
	}
	s.mu.Unlock()
}

func (s *links) remove(l *Link) {
	s.mu.Lock()
	delete(s.all, l)
	s.mu.Unlock()
}

// clients returns the names of the clients whose connections are not over.
func (s *links) clients() map[string]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make(map[string]struct{}, len(s.all))
	for l := range s.all {
		names[l.clientID()] = struct{}{}
	}
	return names
}

func (s *links) list() []*Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	ls := make([]*Link, 0, len(s.all))
	for l := range s.all {
		ls = append(ls, l)
	}
	return ls
}
