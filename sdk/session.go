package sdk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/diagnose"
	"github.com/edgemq/edgemq/internal/wire"
)

const v5Prefix = "$v5/"

// receiptsID is the packet id of the SUBSCRIBE to receipts. paho, which counts its own up from 1, does not get there.
const receiptsID = 65535

// session is a connection to a broker that is made again whenever it is lost, with what must survive that.
type session struct {
	o   *settings
	id  string
	out *outbox

	rude     atomic.Bool // the connection is to end without a goodbye, so that the broker publishes the Will
	receipts bool        // wants to know where its messages are stored

	receive func(l *link, d delivery)                // of the reading goroutine; must not block
	ready   func(ctx context.Context, l *link) error // makes subscriptions on a new connection; an error ends it
	down    func()                                   // the connection is lost

	mu     sync.Mutex
	link   *link         // nil: not connected
	change chan struct{} // closed when link changes
	closed error
	err    error // why the connection was lost, or not made

	cancel context.CancelFunc
	done   chan struct{}
}

// start connects for the first time and keeps the connection up until close.
func startSession(ctx context.Context, s *session) error {
	s.out = newOutbox(s.o)
	s.change, s.done = make(chan struct{}), make(chan struct{})
	run, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if s.o.background {
		go s.run(run, nil)
		return nil
	}
	l, err := s.first(ctx)
	if err != nil {
		cancel()
		close(s.done)
		s.out.close(ErrClosed)
		if !errors.Is(err, ErrRefused) { // that says what is wrong, and a look at the port takes its time
			if hint := diagnose.Hint(ctx, s.o.url, err); hint != "" {
				err = fmt.Errorf("%w; %s", err, hint)
			}
		}
		return fmt.Errorf("edgemq: connect to %s: %w", s.o.url.Redacted(), err)
	}
	go s.run(run, l)
	return nil
}

func (s *session) first(ctx context.Context) (*link, error) {
	for attempt := 1; ; attempt++ {
		l, err := s.connect(ctx)
		if err == nil {
			if err = s.establish(ctx, l); err == nil {
				return l, nil
			}
		}
		if !s.o.keepTrying || ctx.Err() != nil || errors.Is(err, ErrRefused) {
			return nil, err
		}
		s.report(State{Err: err, Attempt: attempt})
		if !pause(ctx, backoff(s.o, attempt)) {
			return nil, err
		}
	}
}

// run replaces the connection when it is lost.
func (s *session) run(ctx context.Context, l *link) {
	defer close(s.done)
	short := 0 // connections in a row that did not last
	refused := false
	for attempt := 0; ; {
		if l != nil {
			since := time.Now()
			select {
			case <-l.lost:
			case <-ctx.Done():
			}
			err := s.drop(l, ctx.Err() != nil && !s.rude.Load())
			if ctx.Err() != nil {
				return
			}
			s.report(State{Err: err})
			if short++; time.Since(since) > 5*time.Second {
				short = 0
			}
			attempt = short // the first time there is no need to wait
			if attempt > 0 {
				attempt--
			}
		}
		attempt++
		wait := time.Duration(0)
		switch {
		case refused: // it may be let in again one day, but there is no hurry
			wait = s.o.maxBackoff
		case attempt > 1:
			wait = backoff(s.o, attempt-1)
		}
		if wait > 0 && !pause(ctx, wait) {
			return
		}
		var err error
		if l, err = s.connect(ctx); err == nil {
			err = s.establish(ctx, l)
		} else {
			s.out.pardon()
		}
		if refused = errors.Is(err, ErrRefused); err != nil {
			l = nil
			if ctx.Err() != nil {
				return
			}
			s.report(State{Err: err, Attempt: attempt})
		}
	}
}

// establish makes a connection the session's: subscriptions first, then what was not acknowledged.
func (s *session) establish(ctx context.Context, l *link) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.connectTimeout)
	defer cancel()
	if s.receipts {
		// Ahead of all publishes, so that those are named that are sent again. What the answer is does not matter: if the broker
		// refuses it, offsets stay unknown.
		sub := packet.Subscribe{PacketID: receiptsID, Filters: []packet.Subscription{{Filter: wire.Receipts}}}
		if _, err := l.socket.Write(packet.AppendSubscribe(nil, packet.V311, &sub)); err != nil {
			l.fail(err)
		}
	}
	s.out.connect(l, l.socket.LocalAddr().String(), l.resumed)
	l.writer.Go(func() { s.out.write(l) })
	if s.ready != nil {
		if err := s.ready(ctx, l); err != nil {
			l.fail(err)
			_ = s.drop(l, true)
			return err
		}
	}
	s.setLink(l)
	s.report(State{Connected: true, Resumed: l.resumed})
	return nil
}

// drop ends a connection and waits for all that works on it.
func (s *session) drop(l *link, goodbye bool) error {
	if goodbye {
		slow := time.AfterFunc(time.Second, func() { l.fail(ErrClosed) })
		s.out.end()
		l.writer.Wait()
		// Not paho's Disconnect, which closes at once: whoever connects with this client id next would push out what the broker
		// has not read yet, acknowledgements above all. The broker closes when it has.
		if _, err := l.socket.Write(packet.AppendDisconnect(nil, packet.V311, nil)); err == nil {
			<-l.lost
		}
		slow.Stop()
	}
	l.fail(ErrClosed)
	_ = l.socket.Close()
	s.out.disconnect(l)
	l.writer.Wait()
	s.mu.Lock()
	was := s.link == l
	s.mu.Unlock()
	if was {
		s.setLink(nil)
		s.o.observer.Connection(false)
	}
	if s.down != nil {
		s.down()
	}
	return l.cause()
}

func (s *session) setLink(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = l
	close(s.change)
	s.change = make(chan struct{})
	if l != nil {
		s.o.observer.Connection(true)
	}
}

// connected waits for a connection.
func (s *session) connected(ctx context.Context) (*link, error) {
	for {
		s.mu.Lock()
		l, change, closed := s.link, s.change, s.closed
		s.mu.Unlock()
		switch {
		case closed != nil:
			return nil, closed
		case l != nil:
			return l, nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// lastError is why there is no connection.
func (s *session) lastError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *session) report(st State) {
	s.mu.Lock()
	s.err = st.Err
	s.mu.Unlock()
	st.ClientID, st.Pending = s.id, s.out.len()
	if st.Connected {
		s.o.logger.Info("connected", "component", "sdk", "client", s.id, "broker", s.o.url.Host, "pending", st.Pending)
	} else {
		s.o.logger.Warn("connection lost", "component", "sdk", "client", s.id, "broker", s.o.url.Host, "attempt", st.Attempt, "pending", st.Pending, "err", st.Err)
	}
	if s.o.onState != nil {
		s.o.onState(st)
	}
}

// backoff is how long to wait before the next attempt.
func backoff(o *settings, attempt int) time.Duration {
	d := o.minBackoff << min(attempt-1, 20)
	if d > o.maxBackoff || d <= 0 {
		d = o.maxBackoff
	}
	return d/2 + rand.N(d/2+1) // so that a thousand clients do not come back at once
}

// pause waits; it reports false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// abandon makes close end the connection as if it were lost.
func (s *session) abandon() { s.rude.Store(true) }

// close ends the session. What is not acknowledged fails.
func (s *session) close() {
	s.mu.Lock()
	already := s.closed != nil
	s.closed = ErrClosed
	s.mu.Unlock()
	s.cancel()
	<-s.done
	if already {
		return
	}
	s.out.close(ErrClosed)
	s.mu.Lock()
	close(s.change)
	s.change = make(chan struct{})
	s.mu.Unlock()
}
