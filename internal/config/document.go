package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is a YAML file's keys, the lines they stand on, and the values of those that nothing is wrong with.
type document struct {
	path   string
	lines  map[string]int // "store.sync", "listeners[0].address"
	values map[string]any // "store.sync"
}

// parseDocument finds the keys of the file and refuses the unknown ones.
func parseDocument(path string, b []byte) (*document, []Problem) {
	d := &document{path: path, lines: map[string]int{}, values: map[string]any{}}
	var top *yaml.Node
	for dec, n := yaml.NewDecoder(bytes.NewReader(b)), 0; ; n++ {
		var root yaml.Node
		if err := dec.Decode(&root); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return d, []Problem{syntaxProblem(path, err)}
		}
		next := root.Content[0]
		if next.Kind == yaml.ScalarNode && next.Tag == "!!null" {
			continue // nothing but comments
		}
		if n > 0 { // a reader that stops at the end of the first one would ignore it
			return d, []Problem{{Where: d.at(next.Line), line: next.Line, Message: "a second document begins here (after ---): settings are one"}}
		}
		top = next
	}
	if top == nil {
		return d, nil // an empty file
	}
	if top.Kind != yaml.MappingNode {
		return d, []Problem{{Where: d.at(top.Line), line: top.Line, Message: "this is not a list of settings like \"data: ./data\""}}
	}
	return d, d.section(top, "")
}

// yamlMessage is an error of the YAML package without its own name.
func yamlMessage(err error) string { return strings.TrimPrefix(err.Error(), "yaml: ") }

var yamlLine = regexp.MustCompile(`^line ([0-9]+): (.*)$`)

// syntaxProblem says where a file is no YAML. The parser stops there, so nothing is known of the rest.
func syntaxProblem(path string, err error) Problem {
	message := yamlMessage(err)
	p := Problem{Where: path}
	if m := yamlLine.FindStringSubmatch(message); m != nil {
		p.line, _ = strconv.Atoi(m[1])
		p.Where, message = path+":"+m[1], m[2]
	}
	p.Message = "this is not YAML: " + message
	if strings.Contains(message, "cannot start any token") {
		p.Message += "; indent with spaces, not tabs, and put texts with special characters in quotes"
	}
	return p
}

func (d *document) at(line int) string { return fmt.Sprintf("%s:%d", d.path, line) }

func (d *document) has(key string) bool { _, ok := d.lines[key]; return ok }

// where finds the line of a path or, failing that, of what it lies in.
func (d *document) where(path string) (where string, line int) {
	for {
		if line, ok := d.lines[path]; ok {
			return d.at(line), line
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return d.path, 0
		}
		path = path[:cut]
	}
}

// section walks a mapping whose keys are settings or sections of settings.
func (d *document) section(n *yaml.Node, prefix string) []Problem {
	var problems []Problem
	names := keyNames()
	namesAndSections := withSections(names)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], resolve(n.Content[i+1])
		path := prefix + k.Value
		problem := func(message string) {
			problems = append(problems, Problem{Where: d.at(k.Line), line: k.Line, Key: path, Message: message})
		}
		isKey := slices.Contains(names, path)
		isSection := slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, path+".") })
		switch first, twice := d.lines[path]; {
		case twice:
			problem(fmt.Sprintf("it is there twice, first on line %d", first))
			continue
		case !isKey && !isSection:
			problem(unknown(path, namesAndSections))
			continue
		}
		d.lines[path] = k.Line
		switch null := v.Kind == yaml.ScalarNode && v.Tag == "!!null"; {
		case null && isSection:
			// a section whose settings are all commented out
		case null:
			problem("it has no value; leave the key out to have its default")
		case isKey:
			if number := misread(path, v); number != "" {
				problem(fmt.Sprintf("without quotes %s is the number %s; put it in quotes", v.Value, number))
				continue
			}
			twice := d.index(v, path)
			problems = append(problems, twice...)
			var value any
			switch err := v.Decode(&value); {
			case len(twice) > 0:
			case err != nil:
				problem(yamlMessage(err))
			default:
				d.values[path] = value
			}
		case v.Kind != yaml.MappingNode:
			problem("it is a section, not a value: " + strings.Join(below(names, path), ", "))
		default:
			problems = append(problems, d.section(v, path+".")...)
		}
	}
	return problems
}

// misread says as which number YAML reads what is meant as a text, if other characters come out of it: a token 0123 would be 83.
func misread(path string, n *yaml.Node) string {
	isText := slices.ContainsFunc(keys, func(k key) bool {
		_, ok := k.rule.(text)
		return ok && k.name == path
	})
	if !isText || n.Kind != yaml.ScalarNode || n.Tag != "!!int" && n.Tag != "!!float" {
		return ""
	}
	var raw any
	if err := n.Decode(&raw); err != nil || scalar(raw) == n.Value {
		return ""
	}
	return scalar(raw)
}

// index notes the lines of what is in a value, and says which keys are there twice.
// It leaves aliases alone, which may lead back to where they are.
func (d *document) index(n *yaml.Node, path string) (problems []Problem) {
	switch n.Kind {
	case yaml.SequenceNode:
		for i, item := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			d.lines[at] = item.Line
			problems = append(problems, d.index(item, at)...)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			at, line := path+"."+n.Content[i].Value, n.Content[i].Line
			if first, twice := d.lines[at]; twice {
				problems = append(problems, Problem{Where: d.at(line), line: line, Key: at, Message: fmt.Sprintf("it is there twice, first on line %d", first)})
				continue
			}
			d.lines[at] = line
			problems = append(problems, d.index(n.Content[i+1], at)...)
		}
	}
	return problems
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// withSections adds the sections that the names lie in.
func withSections(names []string) []string {
	out := slices.Clone(names)
	for _, name := range names {
		for i, r := range name {
			if r == '.' && !slices.Contains(out, name[:i]) {
				out = append(out, name[:i])
			}
		}
	}
	return out
}

func below(names []string, path string) []string {
	var out []string
	for _, name := range names {
		if strings.HasPrefix(name, path+".") {
			out = append(out, name)
		}
	}
	return out
}

// unknown says that there is no such key and which one may have been meant.
func unknown(name string, names []string) string {
	const message = "there is no such key"
	if near := nearest(name, names); near != "" {
		return message + "; is " + near + " meant?"
	}
	return message
}

// nearest is the name a user most likely meant, or "".
func nearest(name string, names []string) string {
	last := func(s string) string { return s[strings.LastIndexByte(s, '.')+1:] }
	best, bestCost := "", len(name)/2+1
	for _, candidate := range names {
		cost := distance(strings.ToLower(name), strings.ToLower(candidate))
		if last(name) == last(candidate) { // the right key in the wrong section
			cost = min(cost, 1)
		}
		if cost < bestCost {
			best, bestCost = candidate, cost
		}
	}
	return best
}

// distance is how many letters must change to make a into b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
