package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/edgemq/edgemq/sdk"
)

// sendAll sends bodies to a queue.
func sendAll(client *sdk.Client, queue string, bodies ...string) {
	for _, b := range bodies {
		if _, err := client.Producer().Send(context.Background(), sdk.NewQueueMessage(queue, []byte(b))); err != nil {
			log.Fatal(err)
		}
	}
}

// attached returns a consumer of a queue.
func attached(client *sdk.Client, queue string, opts ...sdk.ConsumerOption) *sdk.PullConsumer {
	c := client.PullConsumer(opts...)
	if err := c.AttachQueue(context.Background(), queue); err != nil {
		log.Fatal(err)
	}
	return c
}

func ExamplePullConsumer_Backlog() {
	client, stop := exampleClient()
	defer stop()
	sendAll(client, "jobs", "dig", "fill")
	for m, err := range attached(client, "jobs").Backlog(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(m.Body()))
	}
	fmt.Println("nothing is left")
	// Output:
	// dig
	// fill
	// nothing is left
}

func ExamplePullConsumer_PollWait() {
	client, stop := exampleClient()
	defer stop()
	consumer := attached(client, "jobs")
	go sendAll(client, "jobs", "late")
	m, err := consumer.PollWait(context.Background()) // however long it takes
	fmt.Println(string(m.Body()), err)
	// Output: late <nil>
}

func ExamplePullConsumer_PollBatch() {
	client, stop := exampleClient()
	defer stop()
	sendAll(client, "rows", "a", "b", "c")
	consumer := attached(client, "rows")
	n := 0
	for {
		batch, err := consumer.PollBatch(context.Background(), 100)
		if err != nil {
			log.Fatal(err)
		}
		if batch == nil {
			break
		}
		n += len(batch) // one INSERT for all of them; the next PollBatch acknowledges them
	}
	fmt.Println(n, "rows")
	// Output: 3 rows
}

func ExamplePullConsumer_Pause() {
	client, stop := exampleClient()
	defer stop()
	sendAll(client, "jobs", "a")
	consumer := attached(client, "jobs")
	consumer.Pause()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := consumer.Poll(ctx)
	fmt.Println(err, "with", consumer.Buffered(), "here")
	consumer.Resume()
	m, err := consumer.Poll(context.Background())
	fmt.Println(string(m.Body()), err)
	// Output:
	// context deadline exceeded with 1 here
	// a <nil>
}

func ExamplePullConsumer_Seek() {
	addr, admin, stop := exampleBrokerWithAdmin()
	defer stop()
	ctx := context.Background()
	client, err := sdk.Dial(ctx, addr, sdk.WithAdmin("http://"+admin, ""))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	sendAll(client, "jobs", "a", "b")
	consumer := attached(client, "jobs")
	for range 2 { // the second time from the beginning again
		for m, err := range consumer.Backlog(ctx) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Print(string(m.Body()), " ")
		}
		if err := consumer.Seek(ctx, sdk.FromEarliest()); err != nil {
			log.Fatal(err)
		}
	}
	lag, err := consumer.Lag(ctx)
	fmt.Println(lag, err)
	// Output: a b a b 2 <nil>
}

func ExamplePullConsumer_Ack() {
	client, stop := exampleClient()
	defer stop()
	sendAll(client, "jobs", "a", "b")
	consumer := attached(client, "jobs", sdk.WithManualAck())
	var last uint64
	for m, err := range consumer.Backlog(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		last = m.Offset()
	}
	fmt.Println(consumer.Ack(last), errors.Is(consumer.Ack(last), sdk.ErrStale))
	// Output: <nil> true
}

func ExampleWithManualAck() {
	client, stop := exampleClient()
	defer stop()
	sendAll(client, "jobs", "a")
	consumer := attached(client, "jobs", sdk.WithManualAck())
	m, err := consumer.PollWait(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Ack())
	// Output: <nil>
}

func ExampleDelivery_Nack() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	sendAll(client, "jobs", "a")
	consumer := attached(client, "jobs", sdk.WithManualAck())
	for m, err := range consumer.Messages(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("attempt", m.Attempt())
		if m.Attempt() == 3 {
			_ = m.Ack()
			break
		}
		if err := m.Nack(10*time.Millisecond, "the printer is on fire"); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// attempt 1
	// attempt 2
	// attempt 3
}

func ExampleDelivery_GiveUp() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	sendAll(client, "jobs", "a")
	consumer := attached(client, "jobs", sdk.WithManualAck())
	m, err := consumer.PollWait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := m.GiveUp("there is no such printer"); err != nil {
		log.Fatal(err)
	}
	dead, err := attached(client, "jobs-dead").PollWait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(dead.Body()), dead.Header(sdk.HeaderReason))
	// Output: a there is no such printer
}

func ExampleWithShared() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	alone := attached(client, "jobs")
	second := client.PullConsumer()
	fmt.Println(errors.Is(second.AttachQueue(ctx, "jobs"), sdk.ErrInUse))
	_ = alone.Close()
	for range 3 {
		attached(client, "jobs", sdk.WithShared())
	}
	// Output: true
}

