package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite config.yaml from the table of keys")

const reference = "../../config.yaml"

// config.yaml is what Write makes of the defaults: every key, each with its default.
func TestReferenceFileIsTheTable(t *testing.T) {
	var want bytes.Buffer
	if err := Default().Write(&want, true); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(reference, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("config.yaml differs from the table of keys: go test ./internal/config -update")
	}
}

// What the file says is read back as the defaults, so the file cannot mislead.
func TestReferenceFileHoldsTheDefaults(t *testing.T) {
	b, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	doc, problems := parseDocument(reference, b)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, k := range keys {
		if !doc.has(k.name) {
			t.Errorf("%s is missing in config.yaml", k.name)
		}
	}
	c, err := Load(Source{File: reference, Env: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, Default()) {
		t.Errorf("config.yaml says %+v, the defaults are %+v", c, Default())
	}
}

// Every field of Config has its row in the table.
func TestEveryFieldHasAKey(t *testing.T) {
	c := &Config{}
	reached := map[uintptr]string{}
	for _, k := range keys {
		reached[reflect.ValueOf(k.field(c)).Pointer()] = k.name
	}
	if len(reached) != len(keys) {
		t.Errorf("%d keys set %d fields", len(keys), len(reached))
	}
	var walk func(v reflect.Value, path string)
	walk = func(v reflect.Value, path string) {
		for i := range v.NumField() {
			f, name := v.Field(i), path+v.Type().Field(i).Name
			if f.Kind() == reflect.Struct {
				walk(f, name+".")
				continue
			}
			if reached[f.Addr().Pointer()] == "" {
				t.Errorf("Config.%s has no key", name)
			}
		}
	}
	walk(reflect.ValueOf(c).Elem(), "")
}

func TestEveryKeyHasADoc(t *testing.T) {
	for _, k := range keys {
		if k.doc == "" || !strings.HasSuffix(k.doc, ".") {
			t.Errorf("%s: doc %q is not a sentence", k.name, k.doc)
		}
		for line := range strings.SplitSeq(k.help(), "\n") {
			if len(line) > 125 {
				t.Errorf("%s: doc line of %d bytes", k.name, len(line))
			}
		}
	}
}

func load(t *testing.T, yaml string, env []string, set ...Setting) (*Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "my.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o644); err != nil {
		t.Fatal(err)
	}
	if env == nil {
		env = []string{}
	}
	c, err := Load(Source{File: file, Env: env, Set: set})
	if e, ok := AsError(err); ok {
		for i := range e.Problems {
			e.Problems[i].Where = strings.ReplaceAll(e.Problems[i].Where, file, "my.yaml")
		}
	}
	return c, err
}

// listener is one with the defaults.
func listener(name, kind, address string) Listener {
	return Listener{Name: name, Type: kind, Address: address, ClientCert: "require", TLSMin: "1.2", Path: "/mqtt", Origins: []string{}, Mode: "0660"}
}

