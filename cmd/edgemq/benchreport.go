package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/edgemq/edgemq/internal/bench"
)

// errBroken means that a broker did not keep what MQTT promises. The figures are printed all the same.
var errBroken = errors.New("messages were lost, reordered, repeated or damaged")

// benchReport is what bench prints.
type benchReport struct {
	Machine benchMachine `json:"machine"`
	Loads   []bench.Load `json:"loads"`
	Results []*benchRow  `json:"results"`
}

// benchRow is a load on a broker: its runs, and medians and spread of them.
type benchRow struct {
	Load   string          `json:"load"`
	Broker string          `json:"broker"`
	Error  string          `json:"error,omitempty"` // of the last run that failed
	Runs   []*bench.Result `json:"runs"`

	PerSecond bench.Spread  `json:"per_second"`
	P50       bench.Spread  `json:"p50_us"`
	P99       bench.Spread  `json:"p99_us"`
	P999      bench.Spread  `json:"p999_us"`
	Max       bench.Spread  `json:"max_us"`
	BrokerCPU bench.Spread  `json:"broker_cpu_us"`
	ToolCPU   bench.Spread  `json:"tool_cpu_us"`
	BrokerRSS bench.Spread  `json:"broker_rss_mib"`
	Publish   *bench.Spread `json:"publish_per_second,omitempty"`
	Read      *bench.Spread `json:"read_per_second,omitempty"`
	Restart   *bench.Spread `json:"restart_seconds,omitempty"`
	KiB       *bench.Spread `json:"connection_kib,omitempty"`
	Faults    *bench.Faults `json:"faults,omitempty"`  // of all runs
	Foreign   int64         `json:"foreign,omitempty"` // likewise

	err    error
	broken bool
}

func newBenchReport(loads []bench.Load, places []place) *benchReport {
	r := &benchReport{Machine: thisMachine(), Loads: loads}
	for _, l := range loads {
		for _, p := range places {
			r.Results = append(r.Results, &benchRow{Load: l.Name, Broker: p.name})
		}
	}
	return r
}

func (r *benchReport) add(load, broker string, result *bench.Result, err error) {
	for _, row := range r.Results {
		if row.Load != load || row.Broker != broker {
			continue
		}
		if err != nil {
			row.err, row.Error = err, err.Error()
			return
		}
		row.Runs = append(row.Runs, result)
		row.broken = row.broken || result.Broken
		return
	}
}

// verdict is the error to end with.
func (r *benchReport) verdict() error {
	for _, row := range r.Results {
		if row.err != nil {
			return fmt.Errorf("%s: %w", row.Broker, row.err)
		}
	}
	for _, row := range r.Results {
		if row.broken {
			return fmt.Errorf("%s, %s: %w", row.Broker, row.Load, errBroken)
		}
	}
	return nil
}

// latency is what a run is judged by.
func latency(r *bench.Result) bench.Latency {
	for _, l := range []*bench.Latency{r.Delivery, r.Ack, r.Connect} {
		if l != nil {
			return *l
		}
	}
	return bench.Latency{}
}

// finish works out medians and spread.
func (r *benchReport) finish() *benchReport {
	for _, row := range r.Results {
		of := func(fn func(*bench.Result) float64) bench.Spread { return bench.SpreadOf(row.Runs, fn) }
		row.PerSecond = of(func(r *bench.Result) float64 { return r.Rate })
		row.P50 = of(func(r *bench.Result) float64 { return latency(r).P50 })
		row.P99 = of(func(r *bench.Result) float64 { return latency(r).P99 })
		row.P999 = of(func(r *bench.Result) float64 { return latency(r).P999 })
		row.Max = of(func(r *bench.Result) float64 { return latency(r).Max })
		row.BrokerCPU = of(func(r *bench.Result) float64 { return r.BrokerCPU })
		row.ToolCPU = of(func(r *bench.Result) float64 { return r.ToolCPU })
		row.BrokerRSS = of(func(r *bench.Result) float64 { return r.BrokerRSS })
		maybe := func(fn func(*bench.Result) float64) *bench.Spread {
			if s := of(fn); s.Max != 0 {
				return &s
			}
			return nil
		}
		row.Publish = maybe(func(r *bench.Result) float64 { return r.PublishRate })
		row.Read = maybe(func(r *bench.Result) float64 { return r.ReadRate })
		row.Restart = maybe(func(r *bench.Result) float64 { return r.RestartSeconds })
		row.KiB = maybe(func(r *bench.Result) float64 { return r.ConnectionKiB })
		row.Faults, row.Foreign = nil, 0
		for _, run := range row.Runs {
			row.Foreign += run.Foreign
			if run.Faults != nil {
				if row.Faults == nil {
					row.Faults = &bench.Faults{}
				}
				row.Faults.Add(*run.Faults)
			}
		}
	}
	return r
}

