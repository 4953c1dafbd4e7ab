package poll

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lingerTime is for how long what a peer still sends is read after Close.
const lingerTime = 500 * time.Millisecond

// Options are what a loop needs to know. Every field is set.
type Options struct {
	// Accepted is called by the loop for a new connection. It returns who it is for, nil if nobody wants it.
	Accepted func(s *Socket) Guest
	// Failed is called by the loop when accepting failed, which is tried again after a pause.
	Failed func(err error, pause time.Duration)
	// Linger asks for leave to keep a socket open for a moment after Close. Lingered gives it back.
	Linger   func() bool
	Lingered func()
}

// Loop accepts the connections of one listener, and waits for them. What has no lock belongs to Run.
type Loop struct {
	opt      Options
	epoll    int
	bell     int // an eventfd
	listener int // -1 once closed

	born    time.Time // times are counted from it
	sockets []*Socket // by descriptor: those that the loop waits for
	open    int       // all whose descriptor is open
	timers  timers
	retry   time.Duration                                      // when to accept again after a failure, 0 if there was none
	pause   time.Duration                                      // how long that was put off
	accept4 func(fd, flags int) (int, syscall.Sockaddr, error) // syscall.Accept4, or a test's
	scratch [4096]byte

	waiting atomic.Bool // or about to: who posts something rings
	mu      sync.Mutex
	inbox   []*Socket // to be looked at
	running bool
	closing bool
}

// New returns a loop for a listener, of which it takes a descriptor of its own: the listener itself is closed, or Go's poller would hear of every
// connection too.
func New(l *net.TCPListener, o Options) (*Loop, error) {
	lp := &Loop{opt: o, listener: -1, epoll: -1, bell: -1, born: time.Now(), accept4: syscall.Accept4}
	sys, err := l.SyscallConn()
	if err == nil {
		var bad error
		err = sys.Control(func(fd uintptr) { bad = lp.init(int(fd)) })
		err = errors.Join(err, bad)
	}
	if err != nil {
		lp.free()
		return nil, err
	}
	return lp, l.Close()
}

