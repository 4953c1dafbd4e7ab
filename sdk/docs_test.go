package sdk_test

// The programs in docs/SDK.md and README.md, as they are there: TestDocs holds that, and runs those that can run.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/sdk"
	"github.com/edgemq/edgemq/sdk/sdktest"
)

func report(ctx context.Context, address string) error {
	client, err := sdk.Dial(ctx, address, sdk.WithClientID("meter-7"), sdk.WithCredentials("meter", "secret"))
	if err != nil {
		return err
	}
	defer client.Close()
	producer := client.Producer()

	r, err := producer.Send(ctx, sdk.NewMessage("meters/7", []byte("21.5"))) // on the broker's disk once it returns
	if err != nil {
		return err
	}
	slog.Info("stored", "offset", r.Offset, "at", r.StoreTime)

	for range 1000 { // many under way at once; their order is kept
		if _, err := producer.SendAsync(ctx, sdk.NewQueueMessage("jobs", []byte("dig"))); err != nil {
			return err
		}
	}
	return producer.Flush(ctx) // all of them are on disk
}

// order sends a message under an id of its own, and sends it again for as long as it is not known to be stored.
func order(ctx context.Context, p *sdk.Producer, m *sdk.Message, id string) error {
	m.PutHeader(sdk.HeaderMessageID, sdk.String(id))
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := p.Send(try, m)
		cancel()
		var e *sdk.SendError
		if !errors.As(err, &e) || e.Known == sdk.Refused || ctx.Err() != nil {
			return err // stored, or it never will be
		}
		slog.Warn("not acknowledged, sending again", "id", e.MessageID, "known", e.Known, "err", e.Err)
	}
}

func bill(ctx context.Context, client *sdk.Client) error {
	consumer := client.PullConsumer()
	defer consumer.Close()
	if err := consumer.AttachQueue(ctx, "billing", "meters/#"); err != nil {
		return err // ErrInUse: somebody else has it. A second call adds topics; ErrAttached: it was for another queue
	}
	for m, err := range consumer.Backlog(ctx) { // all that was waiting when we attached; Messages goes on for ever
		if err != nil {
			return err
		}
		slog.Info("reading", "from", m.Topic(), "value", string(m.Body()), "offset", m.Offset())
	} // each is acknowledged when the next one is asked for
	return nil
}

func work(ctx context.Context, client *sdk.Client) error {
	handle := func(ctx context.Context, m *sdk.Delivery) error {
		if len(m.Body()) == 0 {
			return errors.New("nothing to do") // it comes again, later and later, and to jobs-dead in the end
		}
		return ctx.Err()
	}
	consumer := client.PushConsumer(handle, sdk.WithConcurrency(8))
	return consumer.Run(ctx, sdk.FromQueue("jobs", "orders/#")) // until ctx ends
}

func sell(ctx context.Context, addresses ...string) error {
	brokers, err := sdk.DialBrokers(ctx, sdk.Addresses(addresses...), sdk.WithClientID("till-3"))
	if err != nil {
		return err // not one of them could be reached
	}
	defer brokers.Close()
	_, err = brokers.Producer().Send(ctx, sdk.NewMessage("sales", []byte("42")))
	return err
}

func TestReport(t *testing.T) {
	broker := sdktest.Run(t)
	if err := report(t.Context(), broker.Addr); err != nil {
		t.Fatal(err)
	}
}

// readme is README.md's; it is compiled and not run, as its broker is yours.
func readme(ctx context.Context) error {
	client, err := sdk.Dial(ctx, "mqtt://127.0.0.1:1883")
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Producer().Send(ctx, sdk.NewMessage("meters/7", []byte("21.5"))); err != nil {
		return err // when it returns nil the message is on disk
	}
	consumer := client.PullConsumer()
	if err := consumer.AttachQueue(ctx, "billing", "meters/#"); err != nil {
		return err
	}
	for m, err := range consumer.Backlog(ctx) {
		if err != nil {
			return err
		}
		fmt.Println(m.Topic(), string(m.Body()))
	}
	return consumer.Close()
}

func TestDocs(t *testing.T) {
	flat := func(s string) string { // without indentation and alignment
		var lines []string
		for l := range strings.Lines(s) {
			lines = append(lines, strings.Join(strings.Fields(l), " "))
		}
		return strings.TrimSpace(strings.Join(lines, "\n"))
	}
	here, err := os.ReadFile("docs_test.go")
	if err != nil {
		t.Fatal(err)
	}
	compiled := flat(string(here))
	blocks := 0
	for _, page := range []string{"../docs/SDK.md", "../README.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range fences.FindAllStringSubmatch(string(text), -1) {
			blocks++
			if !strings.Contains(compiled, flat(block[1])) {
				t.Errorf("%s: this is not in docs_test.go:\n%s", page, block[1])
			}
		}
	}
	if blocks < 6 {
		t.Fatalf("%d blocks were found", blocks)
	}
	_ = readme
	a, b := testbroker.Run(t, testbroker.Options{}), testbroker.Run(t, testbroker.Options{})
	ctx := patience(t)
	c := dial(t, a.Addr, "c")
	if err := report(ctx, a.Addr); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := order(ctx, c.Producer(), sdk.NewMessage("orders/1", nil), "order-1"); err != nil {
			t.Fatal(err)
		}
	}
	if next := a.Store().Next(); next != 1003 { // 1, 1000, and the order once
		t.Fatalf("%d messages are stored", next-1)
	}
	if err := bill(ctx, c); err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- work(run, c) }()
	dead := attach(t, c, "jobs-dead", nil)
	queues := a.Queues()
	eventually(t, "the jobs are done", func() bool { q, err := queues.Backlog("jobs"); return err == nil && q.Messages <= 1 })
	stop()
	if err := errors.Join(<-done, dead.Close(), sell(ctx, a.Addr, b.Addr)); err != nil {
		t.Fatal(err)
	}
}
