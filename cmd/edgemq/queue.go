package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/broker/admin"
)

func queueCommand() *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "Look at and manage the queues of a running broker",
		Example: `  edgemq queue ls
  edgemq queue create orders 'shop/+/order'
  edgemq queue peek orders -n 3
  edgemq queue reset orders 2h
  edgemq queue redrive orders`,
	}
	f.add(cmd)
	cmd.AddCommand(
		queueList(&f), queueCreate(&f), queueBind(&f), queueUnbind(&f), queuePeek(&f), queueReset(&f), queueMove(&f), queueRedrive(&f),
		queueChange(&f, "delete NAME...", "Delete queues: their bindings and their place in the log; stored messages stay", http.MethodDelete, "", "deleted"),
		queueChange(&f, "purge NAME...", "Skip all that waits in queues", http.MethodPost, "/purge", "%d messages skipped"),
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
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			return nil
		},
	}
}

func queueList(f *adminFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "ls [NAME]",
		Aliases: []string{"list", "show"},
		Short:   "List queues with what waits in them; with NAME all about that one",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				var q admin.Queue
				return f.ask(cmd, http.MethodGet, queuePath(args[0], ""), nil, nil, &q, func(w io.Writer) { showQueue(w, &q) })
			}
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

func showQueue(w io.Writer, q *admin.Queue) {
	row(w, "name", q.Name)
	row(w, "bindings", none(strings.Join(q.Bindings, " ")))
	row(w, "paused", q.Paused)
	row(w, "waiting", fmt.Sprintf("%d messages, %s", q.Depth, byteSize(q.LagBytes)))
	row(w, "oldest", fmt.Sprintf("%s (%s ago)", at(q.Oldest), ago(q.Oldest)))
	row(w, "members", q.Members)
	row(w, "in flight", q.InFlight)
	row(w, "retrying", q.Retrying)
	row(w, "cursor", q.Cursor)
	row(w, "dead letters", q.DeadLetter)
	row(w, "since start", fmt.Sprintf("sent %d, settled %d, expired %d, redelivered %d, dead %d", q.Sent, q.Settled, q.Expired, q.Redelivered, q.Dead))
}

func queueCreate(f *adminFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "create NAME [FILTER...]",
		Short: "Create a queue, and bind topic filters to it; it begins at the oldest message kept",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var q admin.Queue
			in := admin.NewQueue{Name: args[0], Topics: args[1:]}
			return f.ask(cmd, http.MethodPost, "/v1/queues", nil, in, &q, func(w io.Writer) { showQueue(w, &q) })
		},
	}
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
			return bindings(cmd, f, args, "/unbind", "not bound any more to ")
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
			return f.done(cmd, http.MethodPost, queuePath(args[0], "/reset"), admin.Reset{To: args[1]}, args[0]+": reset to "+args[1])
		},
	}
}

func queueMove(f *adminFlags) *cobra.Command {
	var m admin.Move
	cmd := &cobra.Command{
		Use:   "move FROM TO",
		Short: "Move what waits in a queue to the end of another",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			m.To = args[1]
			return f.done(cmd, http.MethodPost, queuePath(args[0], "/move"), m, "%d messages moved to "+strings.ReplaceAll(m.To, "%", "%%"))
		},
	}
	cmd.Flags().IntVarP(&m.Count, "number", "n", 0, "messages to move (0: all there are)")
	return cmd
}

func queueRedrive(f *adminFlags) *cobra.Command {
	var m admin.Move
	cmd := &cobra.Command{
		Use:   "redrive NAME",
		Short: "Move a queue's dead letters back to it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.done(cmd, http.MethodPost, queuePath(args[0], "/redrive"), m, "%d messages moved back")
		},
	}
	cmd.Flags().IntVarP(&m.Count, "number", "n", 0, "messages to move (0: all there are)")
	return cmd
}
