package feed

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// drill is a script of changes to queues, one step after the other, over a disk that loses power at some moment. Each step is durable, and
// whole, when it has returned: so what is there after the cut is what was there before the step in hand, or after it, and
// nothing in between. In particular a message is in one of two queues, and never in both or neither.
type drill struct {
	t    *testing.T
	n    *node
	q    *Queues
	disk *vfstest.Disk
	cut  int // operations after which the power is cut, counted from when the store is open; negative for never
	ops  int // that there were
	held map[string]*Member
}

var errDrill = errors.New("the power is off")

func (d *drill) put(topic string, payloads ...string) error {
	var msgs []store.Message
	for _, p := range payloads {
		id, err := d.n.store.TopicID(topic)
		if err != nil {
			return err
		}
		client, err := d.n.store.ClientID("p", false)
		if err != nil {
			return err
		}
		msgs = append(msgs, store.Message{Topic: id, Client: client, Flags: record.Flags(0).WithQoS(1), Payload: []byte(p)})
	}
	done := make(committed, 1)
	if err := d.n.store.Append(msgs, nil, true, done); err != nil {
		return err
	}
	return <-done
}

func (d *drill) create(name string) error {
	if _, err := d.q.Create(name); err != nil {
		return err
	}
	return d.save(name)
}

func (d *drill) bind(name, filter string) error {
	f, err := d.q.Find(name)
	if err != nil {
		return err
	}
	return d.q.commit(func(done store.Completion) error { return d.q.Bind(f, filter, done) })
}

func (d *drill) unbind(name, filter string) error {
	f, err := d.q.Find(name)
	if err != nil {
		return err
	}
	return d.q.commit(func(done store.Completion) error {
		_, err := d.q.Unbind(f, filter, done)
		return err
	})
}

// save has the cursor of a queue be on disk.
func (d *drill) save(name string) error {
	f, err := d.q.Find(name)
	if err != nil {
		return err
	}
	return d.q.commit(func(done store.Completion) error { return d.n.hub.Save(nil, done, f) })
}

// take takes n items of a queue for a member of it.
func (d *drill) take(name, member string, n int) ([]Item, error) {
	f, err := d.q.Find(name)
	if err != nil {
		return nil, err
	}
	m := d.held[member]
	if m == nil {
		m = f.Join(make(wakes, 1), 2)
		d.held[member] = m
	}
	var items []Item
	for deadline := time.Now().Add(patience); len(items) < n; time.Sleep(50 * time.Microsecond) {
		if items = m.Take(items, n-len(items), 1<<20); d.disk.Cut() {
			return nil, errDrill
		}
		if time.Now().After(deadline) {
			d.t.Errorf("%d items came of %d", len(items), n)
			return nil, errDrill
		}
	}
	return items, nil
}

func (d *drill) leave(member string) {
	d.held[member].Leave()
	delete(d.held, member)
}

// snapshot says what is in all queues: what is not done with, in order of arrival, and their settings.
func (d *drill) snapshot() string {
	out := ""
	for _, name := range d.q.Names() {
		i, err := d.q.Info(name)
		if err != nil {
			return err.Error()
		}
		recs, err := d.q.Peek(name, 1000)
		if err != nil {
			return err.Error()
		}
		out += fmt.Sprintf("%s %v paused=%v set=%x:", name, i.Bindings, i.Paused, i.Set)
		for _, r := range recs {
			out += " " + string(r.Payload)
		}
		if n, err := d.q.Depth(name); err != nil || n != int64(len(recs)) {
			out += fmt.Sprintf(" (and a depth of %d, %v)", n, err)
		}
		out += "\n"
	}
	return out
}

