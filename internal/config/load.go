package config

import (
	"bytes"
	"errors"
	"fmt"
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

// Load reads the settings. Its error is an *Error unless the file cannot be read.
func Load(src Source) (*Config, error) {
	if src.Env == nil {
		src.Env = os.Environ()
	}
	l := loader{viper: viper.New(), origin: map[string]func(path string) string{}}
	for _, k := range keys {
		l.viper.SetDefault(k.name, fromYAML(k.def))
	}
	if src.File != "" {
		if err := l.file(src.File); err != nil {
			return nil, err
		}
	}
	if len(l.problems) == 0 {
		// What does not even have the shape of settings would only give confusing messages here.
		l.env(src.Env)
		l.settings(src.Set)
	}
	c := &Config{}
	if len(l.problems) == 0 {
		l.fill(c)
	}
	if len(l.problems) == 0 {
		l.cross(c)
	}
	if len(l.problems) > 0 {
		return nil, &Error{l.problems}
	}
	return c, nil
}

// loader gathers the layers in viper and remembers where each value came from.
type loader struct {
	viper    *viper.Viper
	origin   map[string]func(path string) string // key -> where a path at or below it was said
	problems []Problem
}

func (l *loader) file(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	doc, problems := parseDocument(path, b)
	l.problems = append(l.problems, problems...)
	if len(problems) > 0 {
		return nil
	}
	l.viper.SetConfigType("yaml")
	if err := l.viper.ReadConfig(bytes.NewReader(b)); err != nil {
		l.problems = append(l.problems, Problem{Where: path, Message: err.Error()})
		return nil
	}
	for _, k := range keys {
		if doc.has(k.name) {
			l.origin[k.name] = doc.where
		}
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
		l.origin[key] = func(string) string { return "environment variable " + name }
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
		l.origin[s.Key] = func(string) string { return s.Origin }
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
	where := ""
	if at, ok := l.origin[key]; ok {
		where = at(path)
	}
	l.problems = append(l.problems, Problem{Where: where, Key: path, Message: message})
}

// cross checks what more than one key says.
func (l *loader) cross(c *Config) {
	if c.Auth.Anonymous == AnonymousFalse && !c.Auth.users() {
		l.problem("auth.anonymous", "auth.anonymous", "false means that nobody could connect, since there are no users: set auth.users_file (edgemq passwd FILE USER writes it), or this to auto or true")
	}
	l.listeners(c)
	if c.Auth.TLSIdentity == IdentityCN && !slices.ContainsFunc(c.Listeners, func(l Listener) bool { return l.ClientCA != "" }) {
		l.problem("auth.tls_identity", "auth.tls_identity", "cn needs a listener of type tls or wss with client_ca, which asks clients for certificates")
	}
	l.adminToken(c)
	l.maxPacket("limits.max_packet", "limits.max_packet", c.Limits.MaxPacket, c)
}

// maxPacket checks a packet size: a group of the journal must hold it, and the store keeps some room for the rest of the group.
func (l *loader) maxPacket(key, path string, bytes int64, c *Config) {
	if bytes > c.Store.JournalFile/2 {
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
