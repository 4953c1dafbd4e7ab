package poll

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/edgemq/edgemq/broker/socket"
)

// Socket is an accepted connection, a net.Conn.
type Socket struct {
	loop    *Loop
	fd      int
	remote  netip.AddrPort
	closed  atomic.Bool // Close was called
	lingers atomic.Bool // and leave was given to linger

	// The loop's.
	guest   Guest
	watched bool
	place   int32         // in timers, counted from 1
	due     time.Duration // when its time is over
	late    time.Duration // when it has lingered for long enough; 0 before it does

	mu     sync.Mutex // held to close the descriptor, and by who uses it and has no file
	gone   bool       // it is closed; written by the loop
	parked Guest      // for the loop, which is to take the socket
	slow   *slow      // made when somebody has to wait outside the loop
	// The deadlines that slow is to have.
	readBy, writeBy time.Time
}

// slow is a socket as Go's poller has it.
type slow struct {
	file *os.File
	sys  syscall.RawConn
}

func newSocket(lp *Loop, fd int, sa syscall.Sockaddr) *Socket {
	s := &Socket{loop: lp, fd: fd}
	s.remote = addrPort(sa)
	return s
}

func addrPort(sa syscall.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *syscall.SockaddrInet6:
		ip := netip.AddrFrom16(a.Addr).Unmap()
		if a.ZoneId != 0 {
			if i, err := net.InterfaceByIndex(int(a.ZoneId)); err == nil {
				ip = ip.WithZone(i.Name)
			}
		}
		return netip.AddrPortFrom(ip, uint16(a.Port))
	}
	return netip.AddrPort{}
}

// Until sets when the guest is called though nothing has come; the zero time is never. It is for the guest, in Ready, and for Options.Accepted.
func (s *Socket) Until(t time.Time) {
	due := time.Duration(0)
	if !t.IsZero() {
		due = max(1, t.Sub(s.loop.born))
	}
	if due != 0 || s.place != 0 {
		s.loop.timers.set(s, due)
	}
}

// Leave ends the guest's part, in Ready: the socket is to be closed, or a goroutine's.
func (s *Socket) Leave() {
	if s.guest = nil; !s.closed.Load() { // else it is the loop's to linger with
		s.loop.drop(s)
	}
}

// Park has the loop wait for the socket again. The caller has nothing more to do with it.
func (s *Socket) Park(g Guest) {
	s.mu.Lock()
	s.parked = g
	s.mu.Unlock()
	s.loop.post(s)
}

func (s *Socket) takeParked() Guest {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.parked
	s.parked = nil
	return g
}

// ReadNow reads what is there; again means that nothing is.
func (s *Socket) ReadNow(p []byte) (n int, again bool, err error) {
	if s.closed.Load() {
		return 0, false, net.ErrClosed
	}
	if e := s.use(func(fd uintptr) { n, again, err = socket.Read(fd, p) }); e != nil {
		err = e
	}
	return n, again, err
}

// use calls f, which must not wait, with the descriptor.
func (s *Socket) use(f func(fd uintptr)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return net.ErrClosed
	}
	f(uintptr(s.fd))
	return nil
}

// shut closes the descriptor. Who waits for it gets an error.
func (s *Socket) shut() {
	s.closed.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone = true; s.slow != nil {
		_ = s.slow.file.Close()
	} else {
		_ = unix.Close(s.fd)
	}
}

// Close implements net.Conn. It does not wait; who reads is told at once.
func (s *Socket) Close() error {
	s.mu.Lock()
	if s.closed.Load() {
		s.mu.Unlock()
		return nil
	}
	if s.loop.opt.Linger() {
		if unix.Shutdown(s.fd, unix.SHUT_WR) == nil {
			s.lingers.Store(true)
		} else { // the peer has gone
			s.loop.opt.Lingered()
		}
	}
	if s.slow != nil {
		_ = s.slow.file.SetReadDeadline(time.Unix(1, 0))
	}
	s.closed.Store(true) // last: the loop may close the descriptor from now on
	s.mu.Unlock()
	s.loop.post(s)
	return nil
}

// wait returns the socket as Go's poller has it.
func (s *Socket) wait() (*slow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, net.ErrClosed
	}
	if s.slow == nil {
		f := os.NewFile(uintptr(s.fd), "socket")
		sys, err := f.SyscallConn()
		if err != nil {
			return nil, err
		}
		_ = f.SetReadDeadline(s.readBy)
		_ = f.SetWriteDeadline(s.writeBy)
		s.slow = &slow{f, sys}
	}
	return s.slow, nil
}

// Read implements net.Conn.
func (s *Socket) Read(p []byte) (int, error) {
	w, err := s.wait()
	if err != nil {
		return 0, err
	}
	return w.file.Read(p)
}

// Write implements net.Conn.
func (s *Socket) Write(p []byte) (int, error) {
	w, err := s.wait()
	if err != nil {
		return 0, err
	}
	return w.file.Write(p)
}

// SetDeadline implements net.Conn.
func (s *Socket) SetDeadline(t time.Time) error {
	if err := s.SetReadDeadline(t); err != nil {
		return err
	}
	return s.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn. In the past it has whoever reads look up, a guest too.
func (s *Socket) SetReadDeadline(t time.Time) error {
	if !t.IsZero() && time.Until(t) <= 0 {
		defer s.loop.post(s) // when mu is free
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return net.ErrClosed
	}
	if s.readBy = t; s.slow == nil {
		return nil
	}
	return s.slow.file.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (s *Socket) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return net.ErrClosed
	}
	if s.writeBy = t; s.slow == nil {
		return nil
	}
	return s.slow.file.SetWriteDeadline(t)
}

// RemoteAddr implements net.Conn.
func (s *Socket) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(s.remote) }

// LocalAddr implements net.Conn.
func (s *Socket) LocalAddr() net.Addr {
	var sa syscall.Sockaddr
	_ = s.use(func(fd uintptr) { sa, _ = syscall.Getsockname(int(fd)) })
	return net.TCPAddrFromAddrPort(addrPort(sa))
}

// Direct returns the way to the descriptor, see package socket.
func (s *Socket) Direct() syscall.RawConn { return direct{s} }

// SyscallConn implements syscall.Conn.
func (s *Socket) SyscallConn() (syscall.RawConn, error) { return direct{s}, nil }

// direct is a Socket as a syscall.RawConn.
type direct struct{ s *Socket }

// Control implements syscall.RawConn. f must not wait.
func (d direct) Control(f func(fd uintptr)) error { return d.s.use(f) }

// Read implements syscall.RawConn.
func (d direct) Read(f func(fd uintptr) bool) error {
	w, err := d.s.wait()
	if err != nil {
		return err
	}
	return w.sys.Read(f)
}

// Write implements syscall.RawConn. It leaves Go's poller alone if f does not want to wait.
func (d direct) Write(f func(fd uintptr) bool) error {
	done := false
	if err := d.s.use(func(fd uintptr) { done = f(fd) }); err != nil || done {
		return err
	}
	w, err := d.s.wait()
	if err != nil {
		return err
	}
	return w.sys.Write(f)
}
