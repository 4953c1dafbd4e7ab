// Command request asks and is answered. Any number of responders may share the queue of requests. Start a broker
// first: edgemq serve.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/edgemq/edgemq/sdk"
)

func main() {
	if err := run(context.Background(), "mqtt://127.0.0.1:1883", os.Stdout); err != nil {
		slog.Error("request failed", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url string, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client, err := sdk.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer client.Close()
	var responder sync.WaitGroup
	responder.Go(func() {
		_ = client.Respond(ctx, sdk.FromQueue("shout"), func(_ context.Context, r *sdk.Delivery) ([]byte, error) {
			return bytes.ToUpper(r.Body()), nil
		})
	})
	answer, err := client.Request(ctx, sdk.NewQueueMessage("shout", []byte("water!")))
	if err == nil {
		fmt.Fprintln(out, string(answer.Body()))
	}
	cancel()
	responder.Wait()
	return err
}
