package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/broker/admin"
	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/session"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

func storeSalvageCommand() *cobra.Command {
	var f store.Filter
	to := ""
	cmd := &cobra.Command{
		Use:   "salvage DIR [--to NEWDIR]",
		Short: "Take the messages out of a directory whose state.db is lost or damaged",
		Long: `Read all messages that can be found in a data directory, whatever is left of its state.db, in the order in which they were stored.
DIR is not changed.

Without --to they are written as JSON, one a line, in the form that "edgemq pub --json-lines" publishes. With --to a new data
directory is made in which a broker starts: messages under their offsets, topics and clients by their names, and of queues, sessions,
subscriptions and cursors what is sound in state.db. If it does not open at all, those are gone: queues are made anew by those who
attach, and begin with the oldest message. Retained messages are then the last ones with RETAIN among the messages found.

A topic whose name is lost is called $lost/topic-<number>. Messages that were dropped by limits of their topic, or whose
deletion was not finished, may be among those found if state.db is lost.

Errors and the summary go to standard error if messages go to standard output.`,
		Example: `  edgemq store salvage data --to data.salvaged
  edgemq store salvage data | edgemq pub --json-lines --host new-broker`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := storeOptions(args[0])
			if err != nil {
				return err
			}
			o.Mend = func(bucket record.Bucket, key []byte) (store.Mutation, bool) {
				return feed.MendCursor(key), bucket == record.BucketCursors
			}
			if to == "" {
				return salvageLines(cmd, o, f)
			}
			if into, err := inside(to, args[0]); err != nil {
				return err
			} else if into {
				return usageError("--to: %s is inside %s, which is not to be changed", to, args[0])
			}
			r, err := store.Salvage(o, store.SalvageOptions{To: to, Retain: session.Retained})
			if err != nil {
				return explain(err)
			}
			writeSalvaged(cmd.OutOrStdout(), r)
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "make this data directory; it must not be there")
	cmd.Flags().StringVarP(&f.Topic, "topic", "t", "", "only of this topic (exact name)")
	cmd.Flags().StringVar(&f.Client, "client", "", "only by this client")
	cmd.Flags().Uint64Var(&f.From, "from", 0, "first offset")
	cmd.Flags().Uint64Var(&f.Limit, "limit", 0, "stop after so many (0: do not)")
	for _, name := range []string{"topic", "client", "from", "limit"} {
		cmd.MarkFlagsMutuallyExclusive("to", name)
	}
	return cmd
}

// inside says whether a path is in a directory, or is it.
func inside(path, dir string) (bool, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return false, err
	}
	want, err := os.Stat(dir)
	if err != nil {
		return false, err
	}
	for {
		if info, err := os.Stat(path); err == nil && os.SameFile(info, want) {
			return true, nil
		}
		parent := filepath.Dir(path)
		if parent == path {
			return false, nil
		}
		path = parent
	}
}

var errEnough = errors.New("limit reached")

func salvageLines(cmd *cobra.Command, o store.Options, f store.Filter) error {
	out := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	written := uint64(0)
	r, err := store.Salvage(o, store.SalvageOptions{Each: func(m *store.SalvagedMessage) error {
		if m.Offset < f.From || f.Topic != "" && m.Topic != f.Topic || f.Client != "" && m.Client != f.Client {
			return nil
		}
		if err := enc.Encode(admin.NewMessage(&m.Record, m.Topic, m.Client)); err != nil {
			return err
		}
		if written++; written == f.Limit {
			return errEnough
		}
		return nil
	}})
	if flushErr := out.Flush(); flushErr != nil {
		return flushErr
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	if err != nil {
		return explain(err)
	}
	writeSalvaged(cmd.ErrOrStderr(), r)
	return nil
}

// writeSalvaged says what was found, and what is gone.
func writeSalvaged(out io.Writer, r *store.Salvaged) {
	writeDamage(out, &r.Report)
	if r.State == store.StateLost {
		fmt.Fprintln(out, "gone: sessions, subscriptions, queues with their bindings and settings, cursors, delayed messages, Wills, addresses of publishers: they were in state.db alone")
	}
	if r.Unnamed > 0 {
		fmt.Fprintf(out, "gone: the names of %d topics, which are called $lost/topic-<number>\n", r.Unnamed)
	}
	if r.Missing > 0 {
		fmt.Fprintf(out, "gone: %d messages that the ledger knows\n", r.Missing)
	}
	if r.Unknown > 0 {
		fmt.Fprintf(out, "not known: whether there were messages at %d offsets without one\n", r.Unknown)
	}
	fmt.Fprintf(out, "state=%s messages=%d first=%d last=%d journal=%d topics=%d retained=%d missing=%d damaged=%d\n",
		r.State, r.Records, r.First, r.Last, r.Journal, r.Topics, r.Retained, r.Missing, r.Places())
}
