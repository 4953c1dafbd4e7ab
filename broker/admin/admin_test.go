package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/session"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// site is a broker without listeners, and its API.
type site struct {
	t testing.TB
	*Server
	base string
	http *http.Client
	sys  *Sys
}

func open(t testing.TB, o Options) *site {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	st, err := store.Open(store.Options{Dir: t.TempDir(), JournalFileBytes: 1 << 20, MinFree: 1, Keys: Keys})
	if err != nil {
		t.Fatal(err)
	}
	hub := feed.NewHub(st, quiet)
	queues, err := feed.OpenQueues(hub, true)
	if err != nil {
		t.Fatal(err)
	}
	sys := NewSys(time.Hour, "1.2", quiet)
	sessions, err := session.NewManager(st, hub, queues, session.Options{System: sys}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(o, Parts{Store: st, Queues: queues, Sessions: sessions, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	storeCtx, stopStore := context.WithCancel(context.Background())
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 4)
	storeDone := make(chan error, 1)
	go func() { storeDone <- st.Run(storeCtx) }()
	go func() { done <- hub.Run(ctx) }()
	go func() { done <- sessions.Run(ctx) }()
	go func() { done <- s.Run(ctx) }()
	x := &site{t: t, Server: s, base: "http://" + s.Addr(), http: &http.Client{Transport: &http.Transport{}}, sys: sys}
	t.Cleanup(func() {
		x.http.CloseIdleConnections()
		stop()
		err := errors.Join(<-done, <-done, <-done)
		stopStore()
		s.Close()
		if err := errors.Join(err, <-storeDone, st.Close()); err != nil {
			t.Error(err)
		}
	})
	s.Ready(true)
	return x
}

// put stores a message and waits for it.
func (x *site) put(topic string, m store.Message) {
	x.t.Helper()
	var err error
	if m.Topic, err = x.Store.TopicID(topic); err != nil {
		x.t.Fatal(err)
	}
	if m.Client, err = x.Store.ClientID("publisher", false); err != nil {
		x.t.Fatal(err)
	}
	m.Flags |= record.Flags(1)
	done := make(committed, 1)
	if err := errors.Join(x.Store.Append([]store.Message{m}, nil, true, done), <-done); err != nil {
		x.t.Fatal(err)
	}
}

// call makes a request and returns status and answer.
func (x *site) call(method, path, body string) (int, string) {
	x.t.Helper()
	r, err := http.NewRequest(method, x.base+path, strings.NewReader(body))
	if err != nil {
		x.t.Fatal(err)
	}
	return x.do(r)
}

func (x *site) do(r *http.Request) (int, string) {
	x.t.Helper()
	resp, err := x.http.Do(r)
	if err != nil {
		x.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		x.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// get decodes what a path answers.
func get[T any](x *site, path string) (v T) {
	x.t.Helper()
	code, b := x.call("GET", path, "")
	if code != 200 {
		x.t.Fatalf("GET %s: %d %s", path, code, b)
	}
	d := json.NewDecoder(strings.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		x.t.Fatalf("GET %s: %v: %s", path, err, b)
	}
	return v
}

var loopback = Options{Listen: "127.0.0.1:0", Version: `a "quoted" \ version`}

func TestQueues(t *testing.T) {
	x := open(t, loopback)
	for i := range 5 {
		x.put("shop/north", store.Message{Payload: fmt.Append(nil, i)})
	}
	for _, row := range []struct {
		method, path, body string
		code               int
		depth              int64 // of queue orders afterwards; -1: there is none
	}{
		{"GET", "/v1/queues/orders", "", 404, -1},
		{"POST", "/v1/queues", `{"name":"bad name"}`, 400, -1},
		{"POST", "/v1/queues", `{"name":"orders","topics":["$share/g/a"]}`, 400, -1},
		{"POST", "/v1/queues", `{"name":"orders","topic":"a"}`, 400, -1},
		{"POST", "/v1/queues", `{"name":"orders","settings":{"dead_letter":"orders"}}`, 400, -1},
		{"POST", "/v1/queues", `{"name":"orders"}`, 200, 0},
		{"POST", "/v1/queues/orders/bind", `{"filter":"shop/+"}`, 200, 5},
		{"POST", "/v1/queues/orders/bind", `{"filter":"shop/+"}`, 200, 5},
		{"POST", "/v1/queues/orders/bind", `{"filter":"a+"}`, 400, 5},
		{"POST", "/v1/queues/orders/unbind", `{"filter":"other"}`, 400, 5},
		{"POST", "/v1/queues/orders/pause", "", 200, 5},
		{"POST", "/v1/queues/orders/resume", "", 200, 5},
		{"POST", "/v1/queues/orders/move", `{"to":"orders"}`, 400, 5},
		{"POST", "/v1/queues/orders/move", `{"to":"others","count":-2}`, 400, 5},
		{"POST", "/v1/queues/orders/move", `{"to":"others","count":0}`, 400, 5},
		{"POST", "/v1/queues/orders/move", `{"to":"others","count":2}{"count":1}`, 400, 5},
		{"POST", "/v1/queues/orders/move", `{"to":"others","count":2} nonsense`, 400, 5},
		{"POST", "/v1/queues/orders/move", `{"to":"others","count":2}`, 200, 3},
		{"POST", "/v1/queues/orders/redrive", `{"count":-1}`, 400, 3},
		{"POST", "/v1/queues/orders/redrive", `{"count":0}`, 400, 3},
		{"POST", "/v1/queues/orders/redrive", "", 200, 3},
		{"POST", "/v1/queues/orders/reset", `{"to":"yesterday"}`, 400, 3},
		{"POST", "/v1/queues/orders/reset", `{"to":"earliest"}`, 200, 5},
		{"POST", "/v1/queues/orders/reset", `{"to":"offset:4"}`, 200, 2},
		{"POST", "/v1/queues/orders/reset", `{"to":"offset:99"}`, 400, 2},
		{"POST", "/v1/queues/orders/reset", `{"to":"1h"}`, 200, 5},
		{"POST", "/v1/queues/orders/purge", "", 200, 0},
		{"POST", "/v1/queues/orders/reset", `{"to":"earliest"}`, 200, 5},
		{"POST", "/v1/queues/orders/reset", `{"to":"latest"}`, 200, 0},
		{"POST", "/v1/queues/orders/unbind", `{"filter":"shop/+"}`, 200, 0},
		{"PUT", "/v1/queues/orders", "", 404, 0},
		{"DELETE", "/v1/queues/orders", "", 200, -1},
		{"DELETE", "/v1/queues/orders", "", 404, -1},
	} {
		code, answer := x.call(row.method, row.path, row.body)
		if code != row.code {
			t.Fatalf("%s %s %s: %d %s", row.method, row.path, row.body, code, answer)
		}
		if !json.Valid([]byte(answer)) {
			t.Errorf("%s %s: %q is not JSON", row.method, row.path, answer)
		}
		code, _ = x.call("GET", "/v1/queues/orders", "")
		if row.depth < 0 {
			if code != 404 {
				t.Fatalf("after %s %s: the queue is there", row.method, row.path)
			}
			continue
		}
		if q := get[Queue](x, "/v1/queues/orders"); q.Depth != row.depth {
			t.Fatalf("after %s %s %s: %+v, want a depth of %d", row.method, row.path, row.body, q, row.depth)
		}
	}
	if m := get[Messages](x, "/v1/queues/others/messages?limit=1"); len(m.Messages) != 1 || *m.Messages[0].Payload != "0" {
		t.Errorf("peek: %+v", m)
	}
	if qs := get[[]Queue](x, "/v1/queues"); len(qs) != 1 || qs[0].Name != "others" || qs[0].Depth != 2 {
		t.Errorf("queues: %+v", qs)
	}
}

// A reset says where the queue begins then, and why that is not where it was told to.
func TestReset(t *testing.T) {
	x := open(t, loopback)
	for i := range 5 {
		x.put("a", store.Message{Payload: fmt.Append(nil, i)})
	}
	x.call("POST", "/v1/queues", `{"name":"q","topics":["a"]}`)
	for _, row := range []struct {
		to   string
		code int
		want string // in the answer
	}{
		{"offset:3", 200, `{"ok":true,"offset":3}`},
		{"offset:6", 200, `{"ok":true,"offset":6}`},
		{"latest", 200, `{"ok":true,"offset":6}`},
		{"earliest", 200, `{"ok":true,"offset":1}`},
		{"1h", 200, `{"ok":true,"offset":1}`},
		{"offset:7", 400, "offset:7 is beyond the end of the log: the next message gets offset 6; for what comes from now on, reset to latest"},
		{"offset:0", 200, `"offset":1,"note":"offset:0 is not kept any more: the oldest message that is has offset 1"`},
		{"2999-01-01T00:00:00Z", 200, `"offset":6,"note":"2999-01-01T00:00:00Z is in the future`},
		{"soon", 400, `{"error":"\"soon\" is not a start: it is earliest, `},
		{"tomorrow", 400, `or offset:<n>"}`},
	} {
		if code, answer := x.call("POST", "/v1/queues/q/reset", `{"to":"`+row.to+`"}`); code != row.code || !strings.Contains(answer, row.want) {
			t.Errorf("%s: %d %s, want %d %s", row.to, code, answer, row.code, row.want)
		}
	}
	if q := get[Queue](x, "/v1/queues/q"); q.Cursor != 6 || q.NextOffset != 6 {
		t.Errorf("cursor %d of %d", q.Cursor, q.NextOffset)
	}
}

func TestQueueSettings(t *testing.T) {
	x := open(t, loopback)
	if code, answer := x.call("PATCH", "/v1/queues/q", `{"ordered":true}`); code != 404 {
		t.Fatal(code, answer)
	}
	x.call("POST", "/v1/queues", `{"name":"q","settings":{"max_messages":7}}`)
	for _, row := range []struct {
		body string
		code int
		want string // in the queue's settings, or the answer
	}{
		{`{"max_deliveries":3,"retry_delay":["10s",60],"ack_timeout":"1m"}`, 200, `"max_deliveries":3,"retry_delay":["10s","1m0s"]`},
		{`{"max_deliveries":0}`, 200, `"max_deliveries":0`},
		{`{"max_deliveries":null,"exclusive":true}`, 200, `"max_deliveries":5`},
		{`{"overflow":"reject","max_bytes":1048576,"max_age":"24h"}`, 200, `"set":["retry_delay","exclusive","ack_timeout","max_messages","max_bytes","max_age","overflow"]`},
		{`{"dead_letter":"graves"}`, 200, `"dead_letter":"graves"`},
		{`{"dead_letter":"q"}`, 400, "its own dead letter queue"},
		{`{"dead_letter":"a b"}`, 400, "dead_letter"},
		{`{"max_messages":-1}`, 400, "max_messages"},
		{`{"max_messages":1.5}`, 400, "max_messages"},
		{`{"retry_delay":[]}`, 400, "retry_delay"},
		{`{"retry_delay":["soon"]}`, 400, "retry_delay"},
		{`{"ack_timeout":"-1s"}`, 400, "ack_timeout"},
		{`{"ack_timeout":"1ns"}`, 400, `it must be 0 (none), or a duration from \"1s\" to \"8760h\"`},
		{`{"ack_timeout":1e-12}`, 400, "ack_timeout"},
		{`{"ack_timeout":0}`, 200, `"ack_timeout":"0s"`},
		{`{"retry_delay":["1ns"]}`, 400, "retry_delay"},
		{`{"retry_delay":["9000h"]}`, 400, "retry_delay"},
		{`{"max_age":"1ms"}`, 400, "max_age"},
		{`{"max_age":"900000h"}`, 400, "max_age"},
		{`{"max_bytes":1}`, 400, `0 (no limit), or a number of bytes from 1024 to 1125899906842624`},
		{`{"max_bytes":0,"max_messages":0}`, 200, `"max_messages":0,"max_bytes":0`},
		{`{"max_messages":9000000000000000}`, 400, "max_messages"},
		{`{"max_in_flight":65536,"max_age":"1ns"}`, 400, "876000h\\\"; max_in_flight: "},
		{`{"overflow":"spill"}`, 400, "drop_oldest or reject"},
		{`{"colour":"red"}`, 400, `there is no setting \"colour\"; there are max_in_flight`},
		{`{}`, 400, "no setting"},
		{`[]`, 400, "request body"},
	} {
		code, answer := x.call("PATCH", "/v1/queues/q", row.body)
		if code != row.code || !strings.Contains(answer, row.want) {
			t.Errorf("%s: %d %s, want %d and %s", row.body, code, answer, row.code, row.want)
		}
	}
}

func TestMessages(t *testing.T) {
	x := open(t, loopback)
	props := packet.AppendUser(packet.AppendUser(nil, wire.MessageID, "id-1"), wire.SearchKey, "käse")
	x.put("a/1", store.Message{Payload: []byte("one"), Props: props})
	x.put("a/2", store.Message{Payload: []byte{0xFF, 0}, Flags: record.FlagRetain | record.FlagExpiry, Expiry: 60})
	x.put("a/1", store.Message{Payload: []byte("three"), Props: packet.AppendUser(nil, wire.SearchKey, "käse")})
	x.put("$queue/q", store.Message{Payload: []byte("direct")})
	x.put("b", store.Message{Payload: []byte("five"), Props: packet.AppendProperty(nil, packet.Property{ID: packet.PropContentType, Value: []byte("text/plain")})})

	for query, want := range map[string]string{
		"offset=2":                      "2",
		"offset=77":                     "",
		"id=id-1":                       "1",
		"id=käse":                       "",
		"key=käse":                      "1 3",
		"key=käse&limit=1":              "1",
		"key=käse&offset=2":             "3",
		"topic=a/%2B":                   "1 2 3",
		"topic=a/%2B&limit=2":           "1 2",
		"topic=a/%2B&offset=2&limit=10": "2 3",
		"topic=%23":                     "1 2 3 5",
		"topic=$queue/q":                "4",
		"from=1h":                       "1 2 3 5",
		"from=earliest&to=offset:3":     "1 2",
		"to=1h":                         "",
	} {
		m := get[Messages](x, "/v1/messages?"+query)
		var got []string
		for _, msg := range m.Messages {
			got = append(got, strconv.FormatUint(msg.Offset, 10))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: offsets %v, want %s", query, got, want)
		}
	}
	for _, query := range []string{"limit=0", "limit=x", "offset=-1", "topic=a/%23/b", "from=soon", "tpoic=a", "topic=$share/g/a"} {
		if code, b := x.call("GET", "/v1/messages?"+query, ""); code != 400 {
			t.Errorf("%s: %d %s", query, code, b)
		}
	}
	m := get[Messages](x, "/v1/messages?offset=1&limit=2")
	one, two := m.Messages[0], m.Messages[1]
	if m.Next != 3 || *one.Payload != "one" || one.Client != "publisher" || one.QoS != 1 || len(one.User) != 2 || one.User[1] != [2]string{"@SearchKey", "käse"} {
		t.Errorf("%+v", m)
	}
	if two.Payload != nil || !bytes.Equal(two.PayloadBase64, []byte{0xFF, 0}) || !two.Retain || *two.Expiry != 60 {
		t.Errorf("%+v", two)
	}
	ts := get[Topics](x, "/v1/topics?limit=2")
	if len(ts.Topics) != 2 || ts.Topics[0].Name != "a/1" || ts.Topics[0].Messages != 2 || ts.Next != "a/2" {
		t.Errorf("%+v", ts)
	}
	if ts = get[Topics](x, "/v1/topics?after=a/2"); len(ts.Topics) != 1 || ts.Topics[0].Name != "b" || ts.Next != "" {
		t.Errorf("%+v", ts)
	}
	if s := get[Topic](x, "/v1/topic?name=a/1"); s.Messages != 2 || s.First != 1 || s.Last != 3 || s.FirstAt == nil || s.LastAt == nil {
		t.Errorf("%+v", s)
	}
	if code, _ := x.call("GET", "/v1/topic?name=nope", ""); code != 404 {
		t.Errorf("a topic that is not there: %d", code)
	}
}

func TestDoors(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	x := open(t, Options{Listen: "127.0.0.1:0", Socket: socket, Token: "secret"})
	request := func(path string, header ...string) *http.Request {
		r, err := http.NewRequest("GET", x.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		return r
	}
	for _, row := range []struct {
		name string
		r    *http.Request
		code int
	}{
		{"no token", request("/v1/queues"), 401},
		{"wrong token", request("/v1/queues", "Authorization", "Bearer secre"), 401},
		{"metrics without", request("/metrics"), 401},
		{"token", request("/v1/queues", "Authorization", "Bearer secret"), 200},
		{"health needs none", request("/health"), 200},
		{"nor ready", request("/ready"), 200},
	} {
		if code, b := x.do(row.r); code != row.code {
			t.Errorf("%s: %d %s", row.name, code, b)
		}
	}
	through := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	defer through.CloseIdleConnections()
	resp, err := (&http.Client{Transport: through}).Get("http://x/v1/queues")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("through the socket: %d", resp.StatusCode)
	}
}

// A page in a browser on this machine, or a name that somebody points here, gets nothing.
func TestForeignPages(t *testing.T) {
	x := open(t, loopback)
	r, _ := http.NewRequest("POST", x.base+"/v1/queues", strings.NewReader(`{"name":"q"}`))
	r.Header.Set("Origin", "http://evil.example")
	if code, b := x.do(r); code != 403 || !json.Valid([]byte(b)) {
		t.Errorf("another origin: %d %s", code, b)
	}
	r, _ = http.NewRequest("GET", x.base+"/v1/queues", nil)
	r.Host = "evil.example:18830"
	if code, b := x.do(r); code != 403 {
		t.Errorf("another host: %d %s", code, b)
	}
	if code, _ := x.call("POST", "/v1/queues", `{"name":"`+strings.Repeat("a", maxBody)+`"}`); code != 400 {
		t.Errorf("a huge request: %d", code)
	}
	x.Ready(false)
	if code, _ := x.call("GET", "/ready", ""); code != 503 {
		t.Errorf("not ready: %d", code)
	}
}

// Whoever has the address when the broker starts does not stop it; when they are gone the API is there.
func TestAddressTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	x := open(t, Options{Listen: l.Addr().String()})
	if x.Addr() != "" {
		t.Errorf("served at %s", x.Addr())
	}
	if _, err := New(Options{Listen: "127.0.0.1:x"}, x.Parts); err == nil {
		t.Error("an impossible address is accepted")
	}
}

var (
	sampleLine = regexp.MustCompile(`^([a-z_][a-z0-9_]*)(\{[a-z_]+="(?:[^"\\]|\\.)*"(?:,[a-z_]+="(?:[^"\\]|\\.)*")*\})? (\S+)$`)
	headLine   = regexp.MustCompile(`^# (HELP|TYPE) ([a-z_][a-z0-9_]*) (.+)$`)
)

// TestMetrics reads the exposition as Prometheus does: every sample belongs to the metric announced before it, and histograms add up.
func TestMetrics(t *testing.T) {
	x := open(t, loopback)
	for range 20 {
		x.put("$queue/q", store.Message{Payload: []byte("x")})
	}
	if _, err := x.Queues.Create("q"); err != nil {
		t.Fatal(err)
	}
	code, text := x.call("GET", "/metrics", "")
	if code != 200 {
		t.Fatal(code, text)
	}
	values := map[string]float64{}
	kind, name, below := "", "", 0.0
	seen := map[string]bool{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		if m := headLine.FindStringSubmatch(line); m != nil {
			if m[1] == "HELP" {
				if seen[m[2]] {
					t.Errorf("%s is there twice", m[2])
				}
				name, seen[m[2]] = m[2], true
			} else if kind, below = m[3], 0; m[2] != name {
				t.Errorf("TYPE of %s after HELP of %s", m[2], name)
			}
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("%q is no sample", line)
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil || math.IsNaN(v) {
			t.Errorf("%q: %v", line, err)
		}
		switch suffix := strings.TrimPrefix(m[1], name); {
		case !strings.HasPrefix(m[1], name), suffix != "" && (kind != "histogram" || !strings.Contains("_bucket _sum _count", suffix)):
			t.Errorf("%q follows the head of %s", line, name)
		case suffix == "_bucket" && v < below:
			t.Errorf("%q: fewer than in the bucket before", line)
		case suffix == "_bucket":
			below = v
		case suffix == "_count" && v != below:
			t.Errorf("%q: the buckets have %g", line, below)
		}
		if kind == "counter" != strings.HasSuffix(m[1], "_total") {
			t.Errorf("%s is a %s", m[1], kind)
		}
		values[m[1]+m[2]] = v
	}
	for name, want := range map[string]float64{
		`edgemq_queue_depth{queue="q"}`:           20,
		`edgemq_store_records_total`:              20,
		`edgemq_store_sync{level="always"}`:       1,
		`edgemq_store_sync{level="none"}`:         0,
		`edgemq_store_commit_group_records_sum`:   20,
		`edgemq_connections`:                      0,
		`edgemq_messages_received_total{qos="1"}`: 0,
	} {
		if got, ok := values[name]; !ok || got != want {
			t.Errorf("%s is %g (%v), want %g", name, got, ok, want)
		}
	}
	docs, err := os.ReadFile("../../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range seen {
		if !bytes.Contains(docs, []byte("| `"+name+"` |")) {
			t.Errorf("%s is not in docs/OPERATIONS.md", name)
		}
	}
	if !strings.Contains(text, `version="a \"quoted\" \\ version"`) {
		t.Error("the label is not quoted")
	}
}

func TestSys(t *testing.T) {
	x := open(t, loopback)
	if _, err := x.Queues.Create("q"); err != nil {
		t.Fatal(err)
	}
	x.put("$queue/q", store.Message{Payload: []byte("x")})
	now := time.Now()
	changed := x.sys.update(x.sys.collect(x.Parts, now))
	for name, want := range map[string]string{
		"$SYS/broker/version":               "1.2",
		"$SYS/broker/store/sync":            "always",
		"$SYS/broker/queues/q/depth":        "1",
		"$SYS/broker/clients/connected":     "0",
		"$SYS/broker/messages/stored":       "1",
		"$SYS/broker/load/connections/1min": "0.00",
	} {
		if got, ok := x.sys.Value(name); !ok || got != want {
			t.Errorf("%s is %q (%v), want %q", name, got, ok, want)
		}
	}
	if all := x.sys.Match("$SYS/#"); len(all) != len(changed) {
		t.Errorf("%d of %d values match $SYS/#", len(all), len(changed))
	}
	if got := x.sys.Match("#"); len(got) > 0 {
		t.Errorf("# sees %v", got)
	}
	if got := x.sys.Match("$SYS/broker/queues/+/depth"); len(got) != 1 {
		t.Errorf("a filter with a wildcard matches %v", got)
	}
	if err := x.Queues.Delete("q"); err != nil {
		t.Fatal(err)
	}
	x.sys.update(x.sys.collect(x.Parts, now.Add(time.Minute)))
	if _, ok := x.sys.Value("$SYS/broker/queues/q/depth"); ok {
		t.Error("a queue that is deleted still has statistics")
	}
}

func TestRate(t *testing.T) {
	var r rate
	r.next(100, 0)
	for range 600 {
		r.next(r.last+10, 10*time.Second)
	}
	for i, m := range r.means {
		if math.Abs(m-60) > 1 {
			t.Errorf("mean over %g minutes: %g, want 60", rateMinutes[i], m)
		}
	}
	r.next(r.last, time.Minute)
	if r.means[0] > 60*math.Exp(-1)+1 || r.means[2] < 50 {
		t.Errorf("after a minute without any: %v", r.means)
	}
}

func FuzzKeys(f *testing.F) {
	f.Add(packet.AppendUser(packet.AppendUser(nil, wire.MessageID, "a"), wire.SearchKey, "b"))
	f.Add([]byte("@"))
	f.Fuzz(func(t *testing.T, props []byte) {
		Keys(props, func(kind byte, value []byte) bool {
			if !bytes.Contains(props, value) || kind != KindMessageID && kind != KindSearchKey {
				t.Errorf("%d %q of %q", kind, value, props)
			}
			return true
		})
	})
}

// A file that somebody keeps where the socket should be is not ours to remove.
func TestSocketLeavesOthersFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	x := open(t, Options{Listen: "127.0.0.1:0", Socket: file})
	if code, _ := x.call("GET", "/health", ""); code != 200 {
		t.Errorf("health: %d", code)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "keep" {
		t.Errorf("%q, %v", b, err)
	}
}