func TestAccepted(t *testing.T) {
	tests := []struct {
		name string
		yaml string
		env  []string
		set  []Setting
		want func(c *Config)
	}{
		{"an empty file", "", nil, nil, func(*Config) {}},
		{"nothing but comments", "# hello\n", nil, nil, func(*Config) {}},
		{"a section without settings", "store:\n  # sync: none\n", nil, nil, func(*Config) {}},
		{"a word", "store: {sync: none}", nil, nil, func(c *Config) { c.Store.Sync = "none" }},
		{"a word in capitals", "log: {level: DEBUG}", nil, nil, func(c *Config) { c.Log.Level = "debug" }},
		{"true is a word too", "auth: {anonymous: true}", nil, nil, func(c *Config) { c.Auth.Anonymous = AnonymousTrue }},
		{"sizes", "store: {journal_file: 32MiB, segment_bytes: 1.5GiB, tail_bytes: 2000000, cache_bytes: 10MB}", nil, nil, func(c *Config) {
			c.Store.JournalFile, c.Store.SegmentBytes, c.Store.TailBytes, c.Store.CacheBytes = 32<<20, 3<<29, 2000000, 10000000
		}},
		{"days", "retention: {age: 1w1d12h}", nil, nil, func(c *Config) { c.Retention.Age = 8*day + 12*time.Hour }},
		{"the environment wins over the file", "store: {sync: none}", []string{"EDGEMQ_STORE_SYNC=interval"}, nil, func(c *Config) { c.Store.Sync = "interval" }},
		{"a flag wins over the environment", "store: {sync: none}", []string{"EDGEMQ_STORE_SYNC=interval"}, []Setting{{"store.sync", "always", "--set"}}, func(*Config) {}},
		{"an empty variable is none", "store: {sync: none}", []string{"EDGEMQ_STORE_SYNC="}, nil, func(c *Config) { c.Store.Sync = "none" }},
		{"one variable leaves its neighbours", "store: {sync: none, qos0: false}", []string{"EDGEMQ_STORE_SYNC=interval"}, nil, func(c *Config) {
			c.Store.Sync, c.Store.QoS0 = "interval", false
		}},
		{"what Kubernetes sets", "", []string{"EDGEMQ_SERVICE_HOST=10.0.0.1", "EDGEMQ_PORT_1883_TCP=tcp://10.0.0.1:1883", "EDGEMQ_PORT=x", "EDGEMQ_CONFIG=x"}, nil, func(*Config) {}},
		{"a list from the environment", "", []string{"EDGEMQ_STORE_EXCLUDE=video/#, +/debug"}, nil, func(c *Config) { c.Store.Exclude = []string{"video/#", "+/debug"} }},
		{"a YAML list from the environment", "", []string{"EDGEMQ_STORE_EXCLUDE= [video/#, '+/debug', '[x]/y']"}, nil, func(c *Config) {
			c.Store.Exclude = []string{"video/#", "+/debug", "[x]/y"}
		}},
		{"one over several lines", "", []string{"EDGEMQ_STORE_EXCLUDE=- video/#\n- a,b/c\n"}, nil, func(c *Config) { c.Store.Exclude = []string{"video/#", "a,b/c"} }},
		{"an empty one over what the file says", "store: {exclude: [a]}", []string{"EDGEMQ_STORE_EXCLUDE=[]"}, nil, func(c *Config) { c.Store.Exclude = []string{} }},
		{"a YAML list in a flag", "", nil, []Setting{{"store.exclude", "[a, b]", "--set"}}, func(c *Config) { c.Store.Exclude = []string{"a", "b"} }},
		{"sections from the environment", "", []string{"EDGEMQ_QUEUES=[{name: q, topics: [a/#]}]"}, nil, func(c *Config) {
			c.Queues = []Queue{queue("q", "a/#")}
		}},
		{"queues", "queues:\n- name: orders\n  topics: [shop/+/order, 'web/#']\n- name: direct\n", nil, nil, func(c *Config) {
			c.Queues = []Queue{queue("orders", "shop/+/order", "web/#"), queue("direct")}
		}},
		{"ages by topic", "retention: {age: 30d, topics: [{filter: 'raw/#', age: 1h}, {filter: 'audit/#', age: 0}]}", nil, nil, func(c *Config) {
			c.Retention.Age, c.Retention.Topics = 30*day, []TopicRetention{{"raw/#", time.Hour}, {"audit/#", 0}}
		}},
		{"a listener's defaults", "listeners: [{name: a, address: 'localhost:0'}]", nil, nil, func(c *Config) {
			c.Listeners = []Listener{listener("a", "tcp", "localhost:0")}
		}},
		{"from everywhere, if it is said", "listeners: [{name: a, address: ':1883'}]\nauth: {anonymous: true}", nil, nil, func(c *Config) {
			c.Listeners, c.Auth.Anonymous = []Listener{listener("a", "tcp", ":1883")}, AnonymousTrue
		}},
		{"every listener", "listeners:\n" +
			"- {name: a, type: tls, address: ':8883', cert: c.pem, key: k.pem, client_ca: ca.pem, tls_min: 1.3, max_packet: 64KiB, connect_timeout: 3s}\n" +
			"- {name: b, type: wss, address: '127.0.0.1:0', cert: c.pem, key: k.pem, path: /a/b, origins: ['*.example.com']}\n" +
			"- {name: c, type: unix, address: /run/edgemq.sock, mode: '0600'}\n", nil, nil, func(c *Config) {
			a, b, u := listener("a", "tls", ":8883"), listener("b", "wss", "127.0.0.1:0"), listener("c", "unix", "/run/edgemq.sock")
			a.Cert, a.Key, a.ClientCA, a.TLSMin, a.MaxPacket, a.ConnectTimeout = "c.pem", "k.pem", "ca.pem", "1.3", 64<<10, 3*time.Second
			b.Cert, b.Key, b.Path, b.Origins = "c.pem", "k.pem", "/a/b", []string{"*.example.com"}
			u.Mode = "0600"
			c.Listeners = []Listener{a, b, u}
		}},
		{"an alias", "retention: {age: &a 1h, topics: [{filter: x, age: *a}]}", nil, nil, func(c *Config) {
			c.Retention.Age, c.Retention.Topics = time.Hour, []TopicRetention{{"x", time.Hour}}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := load(t, tt.yaml, tt.env, tt.set...)
			if err != nil {
				t.Fatal(err)
			}
			want := Default()
			tt.want(want)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			// What Write writes means the same, with and without docs.
			for _, docs := range []bool{false, true} {
				var b bytes.Buffer
				if err := got.Write(&b, docs); err != nil {
					t.Fatal(err)
				}
				again, err := load(t, b.String(), nil)
				if err != nil || !reflect.DeepEqual(again, got) {
					t.Errorf("written and read again: %+v, %v\n%s", again, err, b.String())
				}
			}
		})
	}
}

