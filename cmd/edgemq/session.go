package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/broker/admin"
)

func sessionCommand() *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "session",
		Short: "Look at and manage the sessions of a running broker",
	}
	f.add(cmd)
	cmd.AddCommand(sessionList(&f), sessionShow(&f),
		sessionChange(&f, "disconnect CLIENT...", "End clients' connections; their sessions stay", http.MethodPost, "/disconnect", "disconnected"),
		sessionChange(&f, "delete CLIENT...", "Delete sessions: subscriptions, and what waits for them", http.MethodDelete, "", "deleted"),
	)
	return cmd
}

func sessionPath(client, more string) string { return "/v1/sessions/" + url.PathEscape(client) + more }

func sessionList(f *adminFlags) *cobra.Command {
	var online bool
	cmd := &cobra.Command{
		Use:     "ls [PART OF CLIENT ID]",
		Aliases: []string{"list"},
		Short:   "List sessions",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{"limit": {"10000"}}
			if len(args) == 1 {
				q.Set("client", args[0])
			}
			if cmd.Flags().Changed("connected") {
				q.Set("connected", fmt.Sprint(online))
			}
			var ss admin.Sessions
			return f.ask(cmd, http.MethodGet, "/v1/sessions", q, nil, &ss, func(w io.Writer) {
				row(w, "CLIENT", "STATE", "SINCE", "REMOTE", "PROTOCOL", "SUBSCRIPTIONS", "WAITING", "IN FLIGHT")
				for _, s := range ss.Sessions {
					state := "offline"
					if s.Connected {
						state = "connected"
					}
					row(w, oneLine(s.Client, 60), state, ago(s.Since), none(s.Remote), none(s.Protocol), s.Filters, s.Depth, s.InFlight)
				}
				if ss.Next != "" {
					fmt.Fprintln(w, "… and more; give a part of the client id")
				}
			})
		},
	}
	cmd.Flags().BoolVar(&online, "connected", false, "only those that are, or with =false are not")
	return cmd
}

func sessionShow(f *adminFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "show CLIENT",
		Short: "Say all about a session",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var s admin.Session
			return f.ask(cmd, http.MethodGet, sessionPath(args[0], ""), nil, nil, &s, func(w io.Writer) {
				row(w, "client", s.Client)
				if s.User != "" {
					row(w, "user", s.User)
				}
				if s.Connected {
					row(w, "connected", fmt.Sprintf("from %s for %s, %s", s.Remote, ago(s.Since), s.Protocol))
				} else {
					row(w, "offline", fmt.Sprintf("since %s (%s)", at(s.Since), ago(s.Since)))
				}
				expiry := "never"
				if s.Expiry != nil {
					expiry = fmt.Sprintf("%d s after the connection", *s.Expiry)
				}
				row(w, "expires", expiry)
				row(w, "will", s.Will)
				row(w, "waiting", fmt.Sprintf("%s, %s", messages(s.Depth), byteSize(s.LagBytes)))
				row(w, "oldest", ago(s.Oldest))
				row(w, "in flight", s.InFlight)
				for _, sub := range s.Subscriptions {
					row(w, "subscription", fmt.Sprintf("%s (QoS %d)", sub.Filter, sub.QoS))
				}
			})
		},
	}
}

// sessionChange is a command that does the same to each session it is given.
func sessionChange(f *adminFlags, use, short, method, path, text string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, client := range args {
				if err := f.done(cmd, method, sessionPath(client, path), nil, oneLine(client, 60)+": "+text); err != nil {
					return fmt.Errorf("%s: %w", client, err)
				}
			}
			return nil
		},
	}
}
