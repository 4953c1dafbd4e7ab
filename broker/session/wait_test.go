package session

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgemq/edgemq/store"
)

// Who waits for a crew is told when the last one is gone, though the count may have risen from 0 meanwhile.
func TestCrew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c crew
		c.wait() // for nobody
		c.Add(1)
		over := false
		go func() {
			c.wait()
			over = true
		}()
		synctest.Wait()
		c.Add(1)
		c.Add(-1)
		synctest.Wait()
		if over {
			t.Error("one is left")
		}
		c.Add(-1)
		synctest.Wait()
		if !over {
			t.Error("none is left, and nobody was told")
		}
	})
}

// A connection is closed by Shutdown as soon as what was accepted on it is answered, and the answer goes out before.
func TestShutdownAwaitsAnswers(t *testing.T) {
	m := manager(t, store.Options{})
	for _, row := range []struct {
		name  string
		ended bool // the time for it is over
		want  string
	}{{"answered", false, "ack"}, {"not in time", true, ""}} {
		ours, theirs := pair(t)
		l := m.NewLink(ours)
		l.unanswered.Store(1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.Shutdown(ctx)
		}()
		for waits := false; !waits; time.Sleep(time.Millisecond) {
			l.mu.Lock()
			waits = l.room != nil
			l.mu.Unlock()
		}
		if l.Closing() {
			t.Errorf("%s: closed at once", row.name)
		}
		if row.ended {
			cancel()
		} else {
			l.answer([]byte("ack"), 1, 0)
		}
		<-done
		cancel()
		if b, err := io.ReadAll(theirs); err != nil || string(b) != row.want {
			t.Errorf("%s: %q, %v", row.name, b, err)
		}
		m.links.remove(l)
		m.Wait()
	}
}
