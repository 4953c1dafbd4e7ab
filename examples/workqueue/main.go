// Command workqueue lets several workers share the jobs of a queue. A job that fails comes again, and goes to
// jobs-dead if it never succeeds. Start a broker first: edgemq serve.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/edgemq/edgemq/sdk"
)

func main() {
	if err := run(context.Background(), "mqtt://127.0.0.1:1883", os.Stdout); err != nil {
		slog.Error("workqueue failed", "err", err)
		os.Exit(1)
	}
}

const jobs = 20

func run(ctx context.Context, url string, out io.Writer) error {
	client, err := sdk.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer client.Close()
	producer := client.Producer()
	for i := range jobs {
		job := sdk.NewQueueMessage("jobs", fmt.Append(nil, i)).PutHeader(sdk.HeaderShardingKey, sdk.String(fmt.Sprint("customer-", i%7)))
		if _, err := producer.SendAsync(ctx, job); err != nil {
			return err
		}
	}
	if err := producer.Flush(ctx); err != nil { // all of them are on the broker's disk
		return err
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	done, failed := map[string]bool{}, map[string]bool{}
	handle := func(_ context.Context, m *sdk.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		job := string(m.Body())
		if job == "13" && !failed[job] {
			failed[job] = true
			return errors.New("bad luck")
		}
		if done[job] = true; len(done) == jobs {
			cancel() // this example ends; workers usually do not
		}
		return nil
	}
	retry := sdk.WithRetry(func(attempt int, _ error) (time.Duration, bool) {
		return time.Duration(attempt) * 10 * time.Millisecond, attempt < 5
	})
	var workers sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		worker := client.PushConsumer(handle, sdk.WithConcurrency(4), retry)
		workers.Go(func() { errs[i] = worker.Run(ctx, sdk.FromQueue("jobs")) })
	}
	workers.Wait()
	fmt.Fprintln(out, len(done), "jobs done,", len(failed), "of them at the second attempt")
	return errors.Join(errs...)
}