func TestRefused(t *testing.T) {
	tests := []struct {
		name string
		yaml string
		env  []string
		set  []Setting
		want string
	}{
		{"a mistyped key", "store:\n  sinc: always\n", nil, nil, "my.yaml:2: store.sinc: there is no such key; is store.sync meant?"},
		{"a key in the wrong section", "sync: none\n", nil, nil, "my.yaml:1: sync: there is no such key; is store.sync meant?"},
		{"a mistyped section", "stroe: {sync: none}\n", nil, nil, "my.yaml:1: stroe: there is no such key; is store meant?"},
		{"a key like nothing", "frobnicate_the_widget: 1\n", nil, nil, "my.yaml:1: frobnicate_the_widget: there is no such key"},
		{"a key in a listener", "listeners:\n- name: a\n  adress: 127.0.0.1:1\n  address: 127.0.0.1:1\n", nil, nil, "my.yaml:3: listeners[0].adress: there is no such key; is address meant?"},
		{"a wrong word", "\nstore:\n  sync: sometimes\n", nil, nil, `my.yaml:3: store.sync: "sometimes" is not possible: it must be always, interval or none`},
		{"too small", "limits: {max_packet: 10}\n", nil, nil, `my.yaml:1: limits.max_packet: "10" is not possible: it must be a size from 1KiB to 268435455`},
		{"too large", "session: {window: 65536}\n", nil, nil, `my.yaml:1: session.window: "65536" is not possible: it must be a whole number from 1 to 65535`},
		{"more than the store takes", "store: {journal_file: 4GiB}\n", nil, nil, `my.yaml:1: store.journal_file: "4GiB" is not possible: it must be a size from 4MiB to 2GiB`},
		{"a segment as large", "store: {segment_bytes: 4095MiB}\n", nil, nil, `my.yaml:1: store.segment_bytes: "4095MiB" is not possible: it must be a size from 1MiB to 2GiB`},
		{"negative", "retention: {age: -1s}\n", nil, nil, `my.yaml:1: retention.age: "-1s" is not possible: it must be 0 or a duration from 1s to 36500d`},
		{"no unit", "retention: {age: 10}\n", nil, nil, `my.yaml:1: retention.age: "10" is not possible: it must be 0 or a duration from 1s to 36500d, as in 30s, 1h30m or 7d`},
		{"an unknown unit", "retention: {age: 7days, bytes: 10 parsec}\n", nil, nil, `my.yaml:1: retention.age: "7days" is not possible: it must be 0 or a duration from 1s to 36500d, as in 30s, 1h30m or 7d
my.yaml:1: retention.bytes: "10 parsec" is not possible: it must be 0 or a size from 1MiB to 1048576TiB, as in 512, 64KiB or 10MB`},
		{"more than an int64", "store: {tail_bytes: 9999999999TiB}\n", nil, nil, `my.yaml:1: store.tail_bytes: "9999999999TiB" is not possible: it must be a size from 1MiB to 64GiB`},
		{"not a number", "session: {window: many}\n", nil, nil, `my.yaml:1: session.window: "many" is not possible: it must be a whole number from 1 to 65535`},
		{"a fraction", "session: {window: 1.5}\n", nil, nil, `my.yaml:1: session.window: "1.5" is not possible: it must be a whole number from 1 to 65535`},
		{"a list for a value", "data: [a]\n", nil, nil, "my.yaml:1: data: a list is not possible: it must be a directory"},
		{"a section for a text", "data: {a: b}\n", nil, nil, "my.yaml:1: data: a section is not possible: it must be a directory"},
		{"an empty section for a token", "admin: {token: {}}\n", nil, nil, "my.yaml:1: admin.token: a section is not possible: it must be a text"},
		{"a text with a zero byte", "data: \"a\\0\"\n", nil, nil, `my.yaml:1: data: "a\x00" is not possible: it must be a directory`},
		{"a token that YAML reads as another number", "admin: {token: 0123}\n", nil, nil, "my.yaml:1: admin.token: without quotes 0123 is the number 83; put it in quotes"},
		{"a section for a value", "store: {sync: {a: b}}\n", nil, nil, "my.yaml:1: store.sync: a section is not possible: it must be always, interval or none"},
		{"a value for a section", "log: debug\n", nil, nil, "my.yaml:1: log: it is a section, not a value: log.level, log.format"},
		{"a value for a list", "queues: orders\n", nil, nil, `my.yaml:1: queues: "orders" is not possible: it must be a list of sections with name, topics, max_in_flight, max_deliveries, retry_delay, dead_letter, ordered, exclusive, ack_timeout, max_messages, max_bytes, max_age, overflow, as in [{name: orders, topics: [shop/+/order]}]`},
		{"nothing", "data:\n", nil, nil, "my.yaml:1: data: it has no value; leave the key out to have its default"},
		{"empty", "data: ''\n", nil, nil, `my.yaml:1: data: "" is not possible: it is empty; it must be a directory`},
		{"twice", "data: a\ndata: b\n", nil, nil, "my.yaml:2: data: it is there twice, first on line 1"},
		{"not YAML", "data: [\n", nil, nil, "my.yaml:1: this is not YAML: did not find expected node content"},
		{"not settings", "hello\n", nil, nil, `my.yaml:1: this is not a list of settings like "data: ./data"`},
		{"no listeners", "listeners: []\n", nil, nil, "my.yaml:1: listeners: there must be at least 1"},
		{"a listener's type", "listeners:\n- {name: a, address: 'localhost:1', type: udp}\n", nil, nil, `my.yaml:2: listeners[0].type: "udp" is not possible: it must be tcp, tls, ws, wss or unix`},
		{"a listener without address", "listeners:\n- {name: a}\n", nil, nil, "my.yaml:2: listeners[0]: address is missing: it must be host:port, as in 127.0.0.1:1883"},
		{"an impossible port", "listeners:\n- name: a\n  address: localhost:70000\n", nil, nil, `my.yaml:3: listeners[0].address: "localhost:70000" is not possible: port "70000" is not from 0 to 65535; it must be host:port, as in 127.0.0.1:1883`},
		{"a listener without certificate", "listeners:\n- {name: a, type: tls, address: 'localhost:1', cert: x}\n", nil, nil, "my.yaml:2: listeners[0]: a listener of type tls needs cert and key"},
		{"a certificate for nothing", "listeners:\n- name: a\n  address: localhost:1\n  cert: x\n", nil, nil, "my.yaml:4: listeners[0].cert: a listener of type tcp has none: it is for tls and wss"},
		{"a path for nothing", "listeners: [{name: a, type: unix, address: x, path: /a}]\n", nil, nil, "my.yaml:1: listeners[0].path: a listener of type unix has none: it is for ws and wss"},
		{"no path", "listeners: [{name: a, type: ws, address: 'localhost:1', path: mqtt}]\n", nil, nil, `my.yaml:1: listeners[0].path: "mqtt" is not possible: that is not a path; it must be a path, as in /mqtt`},
		{"no mode", "listeners: [{name: a, type: unix, address: x, mode: 0660}]\n", nil, nil, `my.yaml:1: listeners[0].mode: "432" is not possible: these are not permissions; it must be octal permissions in quotes, as in '0660'`},
		{"a listener's packets", "listeners: [{name: a, address: 'localhost:1', max_packet: 100MiB}]\n", nil, nil, "my.yaml:1: listeners[0].max_packet: 100MiB is more than half of store.journal_file (64MiB)"},
		{"certificates that are only requested", "listeners: [{name: a, type: tls, address: ':1', cert: x, key: x, client_ca: x, client_cert: request}]\n", nil, nil, "my.yaml:1: listeners[0].address: :1 can be reached from other machines, and anybody there could connect without a password: set auth.users_file (edgemq passwd FILE USER writes it), or auth.anonymous to true if that is meant, or listen on 127.0.0.1"},
		{"a name twice", "queues:\n- name: a\n- name: b\n- name: a\n", nil, nil, `my.yaml:4: queues[2].name: "a" is taken by [0]`},
		{"an address twice", "listeners:\n- {name: a, address: 'localhost:1'}\n- {name: b, address: 'localhost:1'}\n- {name: c, address: 'localhost:0'}\n- {name: d, address: 'localhost:0'}\n", nil, nil, `my.yaml:3: listeners[1].address: "localhost:1" is taken by [0]`},
		{"a queue's name", "queues: [{name: a b}]\n", nil, nil, `my.yaml:1: queues[0].name: "a b" is not possible: that is not a queue name; it must be 1 to 128 of A-Z a-z 0-9 _ . -`},
		{"a queue's dead letters", "queues:\n- name: a\n  dead_letter: a\n", nil, nil, "my.yaml:3: queues[0].dead_letter: a queue cannot be its own dead letter queue: leave it out, or name another"},
		{"a queue's topics", "queues:\n- name: a\n  topics:\n  - x/#\n  - a/#/b\n", nil, nil, `my.yaml:5: queues[0].topics[1]: "a/#/b" is not possible: # must be a level of its own and the last one`},
		{"a filter", "store: {exclude: [a+]}\n", nil, nil, `my.yaml:1: store.exclude[0]: "a+" is not possible: + must be a level of its own`},
		{"a special filter", "store: {exclude: [$queue/a]}\n", nil, nil, `my.yaml:1: store.exclude[0]: "$queue/a" is not possible: names that begin with $queue, $share, $s, $delayed, $exclusive, $v5, $edgemq or $SYS are not stored topics`},
		{"from everywhere", "listeners:\n- name: a\n  address: :1883\n", nil, nil, "my.yaml:3: listeners[0].address: :1883 can be reached from other machines, and anybody there could connect without a password: set auth.users_file (edgemq passwd FILE USER writes it), or auth.anonymous to true if that is meant, or listen on 127.0.0.1"},
		{"nobody", "auth: {anonymous: false}\n", nil, nil, "my.yaml:1: auth.anonymous: false means that nobody could connect, since there are no users: set auth.users_file (edgemq passwd FILE USER writes it), or this to auto or true"},
		{"nobody without users", "auth: {anonymous: false, acl_file: x}\n", nil, nil, "my.yaml:1: auth.anonymous: false means that nobody could connect, since there are no users: set auth.users_file (edgemq passwd FILE USER writes it), or this to auto or true"},
		{"names of certificates that nobody asks for", "auth: {users_file: x, tls_identity: cn}\n", nil, nil, "my.yaml:1: auth.tls_identity: cn needs a listener of type tls or wss with client_ca, which asks clients for certificates"},
		{
			"a listener without certificates beside one with", "auth: {tls_identity: cn}\nlisteners:\n- {name: a, type: tls, address: ':1', cert: x, key: x, client_ca: x}\n- {name: b, address: 'localhost:2'}\n", nil, nil,
			"my.yaml:4: listeners[1]: nobody could connect, as no name is enough: set auth.users_file (edgemq passwd FILE USER writes it), or auth.anonymous to loopback or true",
		},
		{"packets larger than a group", "limits: {max_packet: 100MiB}\n", nil, nil, "my.yaml:1: limits.max_packet: 100MiB is more than half of store.journal_file (64MiB)"},
		{"an unknown variable", "", []string{"EDGEMQ_STORE_SINC=none"}, nil, "environment variable EDGEMQ_STORE_SINC: there is no such key; is EDGEMQ_STORE_SYNC meant?"},
		{"a variable's value", "", []string{"EDGEMQ_STORE_SYNC=maybe"}, nil, `environment variable EDGEMQ_STORE_SYNC: store.sync: "maybe" is not possible: it must be always, interval or none`},
		{"a variable that is no list", "", []string{"EDGEMQ_QUEUES=orders"}, nil, `environment variable EDGEMQ_QUEUES: queues: "orders" is not possible: it must be a list of sections with name, topics, max_in_flight, max_deliveries, retry_delay, dead_letter, ordered, exclusive, ack_timeout, max_messages, max_bytes, max_age, overflow, as in [{name: orders, topics: [shop/+/order]}]`},
		{"a variable that is almost a list", "", []string{"EDGEMQ_STORE_EXCLUDE=[a/#, b"}, nil, `environment variable EDGEMQ_STORE_EXCLUDE: store.exclude: "[a/#, b" is not possible: it begins as a list in YAML and is none (line 1: did not find expected ',' or ']'); it must be a list of topic filters, as in video/#, +/debug or [video/#, +/debug]`},
		{"a variable that begins with a list", "", []string{"EDGEMQ_STORE_EXCLUDE=[a/#]: b"}, nil, `environment variable EDGEMQ_STORE_EXCLUDE: store.exclude: "[a/#]: b" is not possible: it begins as a list in YAML and is none (invalid map key: []interface {}{"a/#"}); it must be a list of topic filters, as in video/#, +/debug or [video/#, +/debug]`},
		{"quotes in a variable", "", []string{`EDGEMQ_STORE_EXCLUDE="a/#","b"`}, nil, `environment variable EDGEMQ_STORE_EXCLUDE: store.exclude: "\"a/#\",\"b\"" is not possible: quotes belong to a list in brackets; it must be a list of topic filters, as in video/#, +/debug or [video/#, +/debug]`},
		{"a flag's value", "", nil, []Setting{{"data", "", "--data"}}, `--data: data: "" is not possible: it is empty; it must be a directory`},
		{"an unknown flag key", "", nil, []Setting{{"store.synk", "none", "--set"}}, "--set: store.synk: there is no such key; is store.sync meant?"},
		{
			"all that is wrong is said, line by line", "store: {sync: x, sinc: y}\nlisteners:\n- {name: a, address: 'localhost:70000'}\n- {name: b, address: ':1'}\n- {name: c, adress: x}\n" +
				"log: debug\nretention:\n  age: 1ns\n  age: 2\nqueues:\n- name: q\n  name: r\nnonsense: 1\nlimits: {max_packet: 100MiB}\n",
			[]string{"EDGEMQ_SYS_INTERVAL=1ns", "EDGEMQ_LOG_LEVLE=x"},
			[]Setting{{"dedup.window", "1000y", "--set dedup.window"}},
			`my.yaml:1: store.sinc: there is no such key; is store.sync meant?
my.yaml:1: store.sync: "x" is not possible: it must be always, interval or none
my.yaml:3: listeners[0].address: "localhost:70000" is not possible: port "70000" is not from 0 to 65535; it must be host:port, as in 127.0.0.1:1883
my.yaml:4: listeners[1].address: :1 can be reached from other machines, and anybody there could connect without a password: set auth.users_file (edgemq passwd FILE USER writes it), or auth.anonymous to true if that is meant, or listen on 127.0.0.1
my.yaml:5: listeners[2]: address is missing: it must be host:port, as in 127.0.0.1:1883
my.yaml:5: listeners[2].adress: there is no such key; is address meant?
my.yaml:6: log: it is a section, not a value: log.level, log.format
my.yaml:8: retention.age: "1ns" is not possible: it must be 0 or a duration from 1s to 36500d
my.yaml:9: retention.age: it is there twice, first on line 8
my.yaml:12: queues[0].name: it is there twice, first on line 11
my.yaml:13: nonsense: there is no such key
my.yaml:14: limits.max_packet: 100MiB is more than half of store.journal_file (64MiB)
environment variable EDGEMQ_LOG_LEVLE: there is no such key; is EDGEMQ_LOG_LEVEL meant?
--set dedup.window: dedup.window: "1000y" is not possible: it must be 0 or a duration from 1s to 30d, as in 30s, 1h30m or 7d
environment variable EDGEMQ_SYS_INTERVAL: sys.interval: "1ns" is not possible: it must be 0 or a duration from 100ms to 1h`,
		},
		{"a tab", "log:\n\tlevel: debug\n", nil, nil, "my.yaml:2: this is not YAML: found character that cannot start any token; indent with spaces, not tabs, and put texts with special characters in quotes"},
		{"two documents", "data: a\n---\nlog: {level: debug}\n", nil, nil, "my.yaml:3: a second document begins here (after ---): settings are one"},
		{"an empty document and another", "---\n---\ndata: a\n", nil, nil, "my.yaml:3: a second document begins here (after ---): settings are one"},
		{"an anchor in itself", "data: &a [*a]\n", nil, nil, "my.yaml:1: data: anchor 'a' value contains itself"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := load(t, tt.yaml, tt.env, tt.set...)
			if err == nil {
				t.Fatalf("accepted: %+v", c)
			}
			if err.Error() != tt.want {
				t.Errorf("got  %s\nwant %s", err, tt.want)
			}
		})
	}
}

