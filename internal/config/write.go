package config

import (
	"bufio"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Write writes the settings as YAML that Load reads; with docs each key has its documentation, its range
// and its environment variable in front, as in config.yaml.
func (c *Config) Write(w io.Writer, docs bool) error {
	out := bufio.NewWriter(w)
	if docs {
		out.WriteString(preamble)
	}
	var section []string
	for i, k := range keys {
		path := strings.Split(k.name, ".")
		parents := path[:len(path)-1]
		common := 0
		for common < len(parents) && common < len(section) && parents[common] == section[common] {
			common++
		}
		if i > 0 && docs {
			out.WriteString("\n")
		}
		for depth := common; depth < len(parents); depth++ {
			out.WriteString(strings.Repeat("  ", depth) + parents[depth] + ":\n")
		}
		section = parents
		indent := strings.Repeat("  ", len(parents))
		if docs {
			for line := range strings.SplitSeq(k.help(), "\n") {
				out.WriteString(indent + "# " + line + "\n")
			}
		}
		value := k.rule.text(k.field(c))
		if strings.HasPrefix(value, "\n") { // a list, one item a line
			out.WriteString(indent + path[len(path)-1] + ":" + strings.ReplaceAll(value, "\n", "\n"+indent+"  ") + "\n")
		} else {
			out.WriteString(indent + path[len(path)-1] + ": " + value + "\n")
		}
	}
	return out.Flush()
}

const preamble = `# edgemq's settings: every key with its default. edgemq needs no file at all; to change something, start it
# with a file that has just the keys you change:
#
#   edgemq serve --config my.yaml
#
# Each key can also be set by the environment variable named beside it, which wins over the file, or by
# --set key=value, which wins over both. Sizes are 512, 64KiB, 1.5GiB (1024s) or 10MB (1000s); durations are 100ms, 30s,
# 1h30m, 7d, 2w. In variables and --set, lists of texts are a, b or ['a', 'b'], and lists of sections as in
# EDGEMQ_QUEUES='[{name: orders, topics: [shop/+/order]}]'. "edgemq config check FILE" checks a file and names all
# that is wrong with it, "edgemq config print" shows what is in force.

`

// help is the comment of a key in config.yaml.
func (k key) help() string {
	out := k.doc
	if l, ok := k.rule.(interface{ doc() []string }); ok {
		for _, line := range l.doc() {
			out += "\n  " + line
		}
	}
	out += "\n"
	switch r := k.rule.(type) {
	case number, size, span:
		out += strings.ToUpper(r.wants()[:1]) + r.wants()[1:] + ". "
	case words:
		out += "One of " + strings.Join(r, ", ") + ". "
	}
	return out + envName(k.name)
}

// quote writes a text as a YAML scalar.
func quote(s string) string {
	b, err := yaml.Marshal(s)
	if err != nil {
		return `""`
	}
	return strings.TrimSuffix(string(b), "\n")
}
