package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/broker/admin"
	"github.com/edgemq/edgemq/internal/config"
)

func queueCommand() *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "Look at and manage the queues of a running broker",
		Example: `  edgemq queue ls
  edgemq queue create orders 'shop/+/order'
  edgemq queue info orders
  edgemq queue set orders max_deliveries=3 retry_delay=10s,1m ack_timeout=30s
  edgemq queue peek orders -n 3
  edgemq queue reset orders 2h
  edgemq queue redrive orders`,
	}
	f.add(cmd)
	cmd.AddCommand(
		queueList(&f), queueInfo(&f), queueSet(&f), queueCreate(&f), queueBind(&f), queueUnbind(&f), queuePeek(&f), queueReset(&f), queueMove(&f), queueRedrive(&f),
		queueChange(&f, "delete NAME...", "Delete queues: their bindings and their place in the log; stored messages stay", http.MethodDelete, "", "deleted"),
		queueChange(&f, "purge NAME...", "Skip all that waits in queues", http.MethodPost, "/purge", "messages skipped: %d"),
		queueChange(&f, "pause NAME...", "Stop handing out messages; they are kept", http.MethodPost, "/pause", "paused"),
		queueChange(&f, "resume NAME...", "Hand out messages again", http.MethodPost, "/resume", "resumed"),
	)
	return cmd
}

func queuePath(name, more string) string { return "/v1/queues/" + url.PathEscape(name) + more }

// queueChange is a command that does the same to each queue it is given.
func queueChange(f *adminFlags, use, short, method, path, text string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := f.done(cmd, method, queuePath(name, path), nil, name+": "+text); err != nil {
					return err // which names the queue
				}
			}
			return nil
		},
	}
}

func queueList(f *adminFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List queues with what waits in them",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var qs []admin.Queue
			return f.ask(cmd, http.MethodGet, "/v1/queues", nil, nil, &qs, func(w io.Writer) {
				row(w, "NAME", "DEPTH", "BYTES", "OLDEST", "IN FLIGHT", "MEMBERS", "REDELIVERED", "DEAD", "BINDINGS")
				for _, q := range qs {
					name := q.Name
					if q.Paused {
						name += " (paused)"
					}
					row(w, name, q.Depth, byteSize(q.LagBytes), ago(q.Oldest), q.InFlight, q.Members, q.Redelivered, q.Dead, none(strings.Join(q.Bindings, " ")))
				}
			})
		},
	}
}

func queueInfo(f *adminFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "info NAME",
		Aliases: []string{"show"},
		Short:   "Say all about a queue: what waits, who consumes, its settings",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var q admin.Queue
			return f.ask(cmd, http.MethodGet, queuePath(args[0], ""), nil, nil, &q, func(w io.Writer) { showQueue(w, &q) })
		},
	}
}

func queueSet(f *adminFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "set NAME KEY=VALUE...",
		Short: "Change settings of a queue, for good: they count over the broker's settings file until set to default",
		Long: `Change settings of a queue while it runs. They are kept with the queue, survive restarts, and count over what the
broker's settings (queues in config.yaml) say of it, until they are set to "default".

  max_in_flight=N        unacknowledged messages of one consumer; 0: its window
  max_deliveries=N       a message refused so often goes to the dead letters; 0: never
  retry_delay=T[,T...]   how long it waits after its first, second, ... refusal
  dead_letter=QUEUE      where dead letters go; empty: NAME-dead
  ordered=true|false     a refused message holds back the later ones of its key
  exclusive=true|false   one consumer at a time; the others stand by
  ack_timeout=T          a consumer that keeps a message longer is disconnected; 0: never
  max_messages=N         that may wait; 0: any number
  max_bytes=SIZE         likewise
  max_age=T              older messages are dropped; 0: none
  overflow=drop_oldest|reject`,
		Example: `  edgemq queue set orders max_deliveries=3 retry_delay=10s,1m,10m
  edgemq queue set orders max_messages=100000 max_bytes=1GiB overflow=reject
  edgemq queue set orders max_age=7d
  edgemq queue set orders max_deliveries=default`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := config.QueueSettings(args[1:])
			if err != nil {
				return usageError("%w", err)
			}
			var q admin.Queue
			return f.ask(cmd, http.MethodPatch, queuePath(args[0], ""), nil, in, &q, func(w io.Writer) { showSettings(w, &q) })
		},
	}
}

// showSettings writes a queue's settings, those with a mark that were set for it.
func showSettings(w io.Writer, q *admin.Queue) {
	s := &q.Settings
	for _, line := range []struct {
		name  string
		value any
	}{
		{"max_in_flight", s.MaxInFlight},
		{"max_deliveries", s.MaxDeliveries},
		{"retry_delay", spans(s.RetryDelay...)},
		{"dead_letter", s.DeadLetter},
		{"ordered", s.Ordered},
		{"exclusive", s.Exclusive},
		{"ack_timeout", spans(s.AckTimeout)},
		{"max_messages", s.MaxMessages},
		{"max_bytes", s.MaxBytes},
		{"max_age", spans(s.MaxAge)},
		{"overflow", s.Overflow},
	} {
		if slices.Contains(q.Set, line.name) {
			row(w, line.name, fmt.Sprint(line.value, " (set)"))
		} else {
			row(w, line.name, line.value)
		}
	}
}

// spans writes durations as settings have them: 7d, not 168h0m0s.
func spans(texts ...string) string {
	out := make([]string, len(texts))
	for i, s := range texts {
		out[i] = s
		if d, err := time.ParseDuration(s); err == nil {
			out[i] = config.FormatDuration(d)
		}
	}
	return strings.Join(out, ",")
}

