package sdk

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

func memory(n int) ([]*MemoryQueue, Topology) {
	var qs []*MemoryQueue
	var ws []WritableQueue
	for i := range n {
		q := &MemoryQueue{At: Partition{Broker: "memory", Topic: "T", Index: i}}
		qs, ws = append(qs, q), append(ws, q)
	}
	return qs, TopologyFunc(func(*Message) ([]WritableQueue, error) { return ws, nil })
}

func TestSendPathWithoutNetwork(t *testing.T) { // AT-56, AT-58
	qs, topology := memory(4)
	choice := 2
	p := NewProducer(nil, WithTopology(topology), WithRouter(RouterFunc(func(*Message, []Partition) int { return choice })))
	r, err := p.Send(t.Context(), NewMessage("T", []byte("x")).PutProperty("k", Int32(1)))
	if err != nil || r.Partition.Index != 2 || r.MessageID == "" {
		t.Fatalf("%+v, %v", r, err)
	}
	for i, q := range qs {
		if n := len(q.Messages()); n != map[bool]int{true: 1}[i == 2] {
			t.Fatalf("partition %d has %d messages", i, n)
		}
	}
	if m := qs[2].Messages()[0]; m.ID != r.MessageID || string(m.Body()) != "x" || m.Born.IsZero() {
		t.Fatalf("%+v", m)
	}
	for _, choice = range []int{-1, 4} {
		if _, err := p.Send(t.Context(), NewMessage("T", nil)); !errors.Is(err, ErrPartition) {
			t.Fatalf("choice %d: %v", choice, err)
		}
	}
	none := NewProducer(nil, WithTopology(TopologyFunc(func(*Message) ([]WritableQueue, error) { return nil, nil })))
	if _, err := none.Send(t.Context(), NewMessage("T", nil)); !errors.Is(err, ErrNoPartitions) {
		t.Fatal(err)
	}
}

