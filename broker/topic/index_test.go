package topic

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestIndex(t *testing.T) {
	var x Index[string, int]
	x.Match("a", func(string, int) { t.Error("an empty index matches") })
	if x.Remove("a", "c") || x.Len() != 0 {
		t.Error("removed from an empty index")
	}
	if !x.Add("a/+", "c1", 1) || x.Add("a/+", "c1", 2) || !x.Add("a/+", "c2", 3) || !x.Add("a/#", "c1", 4) {
		t.Error("Add does not know what is new")
	}
	if v, ok := x.Get("a/+", "c1"); !ok || v != 2 {
		t.Errorf("Get: %d %v, want the newer value", v, ok)
	}
	if _, ok := x.Get("a/+", "c3"); ok {
		t.Error("Get finds a key never added")
	}
	if _, ok := x.Get("a", "c1"); ok {
		t.Error("Get finds an inner node")
	}
	got := map[string]int{}
	x.Match("a/b", func(k string, v int) { got[fmt.Sprint(k, v)]++ })
	if want := map[string]int{"c12": 1, "c23": 1, "c14": 1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if x.Remove("a/+", "c3") || x.Remove("a", "c1") || !x.Remove("a/+", "c1") || x.Remove("a/+", "c1") {
		t.Error("Remove does not know what was there")
	}
	if x.Len() != 2 {
		t.Errorf("Len %d, want 2", x.Len())
	}
	x.Remove("a/+", "c2")
	x.Remove("a/#", "c1")
	if !empty(&x.tree.root) || x.Len() != 0 {
		t.Error("an index emptied keeps nodes")
	}
	x.Match("", func(string, int) { t.Error("the empty topic matches") })
}

func empty[P any](n *node[P]) bool {
	return len(n.children) == 0 && len(n.byLevel) == 0 && n.plus == nil && n.hash == nil && n.payload == nil
}

// sound checks what every tree must keep to: children know their place, maps agree, nothing is dead.
func sound[P any](t *testing.T, n *node[P]) {
	t.Helper()
	if n.parent != nil && empty(n) {
		t.Fatalf("dead node %q", n.level)
	}
	if n.byLevel != nil && len(n.byLevel) != len(n.children) {
		t.Fatalf("%d children, %d in the map", len(n.children), len(n.byLevel))
	}
	for i, c := range n.children {
		if c.at != i || c.parent != n || n.child(c.level) != c {
			t.Fatalf("child %q is lost", c.level)
		}
		sound(t, c)
	}
	for _, c := range []*node[P]{n.plus, n.hash} {
		if c != nil {
			sound(t, c)
		}
	}
}

var words = []string{"a", "b", "c", "", "$x", "d", "e", "f", "g", "h", "i", "j"}

func randomName(r *rand.Rand, wild bool) string {
	levels := make([]string, 1+r.IntN(4))
	for i := range levels {
		levels[i] = words[r.IntN(len(words))]
		if wild && r.IntN(3) == 0 {
			levels[i] = "+"
		}
	}
	if wild && r.IntN(3) == 0 {
		levels[len(levels)-1] = "#"
	}
	if s := strings.Join(levels, "/"); s != "" {
		return s
	}
	return "/"
}

// TestIndexAgainstMatch: a random life of subscriptions finds what Match finds one by one.
func TestIndexAgainstMatch(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		type pair struct {
			filter string
			key    int
		}
		var x Index[int, string]
		model := map[pair]string{}
		for range 600 {
			p := pair{randomName(r, true), r.IntN(40)}
			if r.IntN(20) == 0 { // a crowd on one filter
				p.filter = "+/a"
			}
			_, had := model[p]
			if r.IntN(3) > 0 {
				v := fmt.Sprint(p.filter, " ", r.IntN(100))
				if x.Add(p.filter, p.key, v) == had {
					t.Fatalf("seed %d: Add(%v) had %v", seed, p, had)
				}
				model[p] = v
			} else if delete(model, p); x.Remove(p.filter, p.key) != had {
				t.Fatalf("seed %d: Remove(%v) had %v", seed, p, had)
			}
		}
		sound(t, &x.tree.root)
		for range 100 {
			topic := randomName(r, false)
			var want, got []string
			for p, v := range model {
				if slowMatch(p.filter, topic) {
					want = append(want, fmt.Sprint(p.key, v))
				}
			}
			x.Match(topic, func(k int, v string) { got = append(got, fmt.Sprint(k, v)) })
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: %q finds %v, want %v", seed, topic, got, want)
			}
		}
		if x.Len() != len(model) {
			t.Fatalf("Len %d, want %d", x.Len(), len(model))
		}
		for p := range model {
			x.Remove(p.filter, p.key)
		}
		if !empty(&x.tree.root) {
			t.Fatalf("seed %d: nodes left behind", seed)
		}
	}
}

