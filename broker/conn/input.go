package conn

import (
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/edgemq/edgemq/broker/session"
	"github.com/edgemq/edgemq/broker/socket"
)

const (
	readBytes  = 64 << 10  // of the pooled buffers of clients that send much at once
	fewBytes   = 4 << 10   // and of the others
	wideBytes  = 256 << 10 // and of those whose frames do not fit the first
	keepBytes  = 4 << 10   // a partial frame up to this size waits in a buffer of its own size
	aheadBytes = 2 << 10   // of the buffer that waits where one is needed for waiting
)

// What the connection has come to.
const (
	steady   = iota // the deadline is that of CONNECT or of keep-alive
	fresh           // the CONNECT has come: the next packet is likely to follow at once
	settling        // and is waited for, with the stack that has grown to handle the CONNECT
	settled         // it has not come
)

// settleTime is how long the goroutine that had the CONNECT waits for what is next.
const settleTime = 200 * time.Millisecond

// idleTime is how long a client must have been silent to be one that rarely sends anything.
const idleTime = time.Second

// slowestPacket is the rate (bytes/s) at which a packet must come in to be waited for beyond the keep-alive: a client can send nothing else
// meanwhile, and a large packet over a slow line may take it longer than that.
const slowestPacket = 100

// errKeepAlive means that the client was silent for too long.
var errKeepAlive = errors.New("conn: keep-alive timeout")

var (
	large = sync.Pool{New: func() any { b := make([]byte, readBytes); return &b }}
	small = sync.Pool{New: func() any { b := make([]byte, fewBytes); return &b }}
	wide  = sync.Pool{New: func() any { b := make([]byte, wideBytes); return &b }}
)

// give returns a buffer to its pool; nil is no buffer.
func give(b *[]byte) {
	switch {
	case b == nil:
	case len(*b) == wideBytes:
		wide.Put(b)
	case len(*b) == readBytes:
		large.Put(b)
	default:
		small.Put(b)
	}
}

// input is the socket's reading side: a buffer that is borrowed while there is something in it. A connection that waits
// for its client holds none, or where TLS or WebSocket is in between, a small one.
type input struct {
	raw  net.Conn
	sys  syscall.RawConn // nil where the socket cannot be read without a buffer at hand
	link *session.Link

	buf    []byte  // buf[r:w] is what has not been taken
	pooled *[]byte // where buf is from, if from the pool
	r, w   int
	ahead  *[aheadBytes]byte // without sys: the buffer to wait with
	more   bool              // the last read filled what it was given, so that more is likely to be there
	burst  int               // bytes read since the last wait
	brisk  bool              // before it they were more than a small buffer holds
	wide   bool              // what comes are frames larger than readBytes
	waited bool              // the last read had to wait
	idled  bool              // for long; or something was done that is rare, and needed much of a stack
	took   bool              // a whole packet has come since last

	quiet time.Duration         // of silence, half of it at least, after which a loop is to wait for the socket; 0 if there is none
	err   error                 // of try
	try   func(fd uintptr) bool // reads once; made at first use

	interval time.Duration // of silence allowed; 0 for any
	phase    int
	last     time.Time // since when we wait for the client's next packet
	deadline time.Time // set on the socket
}

func (in *input) init(raw net.Conn, l *session.Link, connectBy time.Time) {
	in.raw, in.link = raw, l
	in.sys = l.Direct()
	in.deadline = connectBy
	if in.quiet == 0 { // else a loop looks at the time
		_ = raw.SetReadDeadline(connectBy) // an error shows in the read that follows
	}
}

// keepAlive sets how long the client may be silent from now on. [MQTT-3.1.2-22]
func (in *input) keepAlive(seconds uint16) {
	in.interval = time.Duration(seconds) * 3 * time.Second / 2
	in.last = time.Now()
	in.deadline = time.Time{}
	in.phase = fresh
}

func (in *input) len() int { return in.w - in.r }

