package main

import (
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/broker/admin"
)

func statusCommand() *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show a running broker at a glance",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var s admin.Status
			return f.ask(cmd, http.MethodGet, "/v1/status", nil, nil, &s, func(w io.Writer) { showStatus(w, &s) })
		},
	}
	f.add(cmd)
	return cmd
}

func showStatus(w io.Writer, s *admin.Status) {
	row(w, "version", s.Version)
	row(w, "up", ago(&s.Started))
	state := "serving"
	switch {
	case s.Failed != "":
		state = "FAILED: " + s.Failed
	case s.Full:
		state = "DISK FULL: publishes of QoS 1 and 2 are refused"
	case !s.Ready:
		state = "not serving"
	}
	row(w, "state", state)
	row(w, "sync", s.Sync)
	row(w, "connections", s.Connections)
	row(w, "sessions", s.Sessions)
	row(w, "subscriptions", s.Subscriptions)
	row(w, "queues", s.Queues)
	row(w, "topics", s.Topics)
	row(w, "retained", s.Retained)
	row(w, "messages in", s.MessagesIn)
	row(w, "messages out", s.MessagesOut)
	row(w, "refused", s.Refused)
	row(w, "offsets", fmt.Sprintf("%d to %d", s.First, s.Next))
	row(w, "store", byteSize(s.StoreBytes))
	row(w, "disk free", byteSize(s.DiskFree))
	row(w, "damaged", s.Damaged)
}
