package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// itemKey is a key of the items of a list.
type itemKey[T any] struct {
	name  string
	def   string // "" means that each item must have it
	rule  rule
	field func(*T) any
	doc   string
	only  []string // the types of items that have it; nil is all. It is written only where it is not the default
}

// isDefault reports whether the item has the key's default.
func (k itemKey[T]) isDefault(item *T) bool {
	if k.def == "" {
		return false
	}
	var def T
	k.rule.set(k.field(&def), fromYAML(k.def))
	return k.rule.text(k.field(item)) == k.rule.text(k.field(&def))
}

// list is a list of sections.
type list[T any] struct {
	keys    []itemKey[T]
	like    string // an example
	atLeast int
	unique  string             // the text key that no two items may share; "" is none
	whole   func(*T) []Problem // checks a whole item, whose keys are fine one by one; nil checks nothing
}

func (l list[T]) wants() string {
	return "a list of sections with " + strings.Join(l.names(), ", ")
}

func (l list[T]) names() []string {
	var out []string
	for _, k := range l.keys {
		out = append(out, k.name)
	}
	return out
}

// doc lists the keys of an item for config.yaml.
func (l list[T]) doc() []string {
	var out []string
	for _, k := range l.keys {
		line := k.name + ": " + k.doc
		switch {
		case k.def == "":
			line += " (needed)"
		case k.def != "[]" && k.def != "''":
			line += " (default " + k.def + ")"
		}
		out = append(out, line)
	}
	return out
}

func (l list[T]) set(dst, raw any) []Problem {
	if s, ok := raw.(string); ok { // from the environment or a flag
		var v any
		if err := yaml.Unmarshal([]byte(s), &v); err != nil {
			return []Problem{{Message: fmt.Sprintf("%s is not possible (%s): it must be %s, as in %s", show(raw), yamlMessage(err), l.wants(), l.like)}}
		}
		raw = v
	}
	items, ok := raw.([]any)
	if !ok {
		return []Problem{{Message: fmt.Sprintf("%s is not possible: it must be %s, as in %s", show(raw), l.wants(), l.like)}}
	}
	if len(items) < l.atLeast {
		return []Problem{{Message: fmt.Sprintf("there must be at least %d", l.atLeast)}}
	}
	var (
		problems []Problem
		out      = make([]T, len(items))
		seen     = map[string]int{}
	)
	for i, item := range items {
		section, ok := item.(map[string]any)
		if !ok {
			problems = append(problems, Problem{Key: fmt.Sprintf("[%d]", i), Message: show(item) + " is not possible: it must be a section with " + strings.Join(l.names(), ", ")})
			continue
		}
		found := l.setItem(&out[i], section)
		if len(found) == 0 && l.whole != nil {
			found = l.whole(&out[i])
		}
		for _, p := range found {
			p.Key = fmt.Sprintf("[%d]%s", i, p.Key)
			problems = append(problems, p)
		}
		if name, ok := section[l.unique]; ok {
			if first, twice := seen[scalar(name)]; twice {
				problems = append(problems, Problem{
					Key:     fmt.Sprintf("[%d].%s", i, l.unique),
					Message: fmt.Sprintf("%s is taken by [%d]", show(name), first),
				})
			}
			seen[scalar(name)] = i
		}
	}
	*dst.(*[]T) = out
	return problems
}

func (l list[T]) setItem(dst *T, section map[string]any) []Problem {
	var problems []Problem
	for _, k := range l.keys {
		raw, given := section[k.name]
		if !given {
			if k.def == "" {
				problems = append(problems, Problem{Message: k.name + " is missing: it must be " + k.rule.wants()})
				continue
			}
			raw = fromYAML(k.def)
		}
		for _, p := range k.rule.set(k.field(dst), raw) {
			p.Key = "." + k.name + p.Key
			problems = append(problems, p)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(section)) {
		if !slices.Contains(l.names(), name) {
			problems = append(problems, Problem{Key: "." + name, Message: unknown(name, l.names())})
		}
	}
	return problems
}

// text writes the list as YAML, one item a line.
func (l list[T]) text(dst any) string {
	items := *dst.(*[]T)
	if len(items) == 0 {
		return "[]"
	}
	var b strings.Builder
	for i := range items {
		for j, k := range l.keys {
			if len(k.only) > 0 && k.isDefault(&items[i]) {
				continue
			}
			lead := "\n  "
			if j == 0 {
				lead = "\n- "
			}
			b.WriteString(lead + k.name + ": " + k.rule.text(k.field(&items[i])))
		}
	}
	return b.String()
}

func fromYAML(s string) any {
	var v any
	if err := yaml.Unmarshal([]byte(s), &v); err != nil {
		panic("config: " + s + ": " + err.Error()) // a row of the table; Default is tested
	}
	return v
}
