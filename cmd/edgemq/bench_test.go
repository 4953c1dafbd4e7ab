package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/internal/bench"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// runBench runs the command and returns what it printed.
func runBench(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := rootCommand()
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"bench"}, args...))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestBench(t *testing.T) {
	b := testbroker.Run(t, testbroker.Options{})
	at := "b=mqtt://" + b.Addr

	out, err := runBench(t, "live", "ingest", "--broker", at, "--count", "400", "--repeat", "2", "--json", "--topics", "7")
	if err != nil {
		t.Fatal(err)
	}
	var r benchReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(out, `"publishers":`) || !strings.Contains(out, `"qos":`) || strings.Contains(out, `"Publishers"`) {
		t.Errorf("%s", out)
	}
	if len(r.Results) != 2 || len(r.Loads) != 2 || r.Loads[0].Topics != 7 || r.Machine.CPUs < 1 {
		t.Fatalf("%+v", r)
	}
	for i, load := range []string{"live", "ingest"} {
		row := r.Results[i]
		if row.Load != load || row.Broker != "b" || len(row.Runs) != 2 || row.Error != "" {
			t.Fatalf("%+v", row)
		}
		if s := row.PerSecond; s.Min <= 0 || s.Median < s.Min || s.Max < s.Median || row.P50.Median <= 0 || row.Max.Max < row.P99.Median {
			t.Errorf("%+v", row)
		}
		for _, run := range row.Runs {
			if run.Messages != 400 || run.Broken {
				t.Errorf("%+v", run)
			}
		}
	}
	if f := r.Results[0].Faults; f == nil || *f != (bench.Faults{}) {
		t.Errorf("faults: %v", f)
	}

	out, err = runBench(t, "drain", "conns", "--broker", at, "--count", "400", "--publishers", "10", "--mqtt", "5")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[1], "drain  b ") || !strings.HasSuffix(lines[1], ", in order") || !strings.HasPrefix(lines[2], "conns  b ") {
		t.Errorf("the table:\n%s", out)
	}

	// A broker that is not there is in the table, and the error.
	out, err = runBench(t, "sync1", "--broker", at, "--broker", "gone=mqtt://127.0.0.1:1", "--count", "10")
	if err == nil || !strings.Contains(err.Error(), "gone: sync1: ") || !strings.Contains(out, "failed: sync1: ") || !strings.Contains(out, "sync1  b ") || exitCode(err) != exitConnect {
		t.Errorf("%v, exit code %d\n%s", err, exitCode(err), out)
	}

	// However often it runs, the names are the same.
	for id := uint32(1); b.Store().TopicName(id) != ""; id++ {
		if s := b.Store().TopicName(id); !strings.HasPrefix(s, "bench/0/t") {
			t.Errorf("topic %s", s)
		}
	}
}

func TestBenchUsage(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"swim"}, `there is no load "swim"; there are ingest, `},
		{[]string{"contest", "--broker", "mqtt://127.0.0.1:1"}, "use --start instead of --broker"},
		{[]string{"--broker", "http://127.0.0.1"}, "only mqtt://"},
		{[]string{"--start", "broker on 1883"}, "there is no {port}"},
		{[]string{"live", "--size", "3"}, "a payload has at least 24 bytes"},
		{[]string{"--mqtt", "6"}, "MQTT version"},
		{[]string{"--names", "a/b"}, "is not one level"},
		{[]string{"--repeat", "0"}, "--repeat must be at least 1"},
	} {
		_, err := runBench(t, tt.args...)
		if err == nil || !strings.Contains(err.Error(), tt.want) || exitCode(err) != exitUsage {
			t.Errorf("%q: %v, exit code %d", tt.args, err, exitCode(err))
		}
	}
}

func TestPlaces(t *testing.T) {
	f := benchFlags{brokers: []string{"mqtt://h", "x=h:1883"}, starts: []string{"run {port}", "y=a=b run {port}"}}
	places, err := f.places()
	if err != nil {
		t.Fatal(err)
	}
	want := []place{{name: "mqtt://h", url: "mqtt://h"}, {name: "x", url: "h:1883"}, {name: "start1", command: "run {port}"}, {name: "y", command: "a=b run {port}"}}
	for i := range want {
		if places[i] != want[i] {
			t.Errorf("%+v, want %+v", places[i], want[i])
		}
	}
}

// A fault is printed, and an error at the end.
func TestBenchVerdict(t *testing.T) {
	r := newBenchReport([]bench.Load{{Name: "live"}}, []place{{name: "b"}})
	r.add("live", "b", &bench.Result{Rate: 1000, Faults: &bench.Faults{}}, nil)
	if err := r.verdict(); err != nil {
		t.Error(err)
	}
	r.add("live", "b", &bench.Result{Rate: 3000, Faults: &bench.Faults{Reordered: 2}, Broken: true}, nil)
	if err := r.verdict(); !errors.Is(err, errBroken) || exitCode(err) != exitFailed {
		t.Error(err)
	}
	var out bytes.Buffer
	if err := r.finish().table(&out); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.Contains(s, "2,000") || !strings.Contains(s, "(1,000-3,000)") || !strings.Contains(s, "2 reordered") {
		t.Errorf("the table:\n%s", s)
	}
}

func TestBenchDisk(t *testing.T) {
	var out bytes.Buffer
	cmd := rootCommand()
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"bench", "disk", "--dir", t.TempDir(), "--time", "10ms"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"write and fdatasync 4 KiB", "sequential writing: ", "one message at a time"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q in\n%s", want, out.String())
		}
	}
}

func TestUnits(t *testing.T) {
	for us, want := range map[float64]string{1: "1µs", 999: "999µs", 1500: "1.50ms", 150_000: "150ms", 2_500_000: "2.50s"} {
		if got := micros(us); got != want {
			t.Errorf("%v: %s, want %s", us, got, want)
		}
	}
	for f, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(f); got != want {
			t.Errorf("%v: %s, want %s", f, got, want)
		}
	}
}
