// Command quickstart sends one message and takes it from a queue. Start a broker first: edgemq serve.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/edgemq/edgemq/sdk"
)

func main() {
	if err := run(context.Background(), "mqtt://127.0.0.1:1883", os.Stdout); err != nil {
		slog.Error("quickstart failed", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url string, out io.Writer) error {
	client, err := sdk.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer client.Close()

	// Send returns once the message is on the broker's disk.
	message := sdk.NewMessage("greenhouse/1/temperature", []byte("21.5")).PutProperty("unit", sdk.String("°C"))
	if _, err := client.Producer().Send(ctx, message); err != nil {
		return err
	}

	// A queue bound to topics has all of their messages, also those that are older than the queue.
	consumer := client.PullConsumer()
	if err := consumer.AttachQueue(ctx, "dashboard", "greenhouse/#"); err != nil {
		return err
	}
	for m, err := range consumer.Backlog(ctx) { // until nothing more is waiting
		if err != nil {
			return err
		}
		fmt.Fprintln(out, m.Topic(), string(m.Body()), m.Property("unit"))
	}
	return consumer.Close()
}
