package broker

import "sync"

// maxResting is how many porters of a listener wait for their next turn.
const maxResting = 8

// porters are the goroutines that take turns at a listener's door. The one whose turn it is accepts a connection, calls the next one to the door, and
// sees the connection in itself: nothing has to be handed over before the client is answered. Then the connection gets a goroutine
// with a small stack, and the porter, whose stack has grown to what a handshake takes, rests until it is called again.
type porters struct {
	mu      sync.Mutex
	resting []*porter
	over    bool
	wg      sync.WaitGroup
}

// porter is told, while it rests, whether it is its turn, or there are no more.
type porter struct{ turn chan bool }

// call has a porter come to the door: the one that has rested shortest, or if none is there a new one, for which keep is called.
func (ps *porters) call(keep func(*porter)) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if n := len(ps.resting); n > 0 {
		ps.resting[n-1].turn <- true // it has room
		ps.resting = ps.resting[:n-1]
		return
	}
	p := &porter{turn: make(chan bool, 1)}
	ps.wg.Go(func() { keep(p) })
}

// rest waits for the porter's next turn. It reports false if there is none.
func (ps *porters) rest(p *porter) bool {
	ps.mu.Lock()
	if ps.over || len(ps.resting) >= maxResting {
		ps.mu.Unlock()
		return false
	}
	ps.resting = append(ps.resting, p)
	ps.mu.Unlock()
	return <-p.turn
}

// dismiss sends everybody home: the door is closed.
func (ps *porters) dismiss() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.over = true
	for _, p := range ps.resting {
		p.turn <- false
	}
	ps.resting = nil
}
