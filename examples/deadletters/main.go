// Command deadletters has a consumer that cannot deal with some messages: after a few attempts they go to the queue's dead
// letters, where somebody looks at them, mends them and sends them back. Start a broker first: edgemq serve.
//
// From the shell the same is edgemq queue peek orders-dead and edgemq queue redrive orders.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/edgemq/edgemq/sdk"
)

func main() {
	if err := run(context.Background(), "mqtt://127.0.0.1:1883", os.Stdout); err != nil {
		slog.Error("deadletters failed", "err", err)
		os.Exit(1)
	}
}

var orders = []string{"apples to Mill Lane 3", "pears", "plums to High Street 9", "quinces"}

var errNoAddress = errors.New("no address")

func run(ctx context.Context, url string, out io.Writer) error {
	client, err := sdk.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, order := range orders {
		if _, err := client.Producer().Send(ctx, sdk.NewQueueMessage("orders", []byte(order))); err != nil {
			return err
		}
	}

	delivered := make(chan string, len(orders))
	deliver := func(_ context.Context, m *sdk.Delivery) error {
		if !strings.Contains(string(m.Body()), " to ") {
			return errNoAddress
		}
		delivered <- string(m.Body())
		return nil
	}
	// Twice again, soon; without WithRetry the queue's own settings count (edgemq queue info orders).
	retry := sdk.WithRetry(func(attempt int, _ error) (time.Duration, bool) { return 10 * time.Millisecond, attempt < 3 })
	quiet := sdk.WithLogger(slog.New(slog.DiscardHandler)) // the SDK logs each failure
	worker, err := sdk.Dial(ctx, url, quiet)
	if err != nil {
		return err
	}
	defer worker.Close()
	working, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- worker.PushConsumer(deliver, retry).Run(working, sdk.FromQueue("orders")) }()

	if err := mend(ctx, client, out); err != nil {
		return err
	}
	for range orders {
		select {
		case order := <-delivered:
			fmt.Fprintln(out, "delivered:", order)
		case err := <-done:
			return err
		}
	}
	stop()
	return <-done
}

// mend looks at the dead letters and sends them back with the address that they lack.
func mend(ctx context.Context, client *sdk.Client, out io.Writer) error {
	dead := client.PullConsumer()
	defer dead.Close()
	if err := dead.AttachQueue(ctx, "orders-dead"); err != nil {
		return err
	}
	for mended := 0; mended < 2; {
		m, err := dead.PollWait(ctx)
		if err != nil {
			return fmt.Errorf("waiting for dead letters: %w", err)
		}
		fmt.Fprintf(out, "dead: %s (%s)\n", m.Body(), m.Header("Reason"))
		better := sdk.NewQueueMessage("orders", append(m.Body(), " to the shop"...))
		if _, err := client.Producer().Send(ctx, better); err != nil {
			return err
		}
		if err := m.Ack(); err != nil { // it is back in the queue, on disk
			return err
		}
		mended++
	}
	return nil
}