// Every duration, size and number has a least and a most that make sense; 0 is possible only where the reference says what it means.
func TestBounds(t *testing.T) {
	check := func(name, doc string, r rule, dst any) {
		t.Helper()
		absurd := []string{"-1", "-1s", "9223372036854775807"}
		switch r := r.(type) {
		case span:
			absurd = append(absurd, "1ns", "292y", "2500000h")
			if r.orZero && !strings.Contains(doc, "0") {
				t.Errorf("%s: 0 is possible, and nothing says what it means", name)
			}
		case size:
			absurd = append(absurd, "9000000TiB")
			if r.orZero && !strings.Contains(doc, "0") {
				t.Errorf("%s: 0 is possible, and nothing says what it means", name)
			}
			if r.max > 1 && !r.orZero && r.min == 0 {
				t.Errorf("%s: from 0 on", name)
			}
		case number:
		default:
			return
		}
		for _, v := range absurd {
			if len(r.set(dst, v)) == 0 {
				t.Errorf("%s: %s is accepted", name, v)
			}
		}
	}
	c := Default()
	for _, k := range keys {
		check(k.name, k.doc, k.rule, k.field(c))
	}
	for _, k := range queueKeys {
		check("queues."+k.name, k.doc, k.rule, k.field(&Queue{}))
	}
	for _, k := range topicKeys {
		check("topics."+k.name, k.doc, k.rule, k.field(&Topic{}))
	}
	for _, k := range listenerKeys {
		check("listeners."+k.name, k.doc, k.rule, k.field(&Listener{}))
	}
}

