// Command replay reads the history of a topic, as often as it likes, and goes on with what comes. Start a broker
// first: edgemq serve.
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
		slog.Error("replay failed", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url string, out io.Writer) error {
	client, err := sdk.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer client.Close()
	producer := client.Producer()
	for _, level := range []string{"1.20", "1.25", "1.31"} {
		if _, err := producer.Send(ctx, sdk.NewMessage("dam/level", []byte(level))); err != nil {
			return err
		}
	}
	for _, from := range []sdk.Start{sdk.FromEarliest(), sdk.FromOffset(2)} {
		sub, err := client.Replay(ctx, "dam/level", from)
		if err != nil {
			return err
		}
		for m, err := range sub.All(ctx) {
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%v: offset %d, %s m\n", from, m.Offset(), m.Body())
			if string(m.Body()) == "1.31" { // it would go on with what comes
				break
			}
		}
		if err := sub.Close(); err != nil {
			return err
		}
	}
	return nil
}
