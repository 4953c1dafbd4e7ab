package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/internal/bench"
)

func benchDiskCommand() *cobra.Command {
	var (
		dir    string
		each   time.Duration
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "disk",
		Short: "Measure what the disk allows",
		Long: `Measure the disk under a directory as the store uses it: small writes made durable one after the other, and long ones.
From that follows what no broker that waits for the disk can do better.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := bench.MeasureDisk(cmd.Context(), dir, each)
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(struct {
					Machine benchMachine `json:"machine"`
					*bench.Disk
				}{thisMachine(), d})
			}
			return writeDisk(cmd.OutOrStdout(), d)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", ".", "`directory` on the disk")
	durationVar(cmd, &each, "time", 2*time.Second, "how long to measure each figure")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func writeDisk(out io.Writer, d *bench.Disk) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tp50\tp99\tp99.9\tmost")
	for _, row := range []struct {
		name string
		l    bench.Latency
	}{
		{"write and fdatasync 4 KiB", d.Commit},
		{"write and fdatasync 64 KiB", d.Group},
		{"new file, durable", d.Create},
	} {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", row.name, micros(row.l.P50), micros(row.l.P99), micros(row.l.P999), micros(row.l.Max))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	// One fdatasync acknowledges the window of one publisher, or those of many: the more wait, the more share it.
	perSecond := 1e6 / d.Commit.P50
	fmt.Fprintf(out, `sequential writing: %.0f MB/s (%d MB)

What follows for messages that are on disk before they are acknowledged:
  one publisher, one message at a time    at most %s/s
  20 publishers, one message at a time    at most %s/s (all wait for the same fdatasync)
  64 KiB payloads, each written twice     at most %s/s (journal, then segment)
`, d.MBps, d.SequentialMB, thousands(perSecond), thousands(20*perSecond), thousands(d.MBps*1e6/2/(64<<10)))
	return nil
}
