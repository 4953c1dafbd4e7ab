// Command contest puts a broker to the test that edgemq was made for: producers fill topics (dams) and queues
// (canals), everything is killed the moment the last of them has flushed, and consumers must read back everything,
// unchanged and in order.
//
// It starts the broker, then itself as producers; kills both with kill -9 once every Flush has returned; starts the
// broker again, then itself as consumers, each with one queue that draws from its share of the topics, polling
// until there is nothing left. Every body, header and property is compared; within one producer's messages to one
// name there may be no gap, no repetition and no change of order. The result is messages/(T1+T2): T1 from the first
// send to the last Flush, T2 from the first attach to the last empty poll.
//
// With -raw the clients are plain sockets, which shows the speed of the broker rather than that of the SDK.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

type options struct {
	plan
	raw          bool
	binary, dir  string
	role, addr   string
	patience     time.Duration
	stdout       io.Writer
	brokerOutput io.Writer
}

func main() { os.Exit(run(os.Args[1:], os.Stdout)) }

func run(args []string, stdout io.Writer) int {
	var o options
	f := flag.NewFlagSet("contest", flag.ContinueOnError)
	f.IntVar(&o.Total, "n", 1_000_000, "messages in all")
	f.IntVar(&o.Producers, "producers", 10, "producers")
	f.IntVar(&o.Topics, "topics", 90, "topics")
	f.IntVar(&o.Queues, "queues", 10, "queues, and consumers")
	f.IntVar(&o.Large, "large", 20_000, "one message in so many is large, up to 100 KB (0: none)")
	f.Uint64Var(&o.Seed, "seed", uint64(time.Now().UnixNano()), "what is random follows from it")
	f.BoolVar(&o.raw, "raw", false, "plain sockets instead of the SDK")
	f.StringVar(&o.binary, "edgemq", "", "the broker's binary (default: built from this source)")
	f.StringVar(&o.dir, "dir", "", "directory for the broker's data (default: a temporary one)")
	f.DurationVar(&o.patience, "patience", 10*time.Minute, "give up after this long")
	f.StringVar(&o.role, "role", "", "internal: produce or consume")
	f.StringVar(&o.addr, "addr", "", "internal: the broker's address")
	if f.Parse(args) != nil {
		return 2
	}
	o.stdout = stdout
	ctx, cancel := context.WithTimeout(context.Background(), o.patience)
	defer cancel()
	var err error
	switch o.role {
	case "":
		err = o.contest(ctx)
	case "produce":
		err = o.produce(ctx)
	case "consume":
		err = o.consume(ctx)
	}
	if err != nil {
		fmt.Fprintln(stdout, "FAILED:", err)
		return 1
	}
	return 0
}

// contest is the whole check.
func (o *options) contest(ctx context.Context) error {
	tmp, err := os.MkdirTemp(o.dir, "edgemq-contest")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if o.binary == "" {
		if o.binary, err = build(ctx, tmp); err != nil {
			return err
		}
	}
	if o.addr, err = freeAddr(); err != nil {
		return err
	}
	how := "SDK"
	if o.raw {
		how = "raw sockets"
	}
	o.say("%d messages, %d producers, %d topics, %d queues, %s, seed %d", o.Total, o.Producers, o.Topics, o.Queues, how, o.Seed)
	b, err := o.broker(ctx, filepath.Join(tmp, "data"))
	if err != nil {
		return err
	}
	child, t1, _, err := o.child(ctx, "produce")
	if err == nil {
		_ = child.Process.Kill() // it sleeps after its last Flush, to be killed
	}
	kill(b)
	if child != nil {
		_ = child.Wait()
	}
	if err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	o.say("T1 %.3f s: sent and flushed; killed producers and broker (CPU: broker %.1f s, clients %.1f s)", t1.Seconds(), cpu(b), cpu(child))
	restart := time.Now()
	if b, err = o.broker(ctx, filepath.Join(tmp, "data")); err != nil {
		return err
	}
	defer func() { kill(b) }()
	o.say("the broker is back after %.3f s", time.Since(restart).Seconds())
	child, t2, n, err := o.child(ctx, "consume")
	if child != nil {
		_ = child.Wait()
	}
	kill(b)
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	o.say("T2 %.3f s: polled, compared %d messages (CPU: broker %.1f s, clients %.1f s)", t2.Seconds(), n, cpu(b), cpu(child))
	if n != o.Total {
		return fmt.Errorf("%d messages came, %d were sent", n, o.Total)
	}
	o.say("PASS: N/(T1+T2) = %d/(%.3f+%.3f) = %.0f messages/s", n, t1.Seconds(), t2.Seconds(), float64(n)/(t1+t2).Seconds())
	return nil
}