func ExampleWithBuffer() {
	client, stop := exampleClient()
	defer stop()
	small := sdk.BufferOptions{High: 16, Low: 4, HighBytes: 1 << 20, LowBytes: 1 << 18} // large messages, little memory
	consumer := attached(client, "images", sdk.WithBuffer(small))
	fmt.Println(consumer.Buffered())
	// Output: 0
}

func ExampleHandler() {
	var handle sdk.Handler = func(ctx context.Context, m *sdk.Delivery) error {
		if len(m.Body()) == 0 {
			return errors.New("empty") // it comes again, and to <queue>-dead in the end
		}
		return ctx.Err()
	}
	fmt.Println(handle(context.Background(), &sdk.Delivery{}))
	// Output: empty
}

// handled runs a consumer of a source until it has handled so many messages.
func handled(client *sdk.Client, from sdk.Source, n int, handle sdk.Handler, opts ...sdk.ConsumerOption) {
	ctx, cancel := context.WithCancel(context.Background())
	consumer := client.PushConsumer(func(ctx context.Context, m *sdk.Delivery) error {
		err := handle(ctx, m)
		if n--; n == 0 {
			defer cancel()
		}
		return err
	}, opts...)
	if err := consumer.Run(ctx, from); err != nil {
		log.Fatal(err)
	}
}

func ExampleFromQueue() {
	client, stop := exampleClient()
	defer stop()
	sendAll(client, "jobs", "dig")
	handled(client, sdk.FromQueue("jobs", "orders/#"), 1, func(_ context.Context, m *sdk.Delivery) error {
		fmt.Println(string(m.Body()))
		return nil
	})
	// Output: dig
}

func ExampleFromQueueExclusively() {
	client, stop := exampleClient()
	defer stop()
	consumer := client.PushConsumer(func(context.Context, *sdk.Delivery) error { return nil })
	attached(client, "ledger") // somebody has it
	err := consumer.Run(context.Background(), sdk.FromQueueExclusively("ledger"))
	fmt.Println(errors.Is(err, sdk.ErrInUse))
	// Output: true
}

// soon sends to a topic again and again until the context ends: who is not subscribed yet must not miss it.
func soon(ctx context.Context, client *sdk.Client, topic string) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_, _ = client.Producer().Send(ctx, sdk.NewMessage(topic, []byte("now")))
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	return done
}

func ExampleFromTopic() {
	client, stop := exampleClient()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	done := soon(ctx, client, "alarms/1")
	handled(client, sdk.FromTopic("alarms/#"), 1, func(_ context.Context, m *sdk.Delivery) error { // every program that does so gets each alarm
		fmt.Println(m.Topic())
		return nil
	})
	cancel()
	<-done
	// Output: alarms/1
}

func ExampleFromShare() {
	client, stop := exampleClient()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	done := soon(ctx, client, "photos/1")
	handled(client, sdk.FromShare("resizers", "photos/#"), 1, func(_ context.Context, m *sdk.Delivery) error { // one of the group gets it
		fmt.Println(m.Topic())
		return nil
	})
	cancel()
	<-done
	// Output: photos/1
}

func ExampleWithConcurrency() {
	client, stop := exampleClient()
	defer stop()
	sendAll(client, "jobs", "a", "b", "c") // of one producer and without a ShardingKey: one key, so they stay in order
	handled(client, sdk.FromQueue("jobs"), 3, func(_ context.Context, m *sdk.Delivery) error {
		fmt.Println(string(m.Body()))
		return nil
	}, sdk.WithConcurrency(8))
	// Output:
	// a
	// b
	// c
}

func ExampleWithKey() {
	client, stop := exampleClient()
	defer stop()
	sendAll(client, "jobs", "cat-1", "cat-2")
	animal := sdk.WithKey(func(m *sdk.Delivery) string { // what must stay in order
		kind, _, _ := strings.Cut(string(m.Body()), "-")
		return kind
	})
	handled(client, sdk.FromQueue("jobs"), 2, func(_ context.Context, m *sdk.Delivery) error {
		fmt.Println(string(m.Body()))
		return nil
	}, sdk.WithConcurrency(8), animal)
	// Output:
	// cat-1
	// cat-2
}

func ExampleWithRetry() {
	client, stop := exampleClient()
	defer stop()
	sendAll(client, "jobs", "hopeless")
	retry := sdk.WithRetry(func(attempt int, err error) (time.Duration, bool) {
		return time.Duration(attempt) * 10 * time.Millisecond, attempt < 3 // after the third failure to jobs-dead
	})
	handled(client, sdk.FromQueue("jobs"), 3, func(_ context.Context, m *sdk.Delivery) error {
		fmt.Println("attempt", m.Attempt())
		return errors.New("no")
	}, retry)
	// Output:
	// attempt 1
	// attempt 2
	// attempt 3
}

