package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/broker/admin"
)

func topicCommand() *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "topic",
		Short: "Look at the topics that a running broker has messages of",
	}
	f.add(cmd)
	cmd.AddCommand(topicList(&f), topicStat(&f))
	return cmd
}

func topicList(f *adminFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "ls [FILTER]",
		Aliases: []string{"list"},
		Short:   "List topics with what is stored of them",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{"limit": {"10000"}}
			if len(args) == 1 {
				q.Set("filter", args[0])
			}
			var ts admin.Topics
			return f.ask(cmd, http.MethodGet, "/v1/topics", q, nil, &ts, func(w io.Writer) {
				row(w, "TOPIC", "MESSAGES", "BYTES")
				for _, t := range ts.Topics {
					row(w, t.Name, t.Messages, byteSize(t.Bytes))
				}
				if ts.Next != "" {
					fmt.Fprintln(w, "… and more; give a filter")
				}
			})
		},
	}
}

func topicStat(f *adminFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "stat TOPIC...",
		Short: "Say what is stored of topics, from when to when",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				var t admin.Topic
				err := f.ask(cmd, http.MethodGet, "/v1/topic", url.Values{"name": {name}}, nil, &t, func(w io.Writer) {
					row(w, "topic", t.Name)
					row(w, "messages", t.Messages)
					row(w, "bytes", byteSize(t.Bytes))
					if t.Messages > 0 {
						row(w, "first", fmt.Sprintf("offset %d, %s", t.First, at(t.FirstAt)))
						row(w, "last", fmt.Sprintf("offset %d, %s", t.Last, at(t.LastAt)))
					}
				})
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			return nil
		},
	}
}
