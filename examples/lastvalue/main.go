// Command lastvalue is a dashboard of what devices last said. They publish all the time; whoever looks later wants one value of each, and
// then what comes. Start a broker that keeps the last value of these topics first:
//
//	edgemq serve --set 'topics=[{filter: "site/+/state", keep: last}]'
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"github.com/edgemq/edgemq/sdk"
)

const (
	devices = 5
	rounds  = 20
)

func main() {
	if err := run(context.Background(), "mqtt://127.0.0.1:1883", os.Stdout); err != nil {
		slog.Error("lastvalue failed", "err", err)
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
	say := func(device, value int) error {
		_, err := producer.Send(ctx, sdk.NewMessage(fmt.Sprintf("site/%d/state", device), fmt.Append(nil, value)))
		return err
	}
	for value := range rounds {
		for device := range devices {
			if device == 3 && value > 4 {
				continue // it has broken down
			}
			if err := say(device, value); err != nil {
				return err
			}
		}
	}
	return dashboard(ctx, client, out, func() error { return say(3, 100) })
}

// dashboard shows a value of each device, and then what comes.
func dashboard(ctx context.Context, client *sdk.Client, out io.Writer, repaired func() error) error {
	sub, err := client.Replay(ctx, "site/+/state", sdk.FromEarliest())
	if err != nil {
		return err
	}
	defer sub.Close()
	var seen []string
	for m, err := range sub.All(ctx) {
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s\n", m.Topic(), m.Body())
		again := slices.Contains(seen, m.Topic())
		if seen = append(seen, m.Topic()); len(seen) == devices && !again {
			fmt.Fprintln(out, "that is all of them")
			if err := repaired(); err != nil {
				return err
			}
		}
		if again {
			return nil
		}
	}
	return nil
}