func ExampleWithOrderedRetry() {
	client, stop := exampleClient()
	defer stop()
	sendAll(client, "ledger", "first", "second")
	failed := false
	handled(client, sdk.FromQueue("ledger"), 3, func(_ context.Context, m *sdk.Delivery) error {
		if !failed {
			failed = true
			return errors.New("the database is away") // the second message waits for the first
		}
		fmt.Println(string(m.Body()))
		return nil
	}, sdk.WithOrderedRetry(10*time.Millisecond))
	// Output:
	// first
	// second
}

func ExampleQueueOfPartition() {
	fmt.Println(sdk.QueueOfPartition("shipping", "orders", 3)) // for `edgemq queue ls`
	// Output: shipping.orders.b4dad5b9.3
}

func ExampleClient_Subscribe() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	sub, err := client.Subscribe(ctx, "dam/+/level")
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	if _, err := client.Producer().Send(ctx, sdk.NewMessage("dam/3/level", []byte("1.25"))); err != nil {
		log.Fatal(err)
	}
	m, err := sub.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Topic(), string(m.Body()), m.Ack())
	// Output: dam/3/level 1.25 <nil>
}

// replayed prints what a replay begins with.
func replayed(client *sdk.Client, start sdk.Start) {
	ctx := context.Background()
	sub, err := client.Replay(ctx, "log", start)
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	m, err := sub.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(m.Body()))
}

// logged is a client that has sent one, two and three to the topic log.
func logged() (*sdk.Client, []sdk.Result, func()) {
	client, stop := exampleClient()
	var results []sdk.Result
	for _, body := range []string{"one", "two", "three"} {
		r, err := client.Producer().Send(context.Background(), sdk.NewMessage("log", []byte(body)))
		if err != nil {
			log.Fatal(err)
		}
		results = append(results, r)
	}
	return client, results, stop
}

func ExampleFromEarliest() {
	client, _, stop := logged()
	defer stop()
	replayed(client, sdk.FromEarliest())
	// Output: one
}

func ExampleFromLatest() {
	fmt.Println(sdk.FromLatest()) // for Seek: skip all that waits
	// Output: latest
}

func ExampleFromOffset() {
	client, results, stop := logged()
	defer stop()
	replayed(client, sdk.FromOffset(results[1].Offset))
	// Output: two
}

func ExampleFromTime() {
	client, results, stop := logged()
	defer stop()
	replayed(client, sdk.FromTime(results[2].StoreTime))
	// Output: three
}

func ExampleFromAgo() {
	client, _, stop := logged()
	defer stop()
	replayed(client, sdk.FromAgo(time.Hour))
	// Output: one
}

func ExampleCursors() {
	client, _, stop := logged()
	defer stop()
	ctx := context.Background()
	cursors := client.Cursors("dashboard")
	at, err := cursors.Load(ctx, "log", 1)
	if err != nil {
		log.Fatal(err)
	}
	sub, err := client.Replay(ctx, "log", sdk.FromOffset(at[0]))
	if err != nil {
		log.Fatal(err)
	}
	for m, err := range sub.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		if err := cursors.Commit(ctx, "log", 0, m.Offset()+1); err != nil { // dealt with: the next start goes on behind it
			log.Fatal(err)
		}
		if string(m.Body()) == "three" {
			break
		}
	}
	fmt.Println(cursors.Reset(ctx, "log", 0, 0)) // all over again
	// Output: <nil>
}

func ExampleReply() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	go func() {
		consumer := client.PullConsumer()
		if err := consumer.AttachQueue(ctx, "double"); err != nil {
			log.Fatal(err)
		}
		question, err := consumer.PollWait(ctx)
		if err != nil {
			log.Fatal(err)
		}
		answer, err := sdk.Reply(question, append(question.Body(), question.Body()...))
		if err != nil {
			log.Fatal(err)
		}
		if _, err := client.Producer().Send(ctx, answer); err != nil {
			log.Fatal(err)
		}
	}()
	answer, err := client.Request(ctx, sdk.NewQueueMessage("double", []byte("ha")))
	fmt.Println(string(answer.Body()), err)
	// Output: haha <nil>
}

func ExampleSubscription_All() {
	client, _, stop := logged()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	sub, err := client.Replay(ctx, "log", sdk.FromEarliest())
	if err != nil {
		log.Fatal(err)
	}
	for m, err := range sub.All(ctx) { // the next turn acknowledges
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(m.Body()))
		if string(m.Body()) == "three" {
			_ = m.Ack() // there is no next turn
			break
		}
	}
	// Output:
	// one
	// two
	// three
}

func ExampleQueueInfo() {
	addr, admin, stop := exampleBrokerWithAdmin()
	defer stop()
	ctx := context.Background()
	client, err := sdk.Dial(ctx, addr, sdk.WithAdmin("http://"+admin, ""))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	consumer := client.PullConsumer()
	if err := consumer.AttachQueue(ctx, "bills", "orders/#"); err != nil {
		log.Fatal(err)
	}
	q, err := client.Queue(ctx, "bills")
	fmt.Println(q.Name, q.Bindings, q.Consumers, err)
	// Output: bills [orders/#] 1 <nil>
}
