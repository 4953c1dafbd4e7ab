package store

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

func soonMutation(i int) []Mutation {
	return []Mutation{record.Put(record.BucketSessions, fmt.Append(nil, "s", i), []byte("v"))}
}

// What nobody waits for makes one commit together, a moment later, or goes with the next append that somebody does wait for: then it is there
// when that is answered. A clean stop leaves nothing behind.
func TestAppendSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small("/data")
		o.FS = vfstest.NewDisk(1 << 30)
		r := start(t, o)
		has := func(i int) bool {
			t.Helper()
			v, ok, err := r.Get(record.BucketSessions, fmt.Append(nil, "s", i))
			if err != nil {
				t.Fatal(err)
			}
			return ok && bytes.Equal(v, []byte("v"))
		}
		groups := r.Stats().Groups
		for i := range 100 {
			if err := r.AppendSoon(soonMutation(i)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := r.Stats().Groups - groups; n != 0 {
			t.Errorf("%d commits at once", n)
		}
		time.Sleep(soon)
		synctest.Wait()
		if st := r.Stats(); st.Groups-groups != 1 || st.Syncs == 0 || !has(0) || !has(99) {
			t.Errorf("a moment later: %d commits, %d syncs, first %v, last %v", st.Groups-groups, st.Syncs, has(0), has(99))
		}

		if err := r.AppendSoon(soonMutation(100)); err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		r.put(Message{Payload: []byte("x")})
		if !has(100) || time.Since(before) >= soon {
			t.Errorf("with an append that is waited for: there %v, after %v", has(100), time.Since(before))
		}

		time.Sleep(2 * soon) // the alarm finds an empty group
		r.put(Message{Payload: []byte("y")})

		if err := r.AppendSoon(soonMutation(101)); err != nil {
			t.Fatal(err)
		}
		r.end()
		r = start(t, o)
		for i := range 102 {
			if !has(i) {
				t.Errorf("%d is not there after a restart", i)
			}
		}
	})
}

// However much it is that nobody waits for, it does not wait for more than a group takes.
func TestMuchThatNobodyWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small("/data")
		o.FS = vfstest.NewDisk(1 << 30)
		r := start(t, o)
		before := time.Now()
		for i := range 200 {
			m := []Mutation{record.Put(record.BucketSessions, fmt.Append(nil, "s", i), make([]byte, 10<<10))}
			if err := r.AppendSoon(m); err != nil {
				t.Fatal(err)
			}
		}
		if waited := time.Since(before); waited >= soon {
			t.Errorf("appends took %v", waited)
		}
		r.end()
	})
}