func TestFileNotFound(t *testing.T) {
	_, err := Load(Source{File: filepath.Join(t.TempDir(), "none.yaml")})
	if _, ok := AsError(err); err == nil || ok || !os.IsNotExist(unwrap(err)) {
		t.Errorf("got %v", err)
	}
}

func unwrap(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = u.Unwrap()
	}
}

func FuzzSize(f *testing.F) {
	for _, s := range []string{"0", "64MiB", "1.5GiB", "10MB", "-1", "1e9", "B", "9223372036854775807"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := parseSize(s)
		if err != nil {
			return
		}
		if again, err := parseSize(formatSize(n)); n < 0 || err != nil || again != n {
			t.Errorf("%q is %d, written %q, read %d, %v", s, n, formatSize(n), again, err)
		}
	})
}

func FuzzDuration(f *testing.F) {
	for _, s := range []string{"0", "100ms", "1h30m", "7d", "1w2d3h4m5.5s", "-1s", "d", "15250w1d", "106751d23h47m17s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDuration(s)
		if err != nil || d < 0 {
			return
		}
		if again, err := ParseDuration(FormatDuration(d)); err != nil || again != d {
			t.Errorf("%q is %d, written %q, read %d, %v", s, d, FormatDuration(d), again, err)
		}
	})
}