// steps are the script.
func (d *drill) steps() []func() error {
	var one, two []Item
	settle := func(name, member string, items *[]Item, n int) error {
		for _, it := range (*items)[:n] {
			d.held[member].Settle(it.Seq)
		}
		*items = (*items)[n:]
		return d.save(name)
	}
	take := func(name, member string, n int, to *[]Item) func() error {
		return func() (err error) { *to, err = d.take(name, member, n); return err }
	}
	refuse := func(items *[]Item) func() error { // the last time: to the dead letters
		return func() error {
			d.held["m1"].Refuse((*items)[0].Seq, "bad", 0)
			*items = (*items)[1:]
			return d.q.commit(func(done store.Completion) error { return d.n.store.Append(nil, nil, true, done) })
		}
	}
	return []func() error{
		func() error { return d.put("a", "a1", "a2", "a3", "a4", "a5", "a6") },
		func() error { return d.put("b", "b1", "b2") },
		func() error { return d.create("q") },
		func() error { return d.create("q-dead") },
		func() error { return d.create("other") },
		func() error { return d.bind("q", "a") },
		func() error { return d.put("$queue/q", "q1") },
		func() error {
			return d.q.Configure("q", SetMaxDeliveries|SetRetryDelay, Policy{MaxDeliveries: 1, RetryDelay: []time.Duration{time.Hour}}, 0)
		},
		take("q", "m1", 3, &one),
		func() error { return settle("q", "m1", &one, 1) },
		refuse(&one),                             // a2
		func() error { return d.bind("q", "+") }, // walks back, for b
		func() error { return d.unbind("q", "a") },
		take("q", "m1", 2, &two),
		func() error { return settle("q", "m1", &two, 2) },
		func() error { return d.q.Pause("q", true) },
		func() error { return d.q.Pause("q", false) },
		func() error { d.leave("m1"); return nil }, // hands over what it had
		take("q", "m2", 1, &two),
		func() error { d.leave("m2"); return d.save("q") },
		func() error { _, err := d.q.Move("q", "other", 2); return err },
		func() error { _, err := d.q.Move("q-dead", "q", 1); return err }, // redrive
		func() error { return d.q.Reset("q", 4) },
		func() error { _, err := d.q.Purge("other"); return err },
		func() error { return d.q.Delete("other") },
		func() error { return d.put("$queue/other", "o1") },
		func() error { return d.create("other") },
		func() error { return d.q.Configure("q", SetExclusive, Policy{Exclusive: true}, SetRetryDelay) },
		func() error { _, err := d.q.Move("other", "q", 100); return err },
		func() error { _, err := d.q.Purge("q"); return err },
		func() error { return d.unbind("q", "+") },
		func() error { return d.q.Delete("q") },
	}
}

// run runs the script until the power fails, and returns how many steps it came through and what was there after each.
func (d *drill) run() (done int, seen []string) {
	d.held = map[string]*Member{}
	d.n = open(d.t, d.disk, "data", defaultBounds)
	d.q = d.n.queues
	base := d.disk.Ops()
	defer func() { d.ops = d.disk.Ops() - base }()
	if d.cut >= 0 {
		d.disk.CutAfter(d.cut)
	}
	d.n.run()
	seen = append(seen, d.snapshot())
	for _, step := range d.steps() {
		if err := step(); err != nil || d.disk.Cut() {
			if !d.disk.Cut() {
				d.t.Errorf("step %d: %v", done, err)
			}
			break
		}
		done++
		seen = append(seen, d.snapshot())
	}
	if err := d.n.end(); err != nil && !d.disk.Cut() {
		d.t.Error(err)
	}
	return done, seen
}

// TestPowerCutDuringChanges cuts the power at every operation of the disk in turn.
func TestPowerCutDuringChanges(t *testing.T) {
	sure := &drill{t: t, disk: preparedDisk(t), cut: -1}
	all, want := sure.run()
	if t.Failed() {
		return
	}
	for i, s := range want {
		t.Logf("after step %d:\n%s", i, s)
	}
	total, every := sure.ops, 1+sure.ops/60
	if os.Getenv("EDGEMQTEST_LONG") == "1" {
		every = 1
	}
	for cut := range total {
		if cut%every != 0 {
			continue
		}
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			t.Parallel()
			disk := preparedDisk(t)
			done, _ := (&drill{t: t, disk: disk, cut: cut}).run()
			for _, seed := range []uint64{vfstest.LoseAll, vfstest.InOrder + 1 + uint64(cut)} {
				after := &drill{t: t, disk: disk.AfterCut(seed)}
				t.Cleanup(func() { _ = after.disk.Close() })
				after.n = open(t, after.disk, "data", defaultBounds)
				after.q = after.n.queues
				after.n.run()
				got := after.snapshot()
				after.n.stop()
				if next := min(done+1, all); got != want[done] && got != want[next] {
					t.Errorf("seed %d: after %d steps there is\n%swant\n%sor\n%s", seed, done, got, want[done], want[next])
				}
			}
		})
	}
}

// preparedDisk returns a disk with an empty store on it.
func preparedDisk(t *testing.T) *vfstest.Disk {
	t.Helper()
	d := vfstest.NewDisk(vfstest.Never)
	t.Cleanup(func() { _ = d.Close() })
	open(t, d, "data", defaultBounds).run().stop()
	return d
}
