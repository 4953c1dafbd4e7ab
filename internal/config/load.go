package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/viper"
)

// Source says where settings come from besides the defaults. Later ones win: File, Env, Set.
type Source struct {
	File string    // a YAML file; "" is none
	Env  []string  // NAME=value; nil means the process's own
	Set  []Setting // from the command line

	Files bool // read what the settings name and a broker reads at its start, too: users, rules, certificates
}

// Setting is a value given on the command line.
type Setting struct {
	Key    string
	Value  any
	Origin string // as the user knows it: --data
}

// Problem is something about the settings that cannot be.
type Problem struct {
	Where   string // file:line, environment variable or flag; "" if unknown
	Key     string
	Message string

	line int // in the file, 0 if it is not from there
}

func (p Problem) String() string {
	out := p.Message
	if p.Key != "" {
		out = p.Key + ": " + out
	}
	if p.Where != "" {
		out = p.Where + ": " + out
	}
	return out
}

// Error lists everything that is wrong with the settings.
type Error struct{ Problems []Problem }

func (e *Error) Error() string {
	var lines []string
	for _, p := range e.Problems {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

const (
	envPrefix = "EDGEMQ"
	// EnvFile is the environment variable that names the configuration file.
	EnvFile = envPrefix + "_CONFIG"
)

// envName is the environment variable of a key.
func envName(key string) string {
	return envPrefix + "_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// Load reads the settings. Its error is an *Error unless the file cannot be read, and names everything that is wrong: what is wrong with
// one key hides only what depends on it.
func Load(src Source) (*Config, error) {
	if src.Env == nil {
		src.Env = os.Environ()
	}
	l := loader{viper: viper.New(), origin: map[string]func(path string) (string, int){}}
	for _, k := range keys {
		l.viper.SetDefault(k.name, fromYAML(k.def))
	}
	if src.File != "" {
		if err := l.file(src.File); err != nil {
			return nil, err
		}
	}
	l.env(src.Env)
	l.settings(src.Set)
	c := &Config{}
	l.fill(c)
	l.cross(c)
	if src.Files {
		l.files(c)
	}
	if len(l.problems) > 0 {
		slices.SortStableFunc(l.problems, func(a, b Problem) int { return cmp.Compare(a.order(), b.order()) })
		return nil, &Error{l.problems}
	}
	return c, nil
}

// order puts the lines of the file first.
func (p Problem) order() int {
	if p.line == 0 {
		return math.MaxInt
	}
	return p.line
}

// loader gathers the layers in viper and remembers where each value came from.
type loader struct {
	viper    *viper.Viper
	origin   map[string]func(path string) (string, int) // key -> where, and on which line, a path at or below it was said
	problems []Problem
}

// file takes what is sound in a file and says what is not.
func (l *loader) file(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	doc, problems := parseDocument(path, b)
	l.problems = append(l.problems, problems...)
	for key, value := range doc.values {
		l.viper.Set(key, value)
		l.origin[key] = doc.where
	}
	return nil
}

func (l *loader) env(environ []string) {
	known := map[string]string{}
	var names []string
	for _, k := range keys {
		known[envName(k.name)] = k.name
		names = append(names, envName(k.name))
	}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix+"_") || name == EnvFile || value == "" || fromKubernetes(name) {
			continue
		}
		key, ok := known[name]
		if !ok {
			l.problems = append(l.problems, Problem{Where: "environment variable " + name, Message: unknown(name, names)})
			continue
		}
		l.viper.Set(key, value)
		l.origin[key] = func(string) (string, int) { return "environment variable " + name, 0 }
	}
}

// fromKubernetes reports whether Kubernetes sets the variable in the pods of a namespace that has a service
// called edgemq: nobody meant those as settings.
func fromKubernetes(name string) bool {
	rest := strings.TrimPrefix(name, envPrefix+"_")
	return rest == "PORT" || strings.HasPrefix(rest, "PORT_") || strings.HasPrefix(rest, "SERVICE_")
}

func (l *loader) settings(set []Setting) {
	for _, s := range set {
		if !slices.ContainsFunc(keys, func(k key) bool { return k.name == s.Key }) {
			l.problems = append(l.problems, Problem{Where: s.Origin, Key: s.Key, Message: unknown(s.Key, keyNames())})
			continue
		}
		l.viper.Set(s.Key, s.Value)
		l.origin[s.Key] = func(string) (string, int) { return s.Origin, 0 }
	}
}

// fill moves the values into the Config, one row of the table after the other.
func (l *loader) fill(c *Config) {
	for _, k := range keys {
		for _, p := range k.rule.set(k.field(c), l.viper.Get(k.name)) {
			l.problem(k.name, k.name+p.Key, p.Message)
		}
	}
}

// problem adds a problem at path, which belongs to key.
func (l *loader) problem(key, path, message string) {
	p := Problem{Key: path, Message: message}
	if at, ok := l.origin[key]; ok {
		p.Where, p.line = at(path)
	}
	l.problems = append(l.problems, p)
}

// sound reports whether nothing is wrong so far with any of the paths, or what lies in or around them.
func (l *loader) sound(paths ...string) bool {
	within := func(a, b string) bool {
		return a == b || strings.HasPrefix(a, b) && strings.ContainsAny(a[len(b):len(b)+1], ".[")
	}
	return !slices.ContainsFunc(l.problems, func(p Problem) bool {
		return slices.ContainsFunc(paths, func(path string) bool { return p.Key != "" && (within(p.Key, path) || within(path, p.Key)) })
	})
}

// cross checks what more than one key says, if each of them says something.
func (l *loader) cross(c *Config) {
	if l.sound("auth") {
		if c.Auth.Anonymous == AnonymousFalse && !c.Auth.users() {
			l.problem("auth.anonymous", "auth.anonymous", "false means that nobody could connect, since there are no users: set auth.users_file (edgemq passwd FILE USER writes it), or this to auto or true")
		}
		if c.Auth.TLSIdentity == IdentityCN && l.sound("listeners") && !slices.ContainsFunc(c.Listeners, func(l Listener) bool { return l.ClientCA != "" }) {
			l.problem("auth.tls_identity", "auth.tls_identity", "cn needs a listener of type tls or wss with client_ca, which asks clients for certificates")
		}
	}
	l.listeners(c)
	if l.sound("admin") {
		l.adminToken(c)
	}
	l.maxPacket("limits.max_packet", "limits.max_packet", c.Limits.MaxPacket, c)
}

// maxPacket checks a packet size: a group of the journal must hold it, and the store keeps some room for the rest of the group.
func (l *loader) maxPacket(key, path string, bytes int64, c *Config) {
	if l.sound(path, "store.journal_file") && bytes > c.Store.JournalFile/2 {
		l.problem(key, path, fmt.Sprintf("%s is more than half of store.journal_file (%s)", formatSize(bytes), formatSize(c.Store.JournalFile)))
	}
}

func keyNames() []string {
	var out []string
	for _, k := range keys {
		out = append(out, k.name)
	}
	return out
}

// AsError returns the *Error in err, if there is one.
func AsError(err error) (*Error, bool) { return errors.AsType[*Error](err) }
