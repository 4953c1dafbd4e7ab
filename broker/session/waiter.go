package session

import "sync"

// waiter waits for several commits and keeps their first error. It is a store.Completion.
type waiter struct {
	wg  sync.WaitGroup
	mu  sync.Mutex
	err error
}

func newWaiter() *waiter { return &waiter{} }

// add announces one more call of Committed.
func (w *waiter) add() { w.wg.Add(1) }

// Committed implements store.Completion.
func (w *waiter) Committed(_ uint64, err error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.mu.Unlock()
	w.wg.Done()
}

func (w *waiter) wait() error {
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