func FuzzFile(f *testing.F) {
	f.Add("store: {sync: none}\nqueues: [{name: a, topics: [b]}]")
	f.Add("a: &a [*a]")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := load(t, s, nil)
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := c.Write(&b, false); err != nil {
			t.Fatal(err)
		}
		if again, err := load(t, b.String(), nil); err != nil || !reflect.DeepEqual(again, c) {
			t.Errorf("written and read again: %+v, %v\n%s", again, err, b.String())
		}
	})
}

// queue is a queue with the defaults.
func queue(name string, topics ...string) Queue {
	return Queue{Name: name, Topics: append([]string{}, topics...), MaxDeliveries: 5, RetryDelay: []string{"1s", "2s", "4s", "8s"}, Overflow: "drop_oldest"}
}

func TestQueueSettings(t *testing.T) {
	for _, tc := range []struct {
		in, want string // want: JSON, or the error
	}{
		{"max_deliveries=3", `{"max_deliveries":3}`},
		{"max_deliveries=default", `{"max_deliveries":null}`},
		{"retry_delay=10s,1m,1d", `{"retry_delay":["10s","1m0s","24h0m0s"]}`},
		{"retry_delay=[10s, 1m]", `{"retry_delay":["10s","1m0s"]}`},
		{"max_bytes=1GiB", `{"max_bytes":1073741824}`},
		{"max_age=7d", `{"max_age":"168h0m0s"}`},
		{"ordered=true", `{"ordered":true}`},
		{"dead_letter=", `{"dead_letter":""}`},
		{"overflow=reject", `{"overflow":"reject"}`},
		{"overflow=drop", `overflow: "drop" is not possible: it must be drop_oldest or reject`},
		{"max_deliveries=-1", `max_deliveries: "-1" is not possible: it must be a whole number from 0 to 1000000`},
		{"name=x", `there is no setting "name"; there are max_in_flight, max_deliveries, retry_delay, dead_letter, ordered, exclusive, ack_timeout, max_messages, max_bytes, max_age, overflow`},
		{"ordered", `"ordered" is not key=value`},
		{"ack_timeout=1ns", `ack_timeout: "1ns" is not possible: it must be 0 or a duration from 1s to 365d`},
		{"ack_timeout=0", `{"ack_timeout":"0s"}`},
		{"retry_delay=1ns,1s", `retry_delay: "1ns" is not possible: it must be a duration from 1ms to 365d`},
		{"retry_delay=[]", `retry_delay: a list of 0 is not possible: it must be a list of 1 to 100 durations`},
		{"retry_delay=[1s", `retry_delay: "[1s" is not possible: it begins as a list in YAML and is none (line 1: did not find expected ',' or ']'); it must be a list of 1 to 100 durations, as in 1s, 1m or [1s, 1m]`},
	} {
		m, err := QueueSettings([]string{tc.in})
		got := fmt.Sprint(err)
		if err == nil {
			b, _ := json.Marshal(m)
			got = string(b)
		}
		if got != tc.want {
			t.Errorf("%s: %s, want %s", tc.in, got, tc.want)
		}
	}
}