func TestRouters(t *testing.T) { // AT-57
	for name, r := range map[string]Router{"key": KeyHash(), "ring": ConsistentHash(), "robin": RoundRobin()} {
		qs, topology := memory(8)
		p := NewProducer(nil, WithTopology(topology), WithRouter(r))
		for i := range 10000 {
			m := NewMessage("T", fmt.Append(nil, i)).PutHeader(HeaderShardingKey, String(fmt.Sprint("key", i%500)))
			if _, err := p.Send(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		if name != "robin" {
			home := map[string]int{}
			last := map[string]int{}
			used := 0
			for i, q := range qs {
				if len(q.Messages()) > 0 {
					used++
				}
				for _, m := range q.Messages() {
					key := shardingKey(m.Message)
					if at, ok := home[key]; ok && at != i {
						t.Fatalf("%s: key %s is in %d and %d", name, key, at, i)
					}
					home[key] = i
					var n int
					_, _ = fmt.Sscan(string(m.Body()), &n)
					if n < last[key] {
						t.Fatalf("%s: key %s: %d after %d", name, key, n, last[key])
					}
					last[key] = n
				}
			}
			if used != 8 {
				t.Fatalf("%s: %d of 8 partitions are used", name, used)
			}
		}
		qs, topology = memory(8)
		p = NewProducer(nil, WithTopology(topology), WithRouter(r))
		for range 1001 {
			if _, err := p.Send(t.Context(), NewMessage("T", nil)); err != nil {
				t.Fatal(err)
			}
		}
		for i, q := range qs {
			if n := len(q.Messages()); n < 125 || n > 126 {
				t.Fatalf("%s without keys: partition %d has %d of 1001", name, i, n)
			}
		}
	}
}

func TestConsistentHashMovesFewKeys(t *testing.T) {
	moved := func(r Router) int {
		ps := make([]Partition, 9)
		for i := range ps {
			ps[i] = Partition{Broker: "b", Index: i, Available: true}
		}
		n := 0
		for i := range 5000 {
			m := NewMessage("T", nil).PutHeader(HeaderShardingKey, String(fmt.Sprint("key", i)))
			before := r.Route(m, ps[:8])
			if after := r.Route(m, ps); after != before {
				n++
			}
		}
		return n
	}
	if n := moved(ConsistentHash()); n > 5000/9*2 {
		t.Fatalf("%d of 5000 keys moved when a ninth partition came", n)
	}
	if n := moved(KeyHash()); n < 3000 {
		t.Fatalf("the test is blind: with KeyHash %d keys moved", n)
	}
}

func TestLatencyTables(t *testing.T) { // AT-72
	ms := []int{40, 99, 100, 549, 550, 1000, 2999, 3000, 15000}
	for name, c := range map[string]struct {
		table   *LatencyTable
		want    []int
		failure int
	}{
		"4.x": {LatencyTable4(), []int{0, 0, 0, 0, 30, 60, 120, 180, 600}, 600},
		"5.x": {LatencyTable5(), []int{0, 0, 0, 0, 2, 2, 5, 6, 30}, 10},
	} {
		for i, l := range ms {
			if got := c.table.For(time.Duration(l) * time.Millisecond); got != time.Duration(c.want[i])*time.Second {
				t.Errorf("%s: %d ms: %v, want %d s", name, l, got, c.want[i])
			}
		}
		if got := c.table.For(c.table.Failure); got != time.Duration(c.failure)*time.Second {
			t.Errorf("%s: a failure: %v, want %d s", name, got, c.failure)
		}
	}
}

func TestAvoidance(t *testing.T) { // AT-73
	synctest.Test(t, func(t *testing.T) {
		a := avoidance{table: LatencyTable5(), now: time.Now}
		marks := func(last string) string {
			ps := []Partition{{Broker: "a"}, {Broker: "b"}, {Broker: "c"}}
			a.mark(ps, last)
			s := ""
			for _, p := range ps {
				if p.Available {
					s += p.Broker
				}
			}
			return s
		}
		check := func(last, want string) {
			t.Helper()
			if got := marks(last); got != want {
				t.Fatalf("available: %q, want %q", got, want)
			}
		}
		check("", "abc")
		a.record("a", time.Millisecond, true)
		check("", "bc")
		check("b", "c")
		a.record("b", 700*time.Millisecond, false)
		a.record("c", 700*time.Millisecond, false)
		check("", "bc") // all are avoided: those that can be reached
		a.record("b", time.Millisecond, true)
		a.record("c", time.Millisecond, true)
		check("", "abc") // none can be reached: all
		check("a", "bc")
		a.record("a", time.Millisecond, false)
		check("", "a")
		time.Sleep(10 * time.Second) // never shortened by a good sample, over after its time
		check("", "abc")
		_ = context.Background()
	})
}

func TestAllocations(t *testing.T) { // AT-59, AT-60
	for name, alloc := range map[string]Allocation{"average": Averagely(), "circle": ByCircle(), "ring": ByConsistentHash()} {
		for p := 1; p <= 32; p++ {
			for c := 1; c <= 12; c++ {
				var ps []int
				for i := range p {
					ps = append(ps, i)
				}
				var ms []string
				for i := range c {
					ms = append(ms, fmt.Sprint("m", i))
				}
				var all []int
				for _, m := range ms {
					mine, err := alloc(m, ms, ps)
					if err != nil {
						t.Fatal(err)
					}
					if name == "average" {
						for i := 1; i < len(mine); i++ {
							if mine[i] != mine[i-1]+1 {
								t.Fatalf("%v is not contiguous", mine)
							}
						}
					}
					if n := len(mine); name != "ring" && (n < p/c || n > (p+c-1)/c) {
						t.Fatalf("%s: %d of %d partitions for one of %d", name, n, p, c)
					}
					all = append(all, mine...)
				}
				slices.Sort(all)
				if !slices.Equal(all, ps) {
					t.Fatalf("%s, %d partitions, %d members: %v", name, p, c, all)
				}
			}
		}
		if mine, err := alloc("stranger", []string{"a"}, []int{0}); len(mine) != 0 || err != nil {
			t.Fatalf("%s: a stranger got %v, %v", name, mine, err)
		}
		for _, bad := range []struct {
			self    string
			members []string
			ps      []int
		}{{"", []string{"a"}, []int{0}}, {"a", nil, []int{0}}, {"a", []string{"a"}, nil}} {
			if _, err := alloc(bad.self, bad.members, bad.ps); err == nil {
				t.Errorf("%s: %+v is no error", name, bad)
			}
		}
	}
	list := ByList(map[string][]int{"a": {1, 3, 9}})
	if mine, err := list("a", []string{"a", "b"}, []int{0, 1, 2, 3}); err != nil || !reflect.DeepEqual(mine, []int{1, 3}) {
		t.Fatal(mine, err)
	}
	ring := ByConsistentHash()
	before, moved := map[int]string{}, 0
	ms := []string{"a", "b", "c", "d"}
	ps := make([]int, 64)
	for i := range ps {
		ps[i] = i
	}
	for _, m := range ms {
		mine, _ := ring(m, ms, ps)
		for _, p := range mine {
			before[p] = m
		}
	}
	for _, m := range ms[:3] {
		mine, _ := ring(m, ms[:3], ps)
		for _, p := range mine {
			if before[p] != m {
				moved++
			}
		}
	}
	if moved > 64/4*2 {
		t.Fatalf("%d of 64 partitions moved when one of 4 members left", moved)
	}
}

func TestBuffer(t *testing.T) { // AT-62
	var throttles []bool
	b := NewBuffer(BufferOptions{
		Capacity: 1000, High: 800, Low: 400, CapacityBytes: 1 << 20, HighBytes: 800 << 10, LowBytes: 400 << 10,
		OnThrottle: func(on bool) { throttles = append(throttles, on) },
	}, func(n int) int { return n })
	for i := range 1000 {
		if b.Throttled() != (i >= 800) {
			t.Fatalf("throttled with %d", i)
		}
		if err := b.Put(1); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Put(1); !errors.Is(err, ErrBufferFull) || b.Len() != 1000 {
		t.Fatal(err)
	}
	for n := 1000; n > 0; n-- {
		if b.Throttled() != (n > 400) {
			t.Fatalf("throttled with %d", n)
		}
		if _, ok := b.TryTake(); !ok {
			t.Fatal("empty")
		}
	}
	if err := b.Put(900 << 10); err != nil || !b.Throttled() {
		t.Fatal(err, b.Throttled())
	}
	if err := b.Put(200 << 10); !errors.Is(err, ErrBufferFull) {
		t.Fatal(err)
	}
	b.TryTake()
	if want := []bool{true, false, true, false}; !slices.Equal(throttles, want) {
		t.Fatalf("throttled %v", throttles)
	}
	synctest.Test(t, func(t *testing.T) {
		b := NewBuffer[int](BufferOptions{}, nil)
		done := make(chan error, 3)
		for range 3 {
			go func() { _, err := b.Take(context.Background()); done <- err }()
		}
		synctest.Wait()
		_ = b.Close()
		for range 3 {
			if err := <-done; !errors.Is(err, ErrClosed) {
				t.Fatal(err)
			}
		}
		if err := b.Put(1); !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	})
}

func TestHistory(t *testing.T) {
	var h history
	for i := range uint64(historySize + 100) {
		h.add(i + 1)
	}
	if h.has(200) {
		t.Fatal("nothing comes again before a reconnect")
	}
	h.reconnected()
	if h.has(50) || !h.has(200) || !h.has(historySize+100) {
		t.Fatal("the last ones are not remembered")
	}
	for i := range historySize + 1 {
		h.has(uint64(10*historySize + i))
	}
	if h.set != nil {
		t.Fatal("it goes on looking for ever")
	}
}

// What a lost connection says about the publishes that it leaves.
func TestStrike(t *testing.T) {
	closed := func(told bool, code byte) *link {
		l := &link{}
		if l.told.Store(told); code != 0 {
			l.closed.Store(&notice{code: code})
		}
		return l
	}
	for _, c := range []struct {
		l    *link
		want int
	}{
		{closed(false, 0), 1},                           // a broker of which we know nothing
		{closed(true, 0), 0},                            // it would have said so
		{closed(true, packet.CodeTooLarge), suspicious}, // it did
		{closed(true, packet.CodeTakenOver), 0},         // something else
	} {
		if got := strike(c.l); got != c.want {
			t.Errorf("told %v, %+v: %d, want %d", c.l.told.Load(), c.l.closed.Load(), got, c.want)
		}
	}
}
