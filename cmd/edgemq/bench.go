package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/internal/bench"
	"github.com/edgemq/edgemq/internal/client"
)

// benchFlags are those of bench.
type benchFlags struct {
	connectFlags
	brokers, starts []string
	dir             string
	kill            bool
	names           string
	pid             int
	repeat          int
	scale           float64
	json            bool
	load            bench.Load // what the flags change
}

func benchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench [LOAD…]",
		Short: "Measure a broker, this one or any other",
		Long:  benchHelp(),
		Example: `  edgemq bench ingest sync1                    # the broker on 127.0.0.1:1883
  edgemq bench --broker mqtts://host --username me --password-file secret live
  edgemq bench --repeat 5 --start 'edgemq=edgemq serve --listen 127.0.0.1:{port} --data {dir}' --start 'other=other.sh {port} {dir}'
  edgemq bench ingest --publishers 1000 --count 1000000 --json
  edgemq bench disk --dir /var/lib/edgemq`,
		ValidArgs: loadNames(),
		Args:      cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, args)
		},
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&f.brokers, "broker", nil, "measure the broker at this `[NAME=]URL`: mqtt://, mqtts://, unix:// and so on; repeatable (default mqtt://127.0.0.1:1883)")
	fs.StringArrayVar(&f.starts, "start", nil, "measure a broker that is started for each run by this `[NAME=]COMMAND`; {port} and {dir} stand for where to listen (on 127.0.0.1) and an empty directory; repeatable")
	fs.StringVar(&f.dir, "dir", ".", "where brokers that are started have their `directory`; one in memory (as /tmp may be) tells nothing of a disk")
	fs.BoolVar(&f.kill, "kill", false, "contest: end the broker by SIGKILL instead of SIGTERM")
	fs.StringVar(&f.names, "names", "0", "a `level` of the topics (bench/<names>/t0 …) and a part of the client ids, the same for every run; only runs at the same time on one broker need different ones")
	fs.IntVar(&f.pid, "pid", 0, "process id of the broker, to see its processor time and memory (known with --start)")
	fs.IntVar(&f.repeat, "repeat", 1, "runs of each load on each broker, in turn; medians are shown")
	fs.Float64Var(&f.scale, "scale", 1, "multiply the number of messages (conns: of connections)")
	fs.BoolVar(&f.json, "json", false, "print JSON: each run, and medians and spread")
	f.addLogin(cmd, "3.1.1")
	fs.IntVarP(&f.load.Publishers, "publishers", "n", 0, "publishers (conns: connections)")
	fs.IntVar(&f.load.Consumers, "consumers", 0, "consumers")
	fs.IntVar(&f.load.Topics, "topics", 0, "topics")
	fs.IntVar(&f.load.Count, "count", 0, "messages in all")
	fs.IntVar(&f.load.Size, "size", 0, "bytes of a payload")
	fs.Uint8Var(&f.load.QoS, "qos", 0, "QoS of publishers and consumers")
	fs.IntVar(&f.load.Window, "window", 0, "messages a publisher may have unacknowledged (conns: connections opened at once)")
	fs.IntVar(&f.load.Rate, "rate", 0, "messages a second in all; 0 is as fast as it goes")
	fs.BoolVar(&f.load.All, "all", false, "have every consumer subscribe to all topics instead of its share")
	cmd.AddCommand(benchDiskCommand())
	return cmd
}

func benchHelp() string {
	var b strings.Builder
	b.WriteString("Put standard loads on MQTT brokers and check what comes back: lost, reordered, repeated and damaged messages are\ncounted. Loads:\n\n")
	for _, l := range bench.Loads {
		fmt.Fprintf(&b, "  %-8s %s\n", l.Name, l.Short)
	}
	b.WriteString(`
Without a LOAD all are run (contest: if the brokers are started with --start). Flags change what the loads are by default.
Latency is from a publish to its acknowledgement; with consumers, from the publish to the delivery. A message that
is late because the broker held its publisher up counts from when it was due, if there is a rate.

A broker that stores messages, like edgemq, keeps those that are published here: measure one that may forget.
See docs/BENCHMARKS.md.`)
	return b.String()
}

func loadNames() []string {
	var names []string
	for _, l := range bench.Loads {
		names = append(names, l.Name)
	}
	return names
}

// place is a broker to measure: one that is there, or one to start.
type place struct {
	name, url, command string
}

var named = regexp.MustCompile(`^([A-Za-z0-9_.-]+)=(.+)$`)

// places reads --broker and --start.
func (f *benchFlags) places() ([]place, error) {
	var places []place
	split := func(s, name string) (string, string) {
		if m := named.FindStringSubmatch(s); m != nil {
			return m[1], m[2]
		}
		return name, s
	}
	if len(f.brokers)+len(f.starts) == 0 {
		f.brokers = []string{"mqtt://127.0.0.1:1883"}
	}
	for _, s := range f.brokers {
		name, url := split(s, s)
		if _, err := client.ParseURL(url); err != nil {
			return nil, usageError("--broker: %w", err)
		}
		places = append(places, place{name: name, url: url})
	}
	for i, s := range f.starts {
		name, command := split(s, fmt.Sprint("start", i+1))
		if !strings.Contains(command, "{port}") {
			return nil, usageError("--start: there is no {port} in %q", command)
		}
		places = append(places, place{name: name, command: command})
	}
	return places, nil
}