// TestNamesAgainstMatch is the same for the inverse.
func TestNamesAgainstMatch(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 2))
		var s Names[int]
		model := map[string]int{}
		for i := range 800 {
			topic := randomName(r, false)
			_, had := model[topic]
			if r.IntN(3) > 0 {
				if s.Set(topic, i) == had {
					t.Fatalf("seed %d: Set(%q) had %v", seed, topic, had)
				}
				model[topic] = i
			} else if delete(model, topic); s.Delete(topic) != had {
				t.Fatalf("seed %d: Delete(%q) had %v", seed, topic, had)
			}
		}
		sound(t, &s.tree.root)
		for range 100 {
			filter := randomName(r, true)
			want, got := map[string]int{}, map[string]int{}
			for topic, v := range model {
				if slowMatch(filter, topic) {
					want[topic] = v
				}
			}
			s.Match(filter, func(topic string, v int) bool {
				if _, twice := got[topic]; twice {
					t.Fatalf("%q twice", topic)
				}
				got[topic] = v
				return true
			})
			if !maps.Equal(got, want) {
				t.Fatalf("seed %d: %q finds %v, want %v", seed, filter, got, want)
			}
			if n := len(got); n > 1 { // fn can stop it anywhere
				left := 1 + r.IntN(n-1)
				s.Match(filter, func(string, int) bool { left--; return left > 0 })
				if left != 0 {
					t.Fatalf("seed %d: %q went on after false", seed, filter)
				}
			}
		}
		for topic, v := range model {
			if got, ok := s.Get(topic); !ok || got != v {
				t.Fatalf("Get(%q) = %d %v, want %d", topic, got, ok, v)
			}
			s.Delete(topic)
		}
		if !empty(&s.tree.root) || s.Len() != 0 {
			t.Fatalf("seed %d: nodes left behind", seed)
		}
	}
}

