package store

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// rest waits until the committer is at rest, which answers do not tell, and has the disk be a quick one.
func (r *running) rest() {
	r.t.Helper()
	r.await("rest", func() bool {
		ok := r.committer.mu.TryLock()
		if ok {
			r.committer.mu.Unlock()
		}
		return ok
	})
	r.committer.quick.Store(true)
}

func TestAppendHere(t *testing.T) {
	for _, row := range []struct {
		name string
		but  func(r *running) (undo func())
		want bool
	}{
		{"nobody else", nil, true},
		{"a slow disk", func(r *running) func() { r.committer.quick.Store(false); return nil }, false},
		{"company", func(r *running) func() { r.committer.alone.Store(false); return nil }, false},
		{"the committer at work", func(r *running) func() {
			r.committer.mu.Lock()
			return func() { time.AfterFunc(5*time.Millisecond, r.committer.mu.Unlock) }
		}, false},
		{"the end of a journal file", func(r *running) func() {
			used := r.fileUsed.Swap(r.opt.JournalFileBytes)
			return func() { r.fileUsed.Store(used) }
		}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := start(t, small(t.TempDir()))
			r.put(Message{Payload: []byte("the committer")})
			r.rest()
			undo := func() {}
			if row.but != nil {
				if u := row.but(r); u != nil {
					undo = u
				}
			}
			done := make(based, 1)
			calls := 0
			here, err := r.AppendHere([]Message{{Payload: []byte("here")}}, nil, done, func() {
				if calls++; len(done) > 0 {
					t.Error("answered before the caller knows")
				}
			})
			undo()
			if err != nil || here != row.want {
				t.Errorf("here %v, %v", here, err)
			}
			if here != (calls == 1) || here && len(done) == 0 {
				t.Errorf("here %v, told %d times, %d answers", here, calls, len(done))
			}
			if a := <-done; a.err != nil {
				t.Error(a.err)
			}
			if recs := r.read(1); len(recs) != 2 || string(recs[1].Payload) != "here" {
				t.Errorf("read back: %d records", len(recs))
			}
		})
	}
}

// Followers see each group once, whoever hands it to them, and in order.
func TestFollowersOfAppendHere(t *testing.T) {
	r := start(t, small(t.TempDir()))
	var mu sync.Mutex
	var seen []uint64
	note := func(g *Group) {
		mu.Lock()
		defer mu.Unlock()
		for i := range g.Entries {
			seen = append(seen, g.Base+uint64(i))
		}
	}
	tried, ready := 0, false
	f := r.NewFollower(note, func(g *Group) bool {
		if tried++; ready {
			note(g)
		}
		return ready
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	next := uint64(1)
	for i := range 300 {
		ready = i%7 > 0 // only this goroutine commits here
		r.committer.quick.Store(true)
		if i%5 == 0 {
			r.put(Message{}, Message{})
			next += 2
			continue
		}
		done := make(based, 1)
		if _, err := r.AppendHere([]Message{{}}, nil, done, nil); err != nil {
			t.Fatal(err)
		}
		<-done
		next++
	}
	r.await("the follower", func() bool { mu.Lock(); defer mu.Unlock(); return len(seen) >= int(next-1) })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for i, off := range seen {
		if off != uint64(i+1) {
			t.Fatalf("number %d is offset %d", i, off)
		}
	}
	if tried == 0 {
		t.Error("nothing was handed over by the caller")
	}
}

func TestAppendHereFails(t *testing.T) {
	type panics struct{ Completion }
	for _, row := range []struct {
		name string
		rule func(vfstest.Op) error
		want error
	}{
		{"write", vfstest.On(vfstest.Write, "journal", syscall.EIO), syscall.EIO},
		{"sync", vfstest.On(vfstest.Datasync, "journal", syscall.EIO), syscall.EIO},
		{"panic", nil, errPanic},
	} {
		t.Run(row.name, func(t *testing.T) {
			disk := vfstest.NewDisk(vfstest.Never)
			defer disk.Close()
			o := small("data")
			o.FS = disk
			s, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			ran := make(chan error, 1)
			go func() { ran <- s.Run(t.Context()) }()
			r := &running{Store: s, t: t}
			r.put(Message{})
			r.rest()
			done := make(based, 1)
			var completion Completion = done
			if row.rule != nil {
				disk.Inject(row.rule)
			} else {
				completion = panics{} // a nil Completion
			}
			func() {
				defer func() {
					if p := recover(); (p != nil) != (row.rule == nil) {
						t.Errorf("panic: %v", p)
					}
				}()
				here, err := r.AppendHere([]Message{{}}, nil, completion, func() {})
				if !here || err != nil {
					t.Errorf("here %v, %v", here, err)
				}
				if a := <-done; !errors.Is(a.err, ErrFailed) || !errors.Is(a.err, row.want) {
					t.Errorf("answer: %v", a.err)
				}
			}()
			if err := <-ran; !errors.Is(err, row.want) {
				t.Errorf("Run: %v", err)
			}
			if err := r.Append(nil, nil, true, nil); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), row.want.Error()) {
				t.Errorf("append after it: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The committer may be quicker than a caller that means to commit: then the caller has not done so, and is not told that it has.
func TestCommitHereOfWhatIsCommitted(t *testing.T) {
	r := start(t, small(t.TempDir()))
	r.put(Message{Payload: []byte("the committer")})
	r.rest()
	r.committer.alone.Store(true)
	called := false
	if here := r.commitHere(func() { called = true }); here || called {
		t.Errorf("nothing was open: here %v, told %v", here, called)
	}
}