// loads are the loads to run, with what the flags change.
func (f *benchFlags) loads(cmd *cobra.Command, names []string) ([]bench.Load, error) {
	var loads []bench.Load
	chosen := len(names) > 0
	if !chosen {
		names = loadNames()
	}
	for _, name := range names {
		l, ok := bench.Find(name)
		if !ok {
			return nil, usageError("there is no load %q; there are %s", name, strings.Join(loadNames(), ", "))
		}
		if l.Restart && len(f.brokers) > 0 {
			if chosen {
				return nil, usageError("%s restarts the broker: use --start instead of --broker", name)
			}
			continue
		}
		f.change(cmd, &l)
		if err := l.Check(); err != nil {
			return nil, usageError("%s: %w", name, err)
		}
		loads = append(loads, l)
	}
	return loads, nil
}

// change sets what the flags say.
func (f *benchFlags) change(cmd *cobra.Command, l *bench.Load) {
	for _, c := range []struct {
		flag string
		to   *int
		from int
	}{
		{"publishers", &l.Publishers, f.load.Publishers},
		{"consumers", &l.Consumers, f.load.Consumers},
		{"topics", &l.Topics, f.load.Topics},
		{"count", &l.Count, f.load.Count},
		{"size", &l.Size, f.load.Size},
		{"window", &l.Window, f.load.Window},
		{"rate", &l.Rate, f.load.Rate},
	} {
		if cmd.Flags().Changed(c.flag) {
			*c.to = c.from
		}
	}
	if cmd.Flags().Changed("qos") {
		l.QoS = f.load.QoS
	}
	if cmd.Flags().Changed("all") {
		l.All = f.load.All
	}
	if l.Kind == bench.Idle {
		if cmd.Flags().Changed("publishers") {
			l.Consumers = f.load.Publishers
		}
		l.Consumers = int(float64(l.Consumers) * f.scale)
	}
	l.Count = int(float64(l.Count) * f.scale)
}

func (f *benchFlags) run(cmd *cobra.Command, names []string) error {
	version, err := client.ParseVersion(f.mqtt)
	if err != nil {
		return usageError("--mqtt: %w", err)
	}
	f.version = version
	if err := f.readPassword(); err != nil {
		return err
	}
	places, err := f.places()
	if err != nil {
		return err
	}
	loads, err := f.loads(cmd, names)
	if err != nil {
		return err
	}
	if f.names == "" || strings.ContainsAny(f.names, "/+#\x00") || len(f.names) > 100 {
		return usageError("--names: %q is not one level of a topic", f.names)
	}
	if f.repeat < 1 {
		return usageError("--repeat must be at least 1")
	}
	report := newBenchReport(loads, places)
	show := newBenchProgress(os.Stderr)
	// Brokers take turns within a load: whatever else the machine does meets all of them.
	for _, l := range loads {
		for pass := range f.repeat {
			for _, p := range places {
				show.begin(fmt.Sprintf("%s %s %d/%d", l.Name, p.name, pass+1, f.repeat))
				r, err := f.measure(cmd.Context(), p, l, show.update)
				if cmd.Context().Err() != nil {
					show.end()
					return cmd.Context().Err()
				}
				report.add(l.Name, p.name, r, err)
			}
		}
	}
	show.end()
	if f.json {
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", "  ")
		err = e.Encode(report.finish())
	} else {
		err = report.finish().table(cmd.OutOrStdout())
	}
	return errors.Join(err, report.verdict())
}

// measure runs a load on a broker once.
func (f *benchFlags) measure(ctx context.Context, p place, l bench.Load, progress func(bench.Progress)) (*bench.Result, error) {
	o := client.Options{URL: p.url, TLS: f.tls, Version: f.version, User: f.username, Password: f.password, Timeout: f.timeout}
	if p.command == "" {
		if u, err := client.ParseURL(p.url); err == nil && u.User != nil {
			o.User = u.User.Username()
			o.Password, _ = u.User.Password()
		}
		t := &bench.Target{Name: p.name, Options: o, Names: f.names}
		if f.pid != 0 {
			t.Process = &bench.Process{PID: f.pid}
		}
		return bench.Run(ctx, t, l, progress)
	}
	b, err := bench.Launcher{Command: p.command, Kill: f.kill}.Start(ctx, f.dir)
	if err != nil {
		return nil, err
	}
	t := b.Target(p.name, o)
	t.Names = f.names
	r, err := bench.Run(ctx, t, l, progress)
	return r, errors.Join(err, b.Close())
}

// benchMachine is where it was measured.
type benchMachine struct {
	OS   string    `json:"os"`
	Arch string    `json:"arch"`
	CPUs int       `json:"cpus"`
	Tool string    `json:"tool"`
	Time time.Time `json:"time"`
}

func thisMachine() benchMachine {
	return benchMachine{runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), versionLine(), time.Now().UTC().Truncate(time.Second)}
}