func TestNamesParentFirst(t *testing.T) {
	var s Names[int]
	for _, topic := range []string{"a/b/c", "a", "a/b"} {
		s.Set(topic, 0)
	}
	var got []string
	s.Match("#", func(topic string, _ int) bool { got = append(got, topic); return true })
	if want := []string{"a", "a/b", "a/b/c"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if _, ok := s.Get("a/b/c/d"); ok || s.Delete("a/x") {
		t.Error("found what is not there")
	}
}

// TestNamesCostsWhatMatches: neither a hundred thousand other topics nor a deep filter make a small answer slow.
// Visits are counted in levels looked at, not in time.
func TestNamesCostsWhatMatches(t *testing.T) {
	var s Names[int]
	for i := range 100_000 {
		s.Set(fmt.Sprintf("plant/%d/temperature", i), i)
	}
	s.Set("other/1/temperature", -1)
	for _, filter := range []string{"other/#", "other/+/temperature", "plant/77/#", "plant/77/+"} {
		n := 0
		allocs := testing.AllocsPerRun(10, func() { s.Match(filter, func(string, int) bool { n++; return true }) })
		if n != 11 || allocs != 0 { // AllocsPerRun runs once more to warm up
			t.Errorf("%q: %d found in 11 runs, %v allocations", filter, n, allocs)
		}
	}
}

// TestCrowds: many subscribers on one filter and many filters of one subscriber come and go.
func TestCrowds(t *testing.T) {
	const n = 10_000
	var x Index[int, int]
	for i := range n {
		x.Add("all/of/them", i, i)
		x.Add(fmt.Sprintf("dev/%d/state", i), 0, i)
	}
	count := 0
	x.Match("all/of/them", func(int, int) { count++ })
	x.Match("dev/5000/state", func(_ int, v int) { count += v })
	if count != n+5000 {
		t.Errorf("count %d", count)
	}
	for i := range n {
		if !x.Remove("all/of/them", i) || !x.Remove(fmt.Sprintf("dev/%d/state", n-1-i), 0) {
			t.Fatal(i)
		}
	}
	if !empty(&x.tree.root) {
		t.Error("nodes left behind")
	}
}

func TestMatchAllocates(t *testing.T) {
	var x Index[int, int]
	for i := range 100 {
		x.Add(fmt.Sprintf("plant/%d/+/temperature", i), i, i)
	}
	x.Add("#", 1, 1)
	n := 0
	if a := testing.AllocsPerRun(100, func() { x.Match("plant/7/line/temperature", func(int, int) { n++ }) }); a != 0 {
		t.Errorf("Index.Match allocates %v times", a)
	}
	if a := testing.AllocsPerRun(100, func() { Match("plant/+/line/#", "plant/7/line/temperature") }); a != 0 {
		t.Errorf("Match allocates %v times", a)
	}
	for _, topic := range []string{"plant/7/line/temperature", "$queue/jobs", "$v5/$queue/jobs", "$delayed/60/$queue/jobs", "$queue/jobs/$nack"} {
		b := []byte(topic)
		if a := testing.AllocsPerRun(100, func() {
			if _, err := ParseName(b, Limits{}); err != nil {
				t.Fatal(err)
			}
		}); a != 0 {
			t.Errorf("ParseName(%q) allocates %v times", topic, a)
		}
	}
}

// FuzzIndex: filters and topics separated by newlines; Index, Names and Match say the same, and both empty out.
func FuzzIndex(f *testing.F) {
	f.Add("a/+\n#\n+/#\na/#", "a/b\na\n$x/b")
	f.Add("$SYS/#\n+/+\n/\n//", "$SYS\n/\n/a")
	f.Fuzz(func(t *testing.T, filters, topics string) {
		var x Index[string, int]
		var s Names[int]
		var fs, ts []string
		for _, s := range strings.Split(filters, "\n") {
			if ValidFilter(s, Limits{}) == nil {
				fs = append(fs, s)
				x.Add(s, s, len(fs))
			}
		}
		for _, topic := range strings.Split(topics, "\n") {
			if ValidName([]byte(topic), Limits{}) == nil {
				ts = append(ts, topic)
				s.Set(topic, len(ts))
			}
		}
		found := map[[2]string]int{}
		for _, topic := range slices.Compact(slices.Sorted(slices.Values(ts))) {
			x.Match(topic, func(filter string, _ int) { found[[2]string{filter, topic}]++ })
		}
		for _, filter := range slices.Compact(slices.Sorted(slices.Values(fs))) {
			s.Match(filter, func(topic string, _ int) bool { found[[2]string{filter, topic}]++; return true })
			for _, topic := range ts {
				want := 0
				if slowMatch(filter, topic) {
					want = 2
				}
				if got := found[[2]string{filter, topic}]; got != want {
					t.Fatalf("filter %q topic %q: found %d times of %d", filter, topic, got, want)
				}
			}
		}
		for _, filter := range fs {
			x.Remove(filter, filter)
		}
		for _, topic := range ts {
			s.Delete(topic)
		}
		if !empty(&x.tree.root) || !empty(&s.tree.root) {
			t.Fatal("nodes left behind")
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	for b.Loop() {
		Match("plant/+/line/+/temperature", "plant/7/line/3/temperature")
	}
}

func BenchmarkIndexMatch(b *testing.B) {
	for _, filters := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprintf("filters=%d", filters), func(b *testing.B) {
			var x Index[int, int]
			for i := range filters {
				x.Add(fmt.Sprintf("plant/%d/line/+/temperature", i), i, i)
			}
			n := 0
			for b.Loop() {
				x.Match("plant/0/line/3/temperature", func(int, int) { n++ })
			}
		})
	}
}

func BenchmarkIndexFanout(b *testing.B) {
	var x Index[int, int]
	for i := range 10_000 {
		x.Add("news", i, i)
	}
	n := 0
	for b.Loop() {
		x.Match("news", func(int, int) { n++ })
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/subscriber")
}

func BenchmarkParseName(b *testing.B) {
	for _, topic := range []string{"plant/7/line/3/temperature", "$queue/jobs", "$v5/$delayed/60/$queue/jobs"} {
		b.Run("topic="+strings.ReplaceAll(topic, "/", "."), func(b *testing.B) {
			name := []byte(topic)
			for b.Loop() {
				if _, err := ParseName(name, Limits{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
