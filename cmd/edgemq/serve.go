package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/broker"
	"github.com/edgemq/edgemq/internal/config"
	"github.com/edgemq/edgemq/store"
)

func serveCommand() *cobra.Command {
	var (
		f            settingFlags
		listen, data string
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the broker",
		Long: `Run the broker until SIGTERM or SIGINT, which end it cleanly: what has been accepted is committed and
acknowledged, and sessions are saved. A second signal ends it at once.

Without any flags it listens on 127.0.0.1:1883 and keeps its data in ./data. config.yaml documents every setting.`,
		Example: `  edgemq serve
  edgemq serve --listen 127.0.0.1:1884 --data /var/lib/edgemq
  edgemq serve --config my.yaml --set log.level=debug
  EDGEMQ_STORE_SYNC=interval edgemq serve`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var more []config.Setting
			if cmd.Flags().Changed("listen") {
				more = append(more, config.Setting{
					Key: "listeners", Value: []any{map[string]any{"name": "tcp", "type": "tcp", "address": listen}}, Origin: "--listen",
				})
			}
			if cmd.Flags().Changed("data") {
				more = append(more, config.Setting{Key: "data", Value: data, Origin: "--data"})
			}
			c, err := f.loadAll(more...)
			if err != nil {
				return err
			}
			return serve(cmd.Context(), c, newLogger(os.Stderr, c.Log))
		},
	}
	f.add(cmd)
	cmd.Flags().StringVarP(&listen, "listen", "l", "", "listen on this `address` only, instead of the listeners in the settings")
	cmd.Flags().StringVarP(&data, "data", "d", "", "data `directory`")
	return cmd
}

func newLogger(w io.Writer, c config.Log) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(strings.ToUpper(c.Level))); err != nil {
		level = slog.LevelInfo // config has checked it
	}
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

func serve(ctx context.Context, c *config.Config, logger *slog.Logger) error {
	logger.Info("starting", "version", versionLine(), "data", c.Data, "sync", c.Store.Sync)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // before the start, which may take a while: a SIGHUP would be the end of it
	defer signal.Stop(hangups)
	o := c.Broker(logger)
	o.Admin.Version = versionLine()
	b, err := broker.Open(o)
	if err != nil {
		return explainStart(err, c)
	}
	stopReload := reloadOnHangup(hangups, b, logger)
	err = b.Run(ctx)
	stopReload()
	err = errors.Join(err, b.Close())
	if err == nil {
		logger.Info("stopped")
	}
	return err
}

// reloadOnHangup has users and rules read again at each SIGHUP.
func reloadOnHangup(hangups chan os.Signal, b *broker.Broker, logger *slog.Logger) (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range hangups {
			if err := b.ReloadAuth(); err != nil {
				logger.Error("users and rules cannot be used, going on with the old ones", "err", err)
			}
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
		<-done
	}
}

// explainStart adds what a user can do about it.
func explainStart(err error, c *config.Config) error {
	switch {
	case errors.Is(err, store.ErrLocked):
		return fmt.Errorf("%w: is edgemq running already? Another data directory is chosen with --data", err)
	case errors.Is(err, store.ErrVersion):
		return fmt.Errorf("%w: %s needs the version of edgemq that wrote it, or a newer one", err, c.Data)
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: another address is chosen with --listen", err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%w: this machine has no such address", err)
	}
	return explainDamage(err)
}