func (in *input) bytes() []byte { return in.buf[in.r:in.w] }

// take returns the next n bytes, valid until the next fill.
func (in *input) take(n int) []byte {
	b := in.buf[in.r : in.r+n : in.r+n]
	in.r += n
	in.took = true
	return b
}

// fill reads once. need is the size of the frame that is not whole yet, 0 if unknown.
func (in *input) fill(need int) error {
	in.makeRoom(need)
	if in.waited = false; in.phase != settled && (in.took || in.len() == 0) {
		in.last, in.took = time.Now(), false // not before: while we did not read, the client was not silent
	}
	for {
		if err := in.setDeadline(); err != nil {
			return err
		}
		err := in.read()
		if err == nil {
			if in.link.Closing() {
				return io.EOF // what comes now is read only to be read, see transport.Socket
			}
			if in.waited && in.quiet == 0 && time.Since(in.last) > idleTime {
				in.idled = true
			}
			return nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || in.link.Closing() || in.link.Draining() {
			return err
		}
		if in.phase == settling { // it is in no hurry, so let it have a small stack to wait with
			in.phase, in.idled = settled, true
			return nil
		}
		if in.late(time.Now()) {
			return errKeepAlive
		}
		if in.quiet > 0 && in.len() == 0 && time.Since(in.last) >= in.quiet/2 {
			in.idled = true
			return nil
		}
		in.deadline = time.Time{} // it was set for an earlier read; the client has been heard of since
	}
}

// patience is how long the next packet may be in coming. A part of one does not count as a sign of life, or a byte now and then would do.
func (in *input) patience() time.Duration {
	return in.interval + time.Duration(in.len())*(time.Second/slowestPacket)
}

// late tells whether the next packet should have come by now.
func (in *input) late(now time.Time) bool {
	switch {
	case in.link.Connect == nil:
		return !now.Before(in.deadline)
	case in.interval == 0:
		return in.quiet == 0 // nobody else sets a deadline
	}
	return now.Sub(in.last) >= in.patience()
}

// setDeadline moves the socket's deadline on, but not at every read of a plain socket: that costs more than the read. TLS
// and WebSocket can do without it less easily: a read that fails half-way through a frame is the last one.
func (in *input) setDeadline() error {
	switch {
	case in.quiet > 0 && in.link.Connect != nil && in.len() == 0:
		wait, slack := in.quiet, in.quiet/2
		if in.interval > 0 && in.interval < wait {
			wait, slack = in.interval, in.interval/8
		}
		if want := in.last.Add(wait); want.Sub(in.deadline) > slack {
			in.deadline = want
			if err := in.raw.SetReadDeadline(want); err != nil {
				return err
			}
		}
	case in.phase == fresh && in.sys != nil:
		in.phase = settling
		if err := in.raw.SetReadDeadline(in.last.Add(settleTime)); err != nil {
			return err
		}
	case in.interval == 0 && (in.phase != steady || in.quiet > 0 && !in.deadline.IsZero()):
		in.phase, in.deadline = steady, time.Time{}
		if err := in.raw.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
	case in.interval > 0:
		in.phase = steady
		slack := in.interval / 8
		if in.sys == nil {
			slack = 0
		}
		if want := in.last.Add(in.patience()); want.Sub(in.deadline) > slack {
			in.deadline = want
			if err := in.raw.SetReadDeadline(want); err != nil {
				return err
			}
		}
	}
	if in.link.Closing() || in.link.Draining() {
		return io.EOF
	}
	return nil
}

// makeRoom sees to it that there is room to read into, or gives the buffer back if it is empty.
func (in *input) makeRoom(need int) {
	rest := in.buf[in.r:in.w]
	if need > 0 {
		in.wide = need > readBytes && need <= wideBytes
	}
	switch {
	case len(rest) == 0:
		in.free()
	case in.pooled != nil && need <= len(in.buf), in.sys == nil && len(rest) < readBytes:
		if in.r > 0 {
			in.r, in.w = 0, copy(in.buf, rest)
		}
	case need <= readBytes && len(rest) < readBytes:
		b := large.Get().(*[]byte)
		in.replace(*b, b, rest)
	case in.w < len(in.buf):
	case in.wide && len(rest) <= wideBytes:
		b := wide.Get().(*[]byte)
		in.replace(*b, b, rest)
	case in.r > len(in.buf)/2:
		in.r, in.w = 0, copy(in.buf, rest)
	default:
		size := max(readBytes, min(need, 2*len(rest))) // grows with what arrives, not with what a header claims
		in.replace(make([]byte, size), nil, rest)
	}
}

// shrink gives the buffer back while the client keeps us waiting, but for the little that is in it.
func (in *input) shrink() {
	switch rest := in.buf[in.r:in.w]; {
	case len(rest) == 0:
		in.free()
	case len(rest) <= keepBytes && in.pooled != nil:
		in.replace(make([]byte, len(rest)), nil, rest)
	case len(rest) < readBytes && len(in.buf) == wideBytes && in.pooled != nil:
		b := large.Get().(*[]byte)
		in.replace(*b, b, rest)
	}
}

func (in *input) replace(buf []byte, pooled *[]byte, rest []byte) {
	n := copy(buf, rest)
	give(in.pooled)
	in.buf, in.pooled, in.r, in.w = buf, pooled, 0, n
}

// borrow takes a buffer from the pool if there is no room to read into.
func (in *input) borrow() {
	if in.w < len(in.buf) {
		return
	}
	rest := in.buf[in.r:in.w]
	from := &small
	switch {
	case in.wide && in.sys != nil && (in.more || in.brisk): // what is not filled at once is given back, see shrink
		from = &wide
	case in.more || in.brisk || len(rest) >= fewBytes/2:
		from = &large
	}
	b := from.Get().(*[]byte)
	in.replace(*b, b, rest)
}

// wait takes a buffer for a read that may be long in coming: the small one, unless it is too small for what is there or
// there is likely to be more at once.
func (in *input) wait() {
	rest := in.buf[in.r:in.w]
	switch {
	case in.more || len(rest) >= aheadBytes:
		in.borrow()
	case len(in.buf) != aheadBytes:
		if in.ahead == nil {
			in.ahead = new([aheadBytes]byte)
		}
		in.replace(in.ahead[:], nil, rest)
	}
}

func (in *input) free() {
	give(in.pooled)
	in.buf, in.pooled, in.r, in.w = nil, nil, 0, 0
}

// read waits for bytes and reads them.
func (in *input) read() error {
	if in.sys == nil {
		in.wait()
		n, err := in.raw.Read(in.buf[in.w:])
		in.w += n
		in.more = in.w == len(in.buf)
		if n > 0 {
			in.link.Received(n)
			return nil
		}
		return err
	}
	if in.err = nil; in.try == nil {
		in.try = in.tryRead
	}
	if err := in.sys.Read(in.try); err != nil {
		return err
	}
	return in.err
}

// tryRead reads what is there, into a buffer borrowed only now; false means that there is nothing yet.
func (in *input) tryRead(fd uintptr) bool {
	in.borrow()
	return in.came(socket.Read(fd, in.buf[in.w:]))
}

// came takes what a read of a plain socket has brought. It reports false if that is nothing yet.
func (in *input) came(n int, again bool, err error) bool {
	switch {
	case again:
		in.shrink()
		in.waited = true
		in.burst, in.brisk = 0, in.burst > fewBytes
		return false
	case err != nil:
		in.err = err
	case n == 0:
		in.err = io.EOF
	default:
		in.link.Received(n)
		in.w += n
		in.burst += n
		in.more = in.w == len(in.buf)
	}
	return true
}

// newClientID returns an id for a client that has none.
func newClientID() string { return "auto-" + rand.Text() }
