package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

func storeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Look into the data directory of a stopped broker",
	}
	cmd.AddCommand(storeVerifyCommand(), storeStatCommand(), storeDumpCommand(), storeRepairCommand(), storeSalvageCommand())
	return cmd
}

// storeOptions checks that there is a data directory to look into, so that a wrong path is not an empty store without damage.
func storeOptions(dir string) (store.Options, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return store.Options{}, err
	}
	if !info.IsDir() {
		return store.Options{}, fmt.Errorf("%s is not a directory", dir)
	}
	for _, name := range []string{"state.db", "journal", "ledger", "segments"} { // any: it may be damaged
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return store.Options{Dir: dir}, nil
		}
	}
	return store.Options{}, fmt.Errorf("%s is no data directory: it has no state.db, no journal and no segments", dir)
}

// explain adds what to do about an error of the store.
func explain(err error) error {
	if errors.Is(err, store.ErrLocked) {
		return fmt.Errorf("%w: stop the broker first", err)
	}
	return explainDamage(err)
}

// explainDamage says what is left to do where state.db is damaged as a file, and not a value in it, which the error says by itself.
func explainDamage(err error) error {
	if c, ok := errors.AsType[*record.CorruptError](err); ok && filepath.Base(c.Path) == "state.db" && !strings.Contains(err.Error(), "restore") {
		return fmt.Errorf("%w; there is no repair for that: restore the data directory from a copy, or see \"edgemq store salvage --help\"", err)
	}
	return err
}

func storeVerifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR",
		Short: "Check every byte; changes nothing; exit code 1 if there is damage",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := storeOptions(args[0])
			if err != nil {
				return err
			}
			r, err := store.Verify(o)
			if err != nil && !errors.Is(err, store.ErrDamaged) {
				return explain(err)
			}
			out := cmd.OutOrStdout()
			writeDamage(out, &r)
			fmt.Fprintf(out, "files=%d bytes=%d records=%d journal_groups=%d damaged=%d\n", r.Files, r.Bytes, r.Records, r.Groups, r.Places())
			return err
		},
	}
}

// writeDamage names what is damaged.
func writeDamage(out io.Writer, r *store.Report) {
	for _, d := range r.Damage {
		fmt.Fprintf(out, "damaged: %s at byte %d", d.Path, d.Pos)
		if d.Length > 0 {
			fmt.Fprintf(out, ", %d bytes", d.Length)
		}
		fmt.Fprintf(out, ": %v\n", d.Err)
	}
	for _, path := range slices.Sorted(maps.Keys(r.More)) {
		fmt.Fprintf(out, "damaged: %s: %d more places\n", path, r.More[path])
	}
}

func storeRepairCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "repair DIR",
		Short: "Delete what is damaged in state.db, so that the broker starts",
		Long: `Delete from state.db what is damaged, and print it: a session, a queue, a retained message, whatever it was. The broker
does not start before that, since nobody but you can say whether it may go. Make a copy of the directory first; if you have
an older copy of it that is sound, that may be the better way.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := storeOptions(args[0])
			if err != nil {
				return err
			}
			r, err := store.Repair(o)
			if err != nil {
				return explain(err)
			}
			for _, d := range r.Deleted {
				fmt.Fprintf(cmd.OutOrStdout(), "deleted: %s\n", d)
			}
			if r.Accepted != nil {
				fmt.Fprintf(cmd.OutOrStdout(), "accepted: %v\n", r.Accepted)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "deleted=%d\n", len(r.Deleted))
			return nil
		},
	}
}

func storeStatCommand() *cobra.Command {
	top := 10
	cmd := &cobra.Command{
		Use:   "stat DIR",
		Short: "Say what is in the data directory: offsets, sizes, the largest topics and clients",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := storeOptions(args[0])
			if err != nil {
				return err
			}
			s, err := store.Stat(o)
			if err != nil {
				return explain(err)
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "offsets:    %d to %d\n", s.First, s.Next)
			fmt.Fprintf(out, "checkpoint: %d", s.Checkpoint)
			if s.CheckpointTime > 0 {
				fmt.Fprintf(out, " at %s", time.UnixMicro(s.CheckpointTime).UTC().Format(time.RFC3339))
			}
			fmt.Fprintf(out, "\nsegments:   %d, %d bytes\nledger:     %d bytes\njournal:    %d bytes\nstate:      %d bytes\n",
				s.Segments, s.SegmentBytes, s.LedgerBytes, s.JournalBytes, s.StateBytes)
			writeCounts(out, "topic", s.Topics, top)
			writeCounts(out, "client", s.Clients, top)
			return nil
		},
	}
	cmd.Flags().IntVar(&top, "top", top, "topics and clients to list, those with most bytes first")
	return cmd
}

func writeCounts(out io.Writer, what string, counts []store.Count, top int) {
	fmt.Fprintf(out, "%ss: %d\n", what, len(counts))
	for _, c := range counts[:min(max(top, 0), len(counts))] {
		fmt.Fprintf(out, "  %-40s records=%d bytes=%d\n", c.Name, c.Records, c.Bytes)
	}
}

func storeDumpCommand() *cobra.Command {
	var f store.Filter
	cmd := &cobra.Command{
		Use:   "dump DIR",
		Short: "Write the stored messages as JSON, one a line",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := storeOptions(args[0])
			if err != nil {
				return err
			}
			return explain(store.Dump(cmd.OutOrStdout(), o, f))
		},
	}
	cmd.Flags().StringVarP(&f.Topic, "topic", "t", "", "only of this topic (exact name)")
	cmd.Flags().StringVar(&f.Client, "client", "", "only by this client")
	cmd.Flags().Uint64Var(&f.From, "from", 0, "first offset")
	cmd.Flags().Uint64Var(&f.Limit, "limit", 0, "stop after so many (0: do not)")
	return cmd
}