// table writes the medians for people.
func (r *benchReport) table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "load\tbroker\tper second\t(least-most)\tp50\tp99\tp99.9\tmost\tCPU\tRSS\t")
	for _, row := range r.Results {
		fmt.Fprintf(w, "%s\t%s\t", row.Load, row.Broker)
		if len(row.Runs) == 0 {
			fmt.Fprintf(w, "failed: %s\n", strings.ReplaceAll(row.Error, "\n", "; "))
			continue
		}
		fmt.Fprintf(w, "%s\t(%s-%s)\t%s\t%s\t%s\t%s\t", thousands(row.PerSecond.Median), thousands(row.PerSecond.Min), thousands(row.PerSecond.Max),
			micros(row.P50.Median), micros(row.P99.Median), micros(row.P999.Median), micros(row.Max.Median))
		if row.BrokerRSS.Max > 0 {
			fmt.Fprintf(w, "%.2fµs\t%.0fMiB\t", row.BrokerCPU.Median, row.BrokerRSS.Median)
		} else {
			fmt.Fprint(w, "\t\t")
		}
		fmt.Fprintln(w, row.remarks())
	}
	return w.Flush()
}

// remarks are the figures that only some loads have, and what was wrong.
func (row *benchRow) remarks() string {
	var s []string
	if row.Publish != nil {
		s = append(s, "published "+thousands(row.Publish.Median)+"/s")
	}
	if row.Restart != nil {
		s = append(s, fmt.Sprintf("restarted in %.2fs", row.Restart.Median))
	}
	if row.Read != nil {
		s = append(s, "read "+thousands(row.Read.Median)+"/s")
	}
	if row.KiB != nil {
		s = append(s, fmt.Sprintf("%.1fKiB a connection", row.KiB.Median))
	}
	if row.Faults != nil {
		s = append(s, row.Faults.String())
	}
	if row.Foreign > 0 {
		s = append(s, fmt.Sprintf("%d messages of another run", row.Foreign))
	}
	if row.err != nil {
		s = append(s, "a run failed: "+strings.ReplaceAll(row.Error, "\n", "; "))
	}
	return strings.Join(s, ", ")
}

// thousands writes a number with commas.
func thousands(f float64) string {
	s := strconv.FormatFloat(f, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// micros writes microseconds in the unit people would use.
func micros(us float64) string {
	switch {
	case us < 1000:
		return fmt.Sprintf("%.0fµs", us)
	case us < 100_000:
		return fmt.Sprintf("%.2fms", us/1000)
	case us < 1_000_000:
		return fmt.Sprintf("%.0fms", us/1000)
	}
	return fmt.Sprintf("%.2fs", us/1e6)
}

// benchProgress keeps one line of a terminal up to date; of what is no terminal it writes nothing.
type benchProgress struct {
	out  io.Writer // nil: none
	what string
	last bench.Progress
	at   time.Time
}

func newBenchProgress(f *os.File) *benchProgress {
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return &benchProgress{}
	}
	return &benchProgress{out: f}
}

// clear is the way back to the beginning of an empty line.
const clearLine = "\r\x1b[K"

func (p *benchProgress) begin(what string) {
	p.what = what
	p.update(bench.Progress{Phase: "starting"})
}

func (p *benchProgress) update(now bench.Progress) {
	if p.out == nil {
		return
	}
	line := p.what + ": " + now.Phase
	if now.Total > 0 {
		line += fmt.Sprintf(" %s of %s", thousands(float64(now.Done)), thousands(float64(now.Total)))
	}
	t := time.Now()
	if now.Phase == p.last.Phase && now.Done > p.last.Done {
		line += fmt.Sprintf(", %s/s", thousands(float64(now.Done-p.last.Done)/t.Sub(p.at).Seconds()))
	}
	p.last, p.at = now, t
	fmt.Fprint(p.out, clearLine+line)
}

func (p *benchProgress) end() {
	if p.out != nil {
		fmt.Fprint(p.out, clearLine)
	}
}
