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

func messageCommand() *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "message",
		Short: "Find stored messages of a running broker",
	}
	f.add(cmd)
	cmd.AddCommand(messageGet(&f))
	return cmd
}

func messageGet(f *adminFlags) *cobra.Command {
	var (
		id, key, topic, from, to string
		offset                   uint64
		limit                    = 100
	)
	cmd := &cobra.Command{
		Use:   "get (--offset N | --id ID | --key KEY | --topic FILTER) [--from START] [--to END]",
		Short: "Show messages by offset, @MessageId, @SearchKey, or topic and time",
		Example: `  edgemq message get --offset 4711
  edgemq message get --id 7f3c
  edgemq message get --key order-1234 --from 2h
  edgemq message get --topic 'shop/#' --from 2h --to 1h -n 20
  edgemq message get --topic '$queue/orders-dead'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := url.Values{}
			set := func(flag, value string) {
				if cmd.Flags().Changed(flag) {
					q.Set(flag, value)
				}
			}
			set("id", id)
			set("key", key)
			set("topic", topic)
			set("from", from)
			set("to", to)
			set("offset", strconv.FormatUint(offset, 10))
			if !cmd.Flags().Changed("offset") || len(q) > 1 || cmd.Flags().Changed("limit") {
				q.Set("limit", strconv.Itoa(limit))
			}
			return showMessages(cmd, f, "/v1/messages", q)
		},
	}
	fs := cmd.Flags()
	fs.Uint64Var(&offset, "offset", 0, "the message at this offset; with another flag: begin there")
	fs.StringVar(&id, "id", "", "messages with this @MessageId")
	fs.StringVar(&key, "key", "", "messages with this @SearchKey")
	fs.StringVarP(&topic, "topic", "t", "", "messages of topics that match this filter; $queue/<name> for those sent straight to a queue")
	fs.StringVar(&from, "from", "", "from here on, as in $s/<start>/: earliest, RFC 3339, Unix time in µs, a duration back like 90m or 7d, offset:<n>")
	fs.StringVar(&to, "to", "", "up to here, in the same forms")
	fs.IntVarP(&limit, "limit", "n", limit, "messages to show")
	cmd.MarkFlagsMutuallyExclusive("id", "key", "topic")
	cmd.MarkFlagsOneRequired("offset", "id", "key", "topic", "from")
	return cmd
}

// showMessages asks for messages and prints them.
func showMessages(cmd *cobra.Command, f *adminFlags, path string, q url.Values) error {
	var m admin.Messages
	return f.ask(cmd, http.MethodGet, path, q, nil, &m, func(w io.Writer) {
		row(w, "OFFSET", "TIME", "TOPIC", "CLIENT", "QOS", "PROPERTIES", "PAYLOAD")
		for i := range m.Messages {
			msg := &m.Messages[i]
			var props []string
			for _, p := range msg.User {
				props = append(props, p[0]+"="+p[1])
			}
			row(w, msg.Offset, at(&msg.Time), msg.Topic, msg.Client, msg.QoS, oneLine(none(strings.Join(props, " ")), 60), payload(msg))
		}
		if m.Next > 0 {
			fmt.Fprintf(w, "… more from --offset %d\n", m.Next)
		}
	})
}

// payload is a message's payload on one line.
func payload(m *admin.Message) string {
	if m.Payload == nil {
		return fmt.Sprintf("(%d bytes, not text)", len(m.PayloadBase64))
	}
	return oneLine(*m.Payload, 100)
}

// oneLine cuts a text and makes it safe for a terminal.
func oneLine(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	if q := strconv.Quote(s); q != `"`+s+`"` {
		return q
	}
	return s
}