func showQueue(w io.Writer, q *admin.Queue) {
	row(w, "name", q.Name)
	row(w, "bindings", none(strings.Join(q.Bindings, " ")))
	row(w, "paused", q.Paused)
	row(w, "waiting", fmt.Sprintf("%s, %s", messages(q.Depth), byteSize(q.LagBytes)))
	if q.Oldest != nil {
		row(w, "oldest", fmt.Sprintf("%s (%s ago)", at(q.Oldest), ago(q.Oldest)))
	}
	row(w, "members", q.Members)
	row(w, "in flight", q.InFlight)
	row(w, "retrying", q.Retrying)
	settled := "everything" // also where the cursor has not got there yet, since nobody is attached who would have it go on
	if q.Depth > 0 || q.InFlight > 0 {
		settled = fmt.Sprint("all below offset ", q.Cursor)
	}
	row(w, "settled", fmt.Sprintf("%s; the next message stored gets offset %d", settled, q.NextOffset))
	row(w, "since start", fmt.Sprintf("sent %d, settled %d, expired %d, redelivered %d, dead %d, dropped %d",
		q.Sent, q.Settled, q.Expired, q.Redelivered, q.Dead, q.Dropped))
	showSettings(w, q)
}

func queueCreate(f *adminFlags) *cobra.Command {
	var set []string
	cmd := &cobra.Command{
		Use:   "create NAME [FILTER...]",
		Short: "Create a queue, and bind topic filters to it; it begins at the oldest message kept",
		Example: `  edgemq queue create orders 'shop/+/order'
  edgemq queue create recent 'readings/#' --with max_messages=100`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			settings, err := config.QueueSettings(set)
			if err != nil {
				return usageError("--with: %w", err)
			}
			var q admin.Queue
			in := admin.NewQueue{Name: args[0], Topics: args[1:], Settings: settings}
			return f.ask(cmd, http.MethodPost, "/v1/queues", nil, in, &q, func(w io.Writer) { showQueue(w, &q) })
		},
	}
	cmd.Flags().StringArrayVar(&set, "with", nil, "a setting of the queue, as `key=value` (see queue set); repeatable")
	return cmd
}

func queueBind(f *adminFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "bind NAME FILTER...",
		Short: "Have a queue draw from topics, from the oldest message kept on",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return bindings(cmd, f, args, "/bind", "bound to ")
		},
	}
}

func queueUnbind(f *adminFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "unbind NAME FILTER...",
		Short: "End bindings",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return bindings(cmd, f, args, "/unbind", "no longer bound to ")
		},
	}
}

func bindings(cmd *cobra.Command, f *adminFlags, args []string, path, text string) error {
	for _, filter := range args[1:] {
		if err := f.done(cmd, http.MethodPost, queuePath(args[0], path), admin.Binding{Filter: filter}, args[0]+": "+text+filter); err != nil {
			return err
		}
	}
	return nil
}

func queuePeek(f *adminFlags) *cobra.Command {
	n := 10
	cmd := &cobra.Command{
		Use:   "peek NAME",
		Short: "Show the first messages that wait, and leave them there",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showMessages(cmd, f, queuePath(args[0], "/messages"), url.Values{"limit": {strconv.Itoa(n)}})
		},
	}
	cmd.Flags().IntVarP(&n, "number", "n", n, "messages to show")
	return cmd
}

func queueReset(f *adminFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "reset NAME earliest|latest|TIME|DURATION|offset:N",
		Short: "Move a queue in the log: what comes after is handed out (again), what is before is not",
		Example: `  edgemq queue reset orders earliest
  edgemq queue reset orders 2026-07-01T08:00:00Z
  edgemq queue reset orders 90m
  edgemq queue reset orders offset:120000`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var d admin.Done
			return f.ask(cmd, http.MethodPost, queuePath(args[0], "/reset"), nil, admin.Reset{To: args[1]}, &d, func(w io.Writer) {
				fmt.Fprintf(w, "%s: begins at offset %d now\n", args[0], d.Offset)
				if d.Note != "" {
					fmt.Fprintln(w, d.Note)
				}
			})
		},
	}
}

func queueMove(f *adminFlags) *cobra.Command {
	var m admin.Move
	var n int
	cmd := &cobra.Command{
		Use:   "move FROM TO",
		Short: "Move what waits in a queue to the end of another",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			m.To = args[1]
			if err := some(cmd, &m, n); err != nil {
				return err
			}
			return f.done(cmd, http.MethodPost, queuePath(args[0], "/move"), m, "messages moved to "+strings.ReplaceAll(m.To, "%", "%%")+": %d")
		},
	}
	cmd.Flags().IntVarP(&n, "number", "n", 0, "messages to move (default: all there are)")
	return cmd
}

// some takes --number, if it is given.
func some(cmd *cobra.Command, m *admin.Move, n int) error {
	if !cmd.Flags().Changed("number") {
		return nil
	}
	if n < 1 {
		return usageError("--number: %d is no number of messages to move; without it all are moved", n)
	}
	m.Count = &n
	return nil
}

func queueRedrive(f *adminFlags) *cobra.Command {
	var m admin.Move
	var n int
	cmd := &cobra.Command{
		Use:   "redrive NAME",
		Short: "Move a queue's dead letters back to it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := some(cmd, &m, n); err != nil {
				return err
			}
			return f.done(cmd, http.MethodPost, queuePath(args[0], "/redrive"), m, "messages moved back: %d")
		},
	}
	cmd.Flags().IntVarP(&n, "number", "n", 0, "messages to move (default: all there are)")
	return cmd
}
