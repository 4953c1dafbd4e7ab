// Command edgemq is an MQTT broker that does not lose or reorder what it acknowledged, and the tools to use it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/config"
)

// The exit codes, for scripts.
const (
	exitOK      = 0
	exitFailed  = 1 // something went wrong
	exitUsage   = 2 // wrong flags or settings: trying again will not help
	exitConnect = 3 // the broker cannot be reached, or the connection broke
	exitRefused = 4 // the broker said no
	exitTimeout = 5 // --timeout passed before --count messages came
)

// exitError carries an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	ctx, stop := stopContext()
	defer stop()
	root := rootCommand()
	misread := noteHelp(root)
	started := false
	noteStart(root, &started)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = *misread
	}
	if err == nil {
		return exitOK
	}
	if !started {
		err = usageError("%w; see %s --help", err, cmd.CommandPath())
	}
	fmt.Fprintln(os.Stderr, "edgemq: "+err.Error())
	return exitCode(err)
}

// noteHelp tells where help is not what was asked for, since help and exit code 0 look to a script as if it had been done: pub and sub
// with -h HOST, as mosquitto's tools have it, and commands that there are not below others.
func noteHelp(root *cobra.Command) *error {
	var misread error
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		switch fs := cmd.Flags(); {
		case fs.NArg() > 0 && fs.Lookup("host") != nil:
			misread = fmt.Errorf("-h is for help, and nothing was done: the broker's host is --host %s", fs.Arg(0))
		case fs.NArg() > 0 && !cmd.Runnable():
			misread = fmt.Errorf("unknown command %q for %q", fs.Arg(0), cmd.CommandPath())
			cmd.SuggestionsMinimumDistance = 2
			if like := cmd.SuggestionsFor(fs.Arg(0)); len(like) > 0 {
				misread = fmt.Errorf("%w; is %s meant?", misread, strings.Join(like, " or "))
			}
		default:
			help(cmd, args)
		}
	})
	return &misread
}

// noteStart makes every command set started when it runs: an error before that is about how it was called.
func noteStart(cmd *cobra.Command, started *bool) {
	if inner := cmd.RunE; inner != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*started = true
			return inner(cmd, args)
		}
	}
	for _, c := range cmd.Commands() {
		noteStart(c, started)
	}
}

func exitCode(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if _, ok := config.AsError(err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[*client.RefusedError](err); ok {
		return exitRefused
	}
	if _, ok := errors.AsType[*client.ConnectError](err); ok || errors.Is(err, client.ErrLost) {
		return exitConnect
	}
	return exitFailed
}

// impatience is how long after the first signal another one counts: timeout(1), terminals and some supervisors
// send the same signal to the process and to its group, which is one wish and not two.
const impatience = time.Second

// stopContext ends at SIGINT or SIGTERM. A second signal ends the process at once: whoever sends it does not
// want to wait any longer, and the store is made for that.
func stopContext() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		first := time.Now()
		for range signals {
			if time.Since(first) > impatience {
				fmt.Fprintln(os.Stderr, "edgemq: second signal, ending at once")
				os.Exit(exitFailed)
			}
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel() }
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "edgemq",
		Short: "An MQTT broker that keeps what it acknowledged",
		Long: `edgemq is an MQTT 3.1.1 and 5.0 broker for the edge. A PUBACK from it means that the message is on disk.

  edgemq serve                          # run a broker on 127.0.0.1:1883, with its data in ./data
  edgemq sub -t 'greetings/#' -v        # print what comes (in another terminal)
  edgemq pub -t greetings/me -m hello   # publish a message

Exit codes: 0 done, 1 failed, 2 wrong flags or settings, 3 no connection, 4 refused by the broker, 5 timed out.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(serveCommand(), pubCommand(), subCommand(), statusCommand(), queueCommand(), topicCommand(), messageCommand(), sessionCommand(),
		configCommand(), passwdCommand(), storeCommand(), benchCommand(), versionCommand())
	return root
}
