package sdk_test

import (
	"net"
	"sync"
	"testing"
	"time"
)

// proxy stands between a client and a broker and does what networks do: it cuts, delays and swallows.
type proxy struct {
	Addr string

	listen net.Listener
	target string
	wg     sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	delay  time.Duration // of every read
	hold   chan struct{} // not nil: nothing comes from the broker until it is closed
	hole   bool          // nothing passes in either direction, and nobody is told
	most   int           // not 0: so many bytes pass from the broker on each connection, and the rest is swallowed
	count  int           // connections so far
	passed int64         // bytes to the broker
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Addr: l.Addr().String(), listen: l, target: target, conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.Release()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		c, err := p.listen.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = c.Close()
			continue
		}
		p.mu.Lock()
		p.count++
		p.conns[c], p.conns[b] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.wg.Go(func() { p.pump(b, c, true) })
		p.wg.Go(func() { p.pump(c, b, false) })
	}
}

func (p *proxy) pump(to, from net.Conn, up bool) {
	defer func() {
		_, _ = to.Close(), from.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, to)
		delete(p.conns, from)
	}()
	buf := make([]byte, 32<<10)
	total := 0
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		delay, hold, hole, most := p.delay, p.hold, p.hole, p.most
		if up {
			p.passed += int64(n)
		}
		p.mu.Unlock()
		if delay > 0 {
			time.Sleep(delay)
		}
		if hold != nil && !up {
			<-hold
		}
		if hole {
			continue
		}
		pass := n
		if most > 0 && !up {
			pass = min(n, max(most-total, 0))
		}
		total += n
		if _, err := to.Write(buf[:pass]); err != nil {
			return
		}
	}
}

// Cut closes all connections.
func (p *proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// Hold keeps back what the broker sends, until Release. Cutting meanwhile loses it.
func (p *proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = make(chan struct{})
}

// Release lets what comes next pass. What was held back passes too, if its connection is still there.
func (p *proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold != nil {
		close(p.hold)
		p.hold = nil
	}
}

// Hole swallows everything, or stops to.
func (p *proxy) Hole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole = on
}

// Most swallows what the broker sends on a connection after so many bytes; 0 lets everything pass.
func (p *proxy) Most(bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = bytes
}

// Delay sets the delay of each read.
func (p *proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Connections is how many connections there have been.
func (p *proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// Passed is how many bytes went to the broker.
func (p *proxy) Passed() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed
}
