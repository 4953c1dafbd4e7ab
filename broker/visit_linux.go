package broker

import (
	"net"
	"time"

	"github.com/edgemq/edgemq/broker/conn"
	"github.com/edgemq/edgemq/broker/poll"
	"github.com/edgemq/edgemq/broker/transport"
)

// watch has the connections of a plain TCP listener waited for by a loop: what is prompt it does itself, for the rest there are goroutines.
func (l *listener) watch(t *transport.Listener) {
	tcp := t.TCP()
	if tcp == nil {
		return
	}
	loop, err := poll.New(tcp, poll.Options{
		Accepted: l.accepted,
		Failed:   l.acceptFailed,
		Linger:   transport.Linger,
		Lingered: transport.Lingered,
	})
	if err != nil { // then as elsewhere
		l.logger.Warn("no loop for a listener, its connections are goroutines", "listener", l.opt.Name, "err", err)
		return
	}
	l.loop = loop
}

// visit is a connection that the loop waits for.
type visit struct {
	l   *listener
	raw *poll.Socket
	c   *conn.Conn
}

// accepted lets a connection in, unless there are too many. The loop calls it.
func (l *listener) accepted(raw *poll.Socket) (guest poll.Guest) {
	defer l.caught(raw) // the loop closes what nobody wants
	if l.refuses(raw) {
		return nil
	}
	if !l.begin(raw) {
		return nil
	}
	defer func() {
		if guest == nil { // a panic, or the listener was closed meanwhile
			l.end(raw)
		}
	}()
	by := time.Now().Add(l.opt.ConnectTimeout)
	c := l.established(raw, raw, nil, by)
	if c == nil {
		return nil
	}
	raw.Until(by)
	return &visit{l, raw, c}
}

// Ready implements poll.Guest.
func (v *visit) Ready(now time.Time) {
	over, prompt := v.ready(now)
	if !over {
		return
	}
	v.raw.Leave()
	if prompt {
		v.l.finish(v.raw, v.c, nil)
	} else {
		go v.l.finish(v.raw, v.c, nil)
	}
}

// ready does what there is to do, and tells whether the connection is over, and whether its end is prompt. That of one that has panicked is not: what it holds
// may be locked for ever.
func (v *visit) ready(now time.Time) (over, prompt bool) {
	defer v.l.caught(v.raw)
	over = true // after a panic
	if over = v.look(now); over {
		prompt = v.c.PromptEnd()
	}
	return over, prompt
}

// look does what there is to do, and tells whether the connection is over.
func (v *visit) look(now time.Time) (over bool) {
	for next := v.c.Look(now); ; {
		switch next {
		case conn.Greet:
			if !v.c.PromptLogin() {
				v.raw.Leave()
				go v.l.welcome(v.raw, v.c)
				return false
			}
			if v.l.admit(v.raw, v.c) != nil {
				return true
			}
			next = v.c.Proceed(now)
		case conn.Wait:
			v.raw.Until(v.c.Due())
			return false
		case conn.Serve:
			v.raw.Leave()
			go v.l.run(v.raw, v.c)
			return false
		default:
			return true
		}
	}
}

// park has the loop wait for a connection that has been quiet, if there is one.
func (l *listener) park(raw net.Conn, c *conn.Conn) bool {
	s, ok := raw.(*poll.Socket)
	if ok {
		s.Park(&visit{l, s, c})
	}
	return ok
}