func (o *options) say(format string, args ...any) { fmt.Fprintf(o.stdout, format+"\n", args...) }

// build compiles the broker from the source this program was compiled from.
func build(ctx context.Context, dir string) (string, error) {
	_, here, _, _ := runtime.Caller(0)
	path := filepath.Join(dir, "edgemq")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "./cmd/edgemq")
	cmd.Dir = filepath.Join(filepath.Dir(here), "..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build edgemq: %w\n%s", err, out)
	}
	return path, nil
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// broker starts the broker and waits until it listens.
func (o *options) broker(ctx context.Context, data string) (*exec.Cmd, error) {
	cmd := exec.Command(o.binary, "serve", "--listen", o.addr, "--data", data)
	cmd.Stderr = o.brokerOutput
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for ctx.Err() == nil {
		conn, err := net.DialTimeout("tcp", o.addr, time.Second)
		if err == nil {
			_ = conn.Close()
			return cmd, nil
		}
		time.Sleep(2 * time.Millisecond)
	}
	kill(cmd)
	return nil, fmt.Errorf("the broker does not listen: %w", ctx.Err())
}

// cpu is the processor time that a process has had, which says more than the clock on a machine that others use too.
func cpu(cmd *exec.Cmd) float64 {
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
}

// kill is kill -9.
func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// report is what a child says on its standard output when it is done.
type report struct {
	Error string
	Took  time.Duration
	N     int
}

// child runs this program in a role until it reports. The caller ends it.
func (o *options) child(ctx context.Context, role string) (*exec.Cmd, time.Duration, int, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, 0, 0, err
	}
	p := o.plan
	cmd := exec.CommandContext(ctx, self, "-role", role, "-addr", o.addr, fmt.Sprintf("-raw=%t", o.raw),
		"-n", fmt.Sprint(p.Total), "-producers", fmt.Sprint(p.Producers), "-topics", fmt.Sprint(p.Topics),
		"-queues", fmt.Sprint(p.Queues), "-seed", fmt.Sprint(p.Seed), "-large", fmt.Sprint(p.Large), "-patience", o.patience.String())
	cmd.Env = append(os.Environ(), "EDGEMQ_CONTEST_CHILD=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, 0, 0, err
	}
	if err := cmd.Start(); err != nil {
		return nil, 0, 0, err
	}
	for s := bufio.NewScanner(out); s.Scan(); {
		line, ok := strings.CutPrefix(s.Text(), "REPORT ")
		if !ok {
			o.say("%s: %s", role, s.Text())
			continue
		}
		var r report
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return cmd, 0, 0, err
		}
		if r.Error != "" {
			err = errors.New(r.Error)
		}
		return cmd, r.Took, r.N, err
	}
	return cmd, 0, 0, errors.New("it ended without a report")
}

func (o *options) report(start time.Time, n int, errs ...error) {
	r := report{Took: time.Since(start), N: n}
	if err := errors.Join(errs...); err != nil {
		r.Error = err.Error()
	}
	line, _ := json.Marshal(r)
	o.say("REPORT %s", line)
}

// produce runs all producers, reports, and waits to be killed.
func (o *options) produce(ctx context.Context) error {
	start := time.Now()
	errs := make([]error, o.Producers)
	var wg sync.WaitGroup
	for k := range o.Producers {
		wg.Go(func() {
			if o.raw {
				errs[k] = rawProduce(ctx, o.addr, &o.plan, k)
			} else {
				errs[k] = sdkProduce(ctx, o.addr, &o.plan, k)
			}
		})
	}
	wg.Wait()
	o.report(start, o.Total, errs...)
	<-ctx.Done()
	return nil
}

// consume runs all consumers and reports.
func (o *options) consume(ctx context.Context) error {
	start := time.Now()
	errs, checks := make([]error, o.Queues), make([]*check, o.Queues)
	var wg sync.WaitGroup
	for i := range o.Queues {
		wg.Go(func() {
			if o.raw {
				checks[i], errs[i] = rawConsume(ctx, o.addr, &o.plan, i)
			} else {
				checks[i], errs[i] = sdkConsume(ctx, o.addr, &o.plan, i)
			}
		})
	}
	wg.Wait()
	took := time.Now()
	n := 0
	for i, c := range checks {
		if c == nil {
			continue
		}
		if n += c.Checked; errs[i] == nil {
			errs[i] = c.done()
		}
	}
	o.report(start.Add(time.Since(took)), n, errs...) // counting what was sent is not part of consuming
	return nil
}