func (lp *Loop) init(listener int) (err error) {
	if lp.listener, err = unix.FcntlInt(uintptr(listener), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return err
	}
	if lp.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if lp.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	// An accepted socket inherits it.
	_ = unix.SetsockoptInt(lp.listener, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	return errors.Join(lp.watch(lp.bell), lp.watch(lp.listener))
}

func (lp *Loop) free() {
	for _, fd := range []*int{&lp.listener, &lp.bell, &lp.epoll} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

func (lp *Loop) watch(fd int) error {
	return unix.EpollCtl(lp.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

func (lp *Loop) unwatch(fd int) { _ = unix.EpollCtl(lp.epoll, unix.EPOLL_CTL_DEL, fd, nil) }

// Run is the loop. It returns after Close, once the last socket is closed.
func (lp *Loop) Run() {
	lp.mu.Lock()
	over := lp.closing // and freed
	lp.running = true
	lp.mu.Unlock()
	if over {
		return
	}
	events := make([]unix.EpollEvent, 128)
	for lp.tidy() {
		n, err := unix.EpollWait(lp.epoll, events, lp.patience())
		lp.waiting.Store(false)
		if err != nil && err != unix.EINTR {
			panic("poll: epoll_wait: " + err.Error())
		}
		now := time.Now()
		for _, ev := range events[:max(n, 0)] {
			switch fd := int(ev.Fd); {
			case fd == lp.bell:
				_, _ = unix.Read(fd, lp.scratch[:8])
			case fd == lp.listener:
				lp.accept()
			case lp.sockets[fd] != nil: // else it was closed a moment ago
				lp.ready(lp.sockets[fd], now)
			}
		}
		lp.timeouts(now)
	}
	lp.mu.Lock()
	defer lp.mu.Unlock()
	lp.free()
}

// tidy looks at what was posted. It reports false when nothing is left to do.
func (lp *Loop) tidy() bool {
	lp.waiting.Store(true) // before: what is posted from now on rings
	lp.mu.Lock()
	in, closing := lp.inbox, lp.closing
	lp.inbox = nil
	lp.mu.Unlock()
	if closing && lp.listener >= 0 {
		_ = unix.Close(lp.listener)
		lp.listener = -1
	}
	now := time.Now()
	for _, s := range in {
		lp.look(s, now)
	}
	return !closing || lp.open > 0
}

// patience is for how many milliseconds there is nothing to do; -1 is for ever.
func (lp *Loop) patience() int {
	at := lp.retry
	if len(lp.timers) > 0 && (at == 0 || lp.timers[0].due < at) {
		at = lp.timers[0].due
	}
	if at == 0 {
		return -1
	}
	return int(max(0, at-time.Since(lp.born)+time.Millisecond-1) / time.Millisecond)
}

func (lp *Loop) timeouts(now time.Time) {
	at := now.Sub(lp.born)
	if lp.retry > 0 && at >= lp.retry {
		if lp.retry = 0; lp.listener >= 0 {
			if err := lp.watch(lp.listener); err != nil {
				lp.later(err)
			}
		}
	}
	for n := len(lp.timers); n > 0 && len(lp.timers) > 0 && at >= lp.timers[0].due; n-- {
		s := lp.timers[0]
		lp.timers.set(s, 0)
		lp.ready(s, now)
	}
}

// accept takes one connection. If there are more, epoll says so again.
func (lp *Loop) accept() {
	fd, sa, err := lp.accept4(lp.listener, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
	switch err {
	case nil:
	case syscall.EAGAIN, syscall.EINTR, syscall.ECONNABORTED:
		return
	default: // no descriptors, say. They stay in the backlog, about which epoll would not be silent
		lp.unwatch(lp.listener)
		lp.later(err)
		return
	}
	lp.pause = 0
	s := newSocket(lp, fd, sa)
	lp.open++
	if s.guest = lp.opt.Accepted(s); s.guest == nil {
		lp.shut(s)
	} else if !lp.take(s) {
		_ = s.Close() // the guest is told so
	}
}

// later has accepting tried again after a pause.
func (lp *Loop) later(err error) {
	lp.pause = min(max(2*lp.pause, 5*time.Millisecond), time.Second)
	lp.retry = time.Since(lp.born) + lp.pause
	lp.opt.Failed(err, lp.pause)
}

// take has the loop wait for a socket.
func (lp *Loop) take(s *Socket) bool {
	if lp.watch(s.fd) != nil {
		return false
	}
	if n := s.fd + 1 - len(lp.sockets); n > 0 {
		lp.sockets = append(lp.sockets, make([]*Socket, n)...)
	}
	lp.sockets[s.fd] = s
	s.watched = true
	return true
}

// drop ends that.
func (lp *Loop) drop(s *Socket) {
	lp.timers.set(s, 0)
	if s.watched {
		lp.unwatch(s.fd)
		lp.sockets[s.fd] = nil
		s.watched = false
	}
}

func (lp *Loop) ready(s *Socket, now time.Time) {
	if s.guest != nil {
		s.guest.Ready(now)
	}
	if s.guest == nil && s.closed.Load() && !s.gone {
		lp.linger(s, now)
	}
}

// linger is what follows Close: for a moment, what the peer still sends is read. A socket that is closed with something unread is reset, and the reset
// overtakes what was written last, which is where the broker says why it closes.
func (lp *Loop) linger(s *Socket, now time.Time) {
	at := now.Sub(lp.born)
	switch {
	case !s.lingers.Load():
	case s.late == 0:
		if s.watched || lp.take(s) {
			s.late = at + lingerTime
			lp.timers.set(s, s.late)
			return
		}
	case at < s.late:
		n, err := unix.Read(s.fd, lp.scratch[:])
		if n > 0 || err == unix.EAGAIN || err == unix.EINTR {
			return
		}
	}
	lp.drop(s)
	lp.shut(s)
}

// shut closes the descriptor.
func (lp *Loop) shut(s *Socket) {
	lp.open--
	s.shut()
	if s.lingers.Load() {
		lp.opt.Lingered()
	}
}

// look is for a socket that was posted.
func (lp *Loop) look(s *Socket, now time.Time) {
	if g := s.takeParked(); g != nil {
		if s.guest = g; !lp.take(s) {
			_ = s.Close() // the guest is told so
		}
	}
	lp.ready(s, now)
}

// post has the loop look at a socket.
func (lp *Loop) post(s *Socket) {
	lp.mu.Lock()
	defer lp.mu.Unlock()
	lp.inbox = append(lp.inbox, s)
	lp.ring()
}

// ring has the loop look up; mu is held.
func (lp *Loop) ring() {
	if lp.bell >= 0 && lp.waiting.Swap(false) {
		one := [8]byte{1}
		_, _ = unix.Write(lp.bell, one[:])
	}
}

// Close ends accepting. Run returns when all sockets are closed.
func (lp *Loop) Close() {
	lp.mu.Lock()
	defer lp.mu.Unlock()
	if lp.closing {
		return
	}
	if lp.closing = true; lp.running {
		lp.ring()
	} else {
		lp.free()
	}
}
