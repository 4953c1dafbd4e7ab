package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/internal/client"
)

type subFlags struct {
	connectFlags
	topics    []string
	queue     string
	bind      []string
	qos       uint8
	clean     bool
	expiry    string
	count     int
	wait      time.Duration
	verbose   bool
	json      bool
	noRetry   bool
	readiness bool
}

func subCommand() *cobra.Command {
	var f subFlags
	cmd := &cobra.Command{
		Use:   "sub (-t FILTER... | --queue NAME [--bind FILTER]...)",
		Short: "Receive messages and print them",
		Long: `Receive messages and print their payloads, one a line.

A message is acknowledged after it has been printed: whatever kills sub, the broker sends the rest again to the
next one with the same --id and --session-expiry, or to the next consumer of the queue.

If the connection breaks, sub connects again until it is stopped, or --timeout has passed.`,
		Example: `  edgemq sub -t 'sensors/#' -v
  edgemq sub -t 'alarms/#' --id panel-1 --session-expiry 7d      # what comes while it is away waits for it
  edgemq sub --queue orders --bind 'shop/+/order' --json         # from the oldest message kept
  edgemq sub --queue orders --count 10 --timeout 5s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return sub(cmd, &f) },
	}
	f.connectFlags.add(cmd)
	fs := cmd.Flags()
	fs.StringArrayVarP(&f.topics, "topic", "t", nil, "topic `filter`, repeatable")
	fs.StringVar(&f.queue, "queue", "", "attach to this queue")
	fs.StringArrayVar(&f.bind, "bind", nil, "bind this topic `filter` to the queue, repeatable")
	fs.Uint8VarP(&f.qos, "qos", "q", 1, "quality of service: 0, 1 or 2")
	fs.BoolVar(&f.clean, "clean", false, "forget what the broker kept for this --id and start anew")
	fs.StringVar(&f.expiry, "session-expiry", "0", "the broker keeps the session so long after a disconnect: a `duration` or never (MQTT 3.1.1: anything but 0 is never)")
	fs.IntVarP(&f.count, "count", "n", 0, "stop after so many messages (0: do not)")
	durationVar(cmd, &f.wait, "timeout", 0, "stop after this time (0: do not)")
	fs.BoolVarP(&f.verbose, "verbose", "v", false, "print the topic before the payload")
	fs.BoolVar(&f.json, "json", false, "print each message as a JSON object, with all its properties")
	fs.BoolVar(&f.noRetry, "no-reconnect", false, "end when the connection breaks")
	fs.BoolVar(&f.readiness, "ready", false, `say "subscribed" on standard error when the broker has granted everything`)
	cmd.MarkFlagsMutuallyExclusive("topic", "queue")
	cmd.MarkFlagsOneRequired("topic", "queue")
	cmd.MarkFlagsMutuallyExclusive("topic", "bind")
	cmd.MarkFlagsMutuallyExclusive("verbose", "json")
	return cmd
}

func sub(cmd *cobra.Command, f *subFlags) error {
	o, err := f.sessionOptions(cmd)
	if err != nil {
		return err
	}
	s := &subscriber{flags: f, options: o, out: newPrinter(cmd.OutOrStdout(), f.verbose, f.json)}
	ctx := cmd.Context()
	if f.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.wait)
		defer cancel()
	}
	err = s.run(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && f.count > 0:
		return &exitError{exitTimeout, fmt.Errorf("timed out after %v with %d of %d messages", f.wait, s.received, f.count)}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return nil // told to stop
	}
	return err
}

// filters are what to subscribe to.
func (f *subFlags) filters() []string {
	if f.queue == "" {
		return f.topics
	}
	if len(f.bind) == 0 {
		return []string{"$queue/" + f.queue}
	}
	var out []string
	for _, b := range f.bind {
		out = append(out, "$queue/"+f.queue+"/"+b)
	}
	return out
}

func (f *subFlags) sessionOptions(cmd *cobra.Command) (client.Options, error) {
	o, err := f.options(cmd)
	if err != nil {
		return o, err
	}
	switch {
	case f.qos > 2:
		return o, usageError("--qos: %d is not 0, 1 or 2", f.qos)
	case f.count < 0:
		return o, usageError("--count: %d is negative", f.count)
	case strings.Contains(f.queue, "/"):
		return o, usageError("--queue: %q: a queue's name has no /; topics are bound to it with --bind", f.queue)
	}
	for _, filter := range f.filters() {
		if filter == "" {
			return o, usageError("--topic: it is empty")
		}
	}
	o.SessionExpiry, err = parseExpiry("session-expiry", f.expiry)
	if err != nil {
		return o, err
	}
	if o.SessionExpiry > 0 {
		if o.ID == "" {
			return o, usageError("--session-expiry: the broker knows the session again by --id only: set that too")
		}
		o.CleanStart = f.clean
	}
	if f.count > 0 {
		// Hold no more than will be printed: the rest is for the next one.
		o.ReceiveMaximum = uint16(min(f.count, 65535))
	}
	return o, nil
}

// subscriber receives and prints until it has enough.
type subscriber struct {
	flags    *subFlags
	options  client.Options
	out      *printer
	received int
}

// Waiting times between attempts to connect again.
const (
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
)

func (s *subscriber) run(ctx context.Context) error {
	retry := retryFirst
	connectedOnce := false
	for {
		connected, err := s.session(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if connected {
			connectedOnce, retry = true, retryFirst
		}
		code := exitCode(err)
		if s.flags.noRetry || code != exitConnect || !connectedOnce {
			return err
		}
		fmt.Fprintf(os.Stderr, "edgemq: %v; connecting again\n", err)
		s.options.CleanStart = s.options.CleanStart && s.options.SessionExpiry == 0
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return ctx.Err()
		}
		retry = min(2*retry, retryMost)
	}
}

// session is one connection's life. It returns nil when there is nothing more to do.
func (s *subscriber) session(ctx context.Context) (connected bool, err error) {
	c, err := client.Dial(ctx, s.options)
	if err != nil {
		return false, err
	}
	defer c.Close()
	for _, filter := range s.flags.filters() {
		if err := c.Subscribe(ctx, client.Subscription{Filter: filter, QoS: s.flags.qos}); err != nil {
			return true, err
		}
	}
	if s.flags.readiness {
		fmt.Fprintln(os.Stderr, "subscribed")
	}
	return true, s.receive(ctx, c)
}

// batch bounds what is printed in one go.
const batch = 256

// receive prints what is there, then acknowledges it: only what has reached standard output is acknowledged.
func (s *subscriber) receive(ctx context.Context, c client.Client) error {
	poll, cancel := context.WithCancel(context.Background())
	cancel()
	var pending []*client.Delivery
	for s.flags.count == 0 || s.received < s.flags.count {
		d, err := c.Next(ctx)
		for ; err == nil; d, err = c.Next(poll) { // what else is there already
			if err := s.out.message(&d.Message); err != nil {
				return fmt.Errorf("print: %w", err)
			}
			pending = append(pending, d)
			s.received++
			if len(pending) == batch || s.received == s.flags.count {
				break
			}
		}
		if err := s.out.Flush(); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		for _, d := range pending {
			if ackErr := d.Ack(); ackErr != nil {
				return ackErr // it will come again
			}
		}
		pending = pending[:0]
		if err != nil && !(errors.Is(err, context.Canceled) && ctx.Err() == nil) {
			return err
		}
	}
	return nil
}
