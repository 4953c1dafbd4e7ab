package store

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgemq/edgemq/store/journal"
	"github.com/edgemq/edgemq/store/record"
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
			return r.committer.mu.Unlock
		}, false},
		{"the end of a journal file", func(r *running) func() {
			used := r.fileUsed.Swap(r.opt.JournalFileBytes)
			return func() { r.fileUsed.Store(used) }
		}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := small("/data")
				o.FS = vfstest.NewDisk(vfstest.Never)
				r := start(t, o)
				r.put(Message{Payload: []byte("the committer")})
				synctest.Wait() // answers do not tell that the committer rests
				r.committer.quick.Store(true)
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
			synctest.Test(t, func(t *testing.T) {
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
				synctest.Wait()
				r.committer.quick.Store(true)
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

// A store that is told to stop while a caller waits for room gives up the caller's group, and takes nothing after it: there would be a gap.
func TestStopWhileHereWaitsForRoom(t *testing.T) {
	disk := vfstest.NewDisk(vfstest.Never)
	defer disk.Close()
	o := small("data")
	o.FS = disk
	s, err := Open(o) // not run, so that no other file is prepared
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	stop := make(chan struct{})
	close(stop)
	c := &s.committer
	c.stop, c.spare, c.lazy = stop, newBatch(), time.NewTimer(time.Hour)
	disk.SetCapacity(1)
	done := make(based, 1)
	for err == nil {
		if _, err := s.put([]Message{{Payload: make([]byte, 30<<10)}}, nil, appendMode{durable: true}, done); err != nil {
			t.Fatal(err)
		}
		c.quick.Store(true)
		c.alone.Store(true)
		s.fileUsed.Store(0) // others have made the group larger since the caller looked
		if !s.commitHere(nil) {
			t.Fatal("not committed here")
		}
		err = (<-done).err
	}
	if !errors.Is(err, ErrFull) {
		t.Fatalf("told %v", err)
	}
	if err := s.append(nil, []Mutation{record.Put(record.BucketMeta, []byte("k"), []byte("v"))}, appendMode{durable: true}, nil); !errors.Is(err, ErrFull) {
		t.Errorf("after the group that was given up: %v", err)
	}
}

// The committer's goroutine may have waited for the disk, and a reader that commits may do so beside it: whoever still waits for
// progress is still told of it.
func TestWaitsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small("/data")
		o.FS = vfstest.NewDisk(1 << 30)
		r, err := Open(o) // not run: what is said of the flusher here is not true
		if err != nil {
			t.Fatal(err)
		}
		r.full.Store(fullJournal)
		r.tail.pushed.Add(2 * maxUnflushed)
		stop := make(chan struct{})
		ended := make(chan error, 2)
		go func() { ended <- r.awaitRoom(stop) }()
		synctest.Wait() // it waits for the disk
		r.clearFull(fullJournal)
		synctest.Wait() // and now for the flusher
		if n := r.waiting.Load(); n != 1 {
			t.Errorf("%d wait", n)
		}
		go func() { ended <- r.awaitSpace(stop) }()
		time.Sleep(2 * retryFull)
		if n := r.waiting.Load(); n != 1 {
			t.Errorf("%d wait, when another has ended", n)
		}
		r.tail.pushed.Add(-2 * maxUnflushed)
		poke(r.progress)
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
		if n := r.waiting.Load(); n != 0 {
			t.Errorf("%d wait at the end", n)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// What others have left in a group, and a step of the clock, never make it larger than the journal takes: that would be the end of the store.
func TestGroupsFitTheJournal(t *testing.T) {
	for _, row := range []struct {
		name  string
		first func(r *running, most int) error // of an append that takes all that is possible
		left  int                              // of the group, for a second one
	}{
		{"a step of the clock", func(r *running, most int) error {
			return r.Append([]Message{{Payload: make([]byte, most/2-record.HeaderSize)}}, nil, true, nil)
		}, 0},
		{"what rides", func(r *running, _ int) error {
			return r.append(nil, []Mutation{record.Put(record.BucketSessions, []byte("k"), make([]byte, 20<<10))}, appendMode{rides: true}, nil)
		}, 20 << 10},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := small(t.TempDir())
			var c clock
			o.Now = c.now
			c.micros.Store(time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
			r := start(t, o)
			r.put(Message{})
			r.rest()
			most := r.maxGroup - journal.HeaderSize - r.open.maxEcho - stepBytes
			r.committer.mu.Lock() // so that all of it is one group, if it may be
			if err := row.first(r, most); err != nil {
				t.Fatal(err)
			}
			c.micros.Store(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
			r.open.mu.Lock()
			size := min(most, r.maxGroup-r.open.open.size()+row.left) - record.HeaderSize
			r.open.mu.Unlock()
			done := make(based, 1)
			appended := make(chan error, 1)
			go func() { appended <- r.Append([]Message{{Payload: make([]byte, size)}}, nil, true, done) }()
			select {
			case err := <-appended:
				appended <- err
			case <-time.After(20 * time.Millisecond): // it waits for a group of its own
			}
			r.committer.mu.Unlock()
			if err := <-appended; err != nil {
				t.Fatal(err)
			}
			if a := <-done; a.err != nil {
				t.Error(a.err)
			}
		})
	}
}

// A reader that panics while it shows a group leaves the flusher nothing to wait for.
func TestPanicWhileAGroupIsShown(t *testing.T) {
	s, err := Open(small(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		s.reveal(nil, nil, s.position, 0)
	}()
	if !s.boundary.TryLock() {
		t.Fatal("the boundary is still locked")
	}
	s.boundary.Unlock()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
