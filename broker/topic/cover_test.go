package topic

import (
	"testing"
)

func TestCovers(t *testing.T) {
	tests := []struct {
		outer, inner string
		want         bool
	}{
		{"a", "a", true},
		{"a", "a/b", false},
		{"allowed", "allowed/secret", false},
		{"allowed/#", "allowed", true},
		{"allowed/#", "allowed/secret", true},
		{"allowed/#", "allowed/#", true},
		{"allowed/#", "#", false},
		{"a/+", "a/b", true},
		{"a/+", "a/+", true},
		{"a/+", "a/#", false},
		{"a/b", "a/+", false},
		{"a/+/#", "a/#", false}, // a itself
		{"a/#", "a/+/#", true},
		{"#", "+/#", true},
		{"+/#", "#", true},
		{"#", "$SYS/#", false},
		{"+/x", "$aws/x", false},
		{"#", "$queue/q", false},
		{"$SYS/#", "$SYS/broker/+", true},
		{"$queue/+", "$queue/q", true},
		{"/#", "/", true},
		{"+", "/", false},
		{"+/+", "/", true},
	}
	for _, tt := range tests {
		if got := Covers(tt.outer, tt.inner); got != tt.want {
			t.Errorf("Covers(%q, %q) = %v", tt.outer, tt.inner, got)
		}
	}
}

// Covers and Overlap against what they mean, for all filters and topics of up to three levels from a few: a level that no
// filter names stands for all others.
func TestCoversAgainstMatch(t *testing.T) {
	topics := paths(3, []string{"a", "b", "$d", "", "other"}) // the empty one too, which is no topic: /# stands for it
	var filters []string
	for _, f := range paths(3, []string{"a", "b", "$d", "", "+", "#"}) {
		if ValidFilter(f, Limits{}) == nil {
			filters = append(filters, f)
		}
	}
	// Topics of four levels tell # from +/+/+.
	for _, p := range paths(3, []string{"a", "$d", "", "other"}) {
		topics = append(topics, p+"/other/other")
	}
	matches := make([][]bool, len(filters))
	for i, f := range filters {
		for _, name := range topics {
			matches[i] = append(matches[i], Match(f, name))
		}
	}
	for i, outer := range filters {
		for j, inner := range filters {
			covers, overlap := true, false
			for k := range topics {
				covers = covers && (matches[i][k] || !matches[j][k])
				overlap = overlap || matches[i][k] && matches[j][k]
			}
			if got := Covers(outer, inner); got != covers {
				t.Fatalf("Covers(%q, %q) = %v", outer, inner, got)
			}
			if got := Overlap(outer, inner); got != overlap {
				t.Fatalf("Overlap(%q, %q) = %v", outer, inner, got)
			}
		}
	}
}

// paths returns all paths of up to so many of the levels.
func paths(depth int, levels []string) (all []string) {
	last := []string{}
	for range depth {
		var next []string
		for _, l := range levels {
			if len(last) == 0 {
				next = append(next, l)
			}
			for _, p := range last {
				next = append(next, p+"/"+l)
			}
		}
		all = append(all, next...)
		last = next
	}
	return all
}

func FuzzCovers(f *testing.F) {
	f.Add("a/#", "a/+", "a/b")
	f.Add("#", "$SYS/#", "$SYS/x")
	f.Add("+/+", "/#", "/")
	f.Fuzz(func(t *testing.T, a, b, name string) {
		if ValidFilter(a, Limits{}) != nil || ValidFilter(b, Limits{}) != nil || ValidName([]byte(name), Limits{}) != nil {
			return
		}
		inA, inB := Match(a, name), Match(b, name)
		if inA && inB && !Overlap(a, b) {
			t.Errorf("%q and %q both match %q", a, b, name)
		}
		if inB && !inA && Covers(a, b) {
			t.Errorf("%q is matched by %q and not by %q", name, b, a)
		}
		if !Covers(a, a) || !Overlap(a, a) {
			t.Errorf("%q and itself", a)
		}
	})
}
