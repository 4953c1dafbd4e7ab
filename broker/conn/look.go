package conn

import (
	"io"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

// waiting is a connection that a loop waits for (package poll) while it is quiet.
type waiting interface {
	ReadNow(p []byte) (n int, again bool, err error)
}

// Next is what is to be done with a connection that a loop has looked at.
type Next int

// What may be next.
const (
	Wait  Next = iota // until more comes, or Due
	Greet             // the CONNECT has come; then Proceed
	Serve             // in a goroutine
	Over
)

// Look reads once what is there, and deals with it as far as it is prompt: so that nobody has to wait for it.
func (c *Conn) Look(now time.Time) Next {
	need, err := c.split()
	if err == nil {
		err = c.in.look(need)
	}
	if err == nil && c.in.waited && c.in.late(now) {
		err = errKeepAlive
	}
	if err != nil {
		c.fail(err)
		return Over
	}
	return c.Proceed(now)
}

// Proceed deals with what has been read.
func (c *Conn) Proceed(now time.Time) Next {
	next, err := c.prompt()
	switch {
	case err != nil:
		c.fail(err)
		return Over
	case next == Wait:
		c.in.rest(now)
	case next == Serve:
		// Who parked it had the socket's deadline pass, and so the socket may still have one, be it that the client is waited for without end.
		c.in.phase, c.in.deadline = steady, time.Unix(1, 0)
	}
	return next
}

func (c *Conn) prompt() (Next, error) {
	for {
		size, err := c.split()
		if err != nil {
			return Over, err
		}
		if size == 0 || size > c.in.len() {
			if c.link.Connect != nil && c.in.len() > keepBytes {
				return Serve, nil // it takes memory anyway, and more reads
			}
			return Wait, nil
		}
		if c.link.Connect != nil && !(c.easy(c.in.bytes()[:size]) && c.link.Prompt()) {
			return Serve, nil
		}
		if err := c.frame(c.in.take(size)); err != nil {
			return Over, err
		}
		if c.in.idled = false; len(c.hand) > 0 {
			return Greet, nil
		}
	}
}

// easy tells whether a packet is dealt with promptly. What is not well-formed can be left to whoever finds that out.
func (c *Conn) easy(f []byte) bool {
	switch packet.TypeOf(f) {
	case packet.TypePingreq:
		return true
	case packet.TypeSubscribe:
		p, err := packet.ParseSubscribe(c.link.Version, f)
		return err == nil && c.link.Session().PromptSubscribe(p)
	case packet.TypeDisconnect:
		return c.link.Connect.Will == nil
	}
	return false
}

// PromptLogin tells whether the client whose CONNECT has come can be let in promptly.
func (c *Conn) PromptLogin() bool { return c.m.PromptLogin(c.link, c.door()) }

// PromptEnd tells whether Finish is prompt.
func (c *Conn) PromptEnd() bool { return c.link.PromptEnd() }

// Due is when Look is to be called though nothing has come; the zero time is never.
func (c *Conn) Due() time.Time {
	if c.link.Connect == nil {
		return c.in.deadline
	}
	if c.in.interval == 0 {
		return time.Time{}
	}
	return c.in.last.Add(c.in.patience())
}

// look reads once, in the hope of the rest of a frame of that size; waited is set if nothing was there.
func (in *input) look(need int) error {
	if in.link.Closing() || in.link.Draining() {
		return io.EOF
	}
	if in.len() > 0 {
		in.makeRoom(need)
	}
	in.waited, in.err = false, nil
	in.borrow()
	in.came(in.raw.(waiting).ReadNow(in.buf[in.w:]))
	return in.err
}

// rest is what there is to do before the connection waits in a loop.
func (in *input) rest(now time.Time) {
	if in.shrink(); in.took { // to be waited for by somebody else is no sign of life
		in.last, in.took = now, false
	}
}
