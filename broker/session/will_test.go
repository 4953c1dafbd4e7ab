package session

import (
	"testing"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// A broker died with a client connected, and the client is back before anybody has looked at Wills: one whose delay is over is published
// all the same. [MQTT-3.1.2-8]
func TestWillOfAClientThatReturnsFirst(t *testing.T) {
	for _, tt := range []struct {
		name  string
		delay uint32
		due   time.Duration // from now; 0: it was connected
		want  bool
	}{
		{"no delay", 0, 0, true},
		{"the delay is over", 5, -time.Second, true},
		{"the delay is not over", 1000, 0, false},
		{"the delay is not over, since it left", 1000, time.Minute, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log := openStore(t)
			w := &will{topic: "will", delay: tt.delay, body: []byte("gone")}
			w.flags = w.flags.WithQoS(1)
			if tt.due != 0 {
				w.due = time.Now().Add(tt.due)
			}
			gone := &Session{id: "c", expiry: Never, offline: time.Now()}
			done := make(committed, 1)
			if err := log.Append(nil, []store.Mutation{gone.mutation(), w.mutation("c")}, true, done); err != nil {
				t.Fatal(err)
			}
			<-done
			m := newManager(t, log)
			s := m.sessions["c"]
			s.mu.Lock()
			s.willOnReturn(false, false)
			s.mu.Unlock()
			if err := log.Append(nil, []store.Mutation{gone.mutation()}, true, done); err != nil { // behind it
				t.Fatal(err)
			}
			<-done
			if got := log.Committed() > log.First(); got != tt.want {
				t.Errorf("published: %v, want %v", got, tt.want)
			}
			if _, left, _ := log.Get(record.BucketWills, []byte("c")); left {
				t.Error("the Will is still in the state")
			}
		})
	}
}
