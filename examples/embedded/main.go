// Command embedded has the broker in its own process: a program that needs durable queues and no second program.
// Other programs can connect to it as to any broker. Its data is in ./embedded-data.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/edgemq/edgemq/broker"
	"github.com/edgemq/edgemq/sdk"
	"github.com/edgemq/edgemq/store"
)

func main() {
	if err := run(context.Background(), "embedded-data", os.Stdout); err != nil {
		slog.Error("embedded failed", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, out io.Writer) error {
	b, err := broker.Open(broker.Options{
		Store:     store.Options{Dir: dir},
		Listeners: []broker.Listener{{Name: "local", Type: "tcp", Address: "127.0.0.1:0"}},
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	err = use(ctx, b.Addrs()[0], out)
	stop()
	return errors.Join(err, <-ended, b.Close())
}

func use(ctx context.Context, addr string, out io.Writer) error {
	client, err := sdk.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Producer().Send(ctx, sdk.NewQueueMessage("todo", []byte("close the gate"))); err != nil {
		return err
	}
	consumer := client.PullConsumer()
	if err := consumer.AttachQueue(ctx, "todo"); err != nil {
		return err
	}
	m, err := consumer.PollWait(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, string(m.Body()))
	return consumer.Close()
}
