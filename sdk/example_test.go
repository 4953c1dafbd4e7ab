package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"os"
	"time"

	"github.com/edgemq/edgemq/broker"
	"github.com/edgemq/edgemq/broker/admin"
	"github.com/edgemq/edgemq/sdk"
	"github.com/edgemq/edgemq/store"
)

// exampleBroker starts a broker for an example; programs connect to one that is there.
func exampleBroker() (addr string, stop func()) {
	addr, _, stop = exampleBrokerWithAdmin()
	return addr, stop
}

func exampleBrokerWithAdmin() (addr, api string, stop func()) {
	dir, err := os.MkdirTemp("", "edgemq-example")
	if err != nil {
		log.Fatal(err)
	}
	b, err := broker.Open(broker.Options{
		Store:     store.Options{Dir: dir, JournalFileBytes: 4 << 20},
		Listeners: []broker.Listener{{Name: "example", Type: "tcp", Address: "127.0.0.1:0"}},
		Admin:     admin.Options{Listen: "127.0.0.1:0"},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	return b.Addrs()[0], b.AdminAddr(), func() {
		cancel()
		if err := errors.Join(<-ended, b.Close(), os.RemoveAll(dir)); err != nil {
			log.Fatal(err)
		}
	}
}

// exampleClient is a client of such a broker.
func exampleClient(opts ...sdk.Option) (*sdk.Client, func()) {
	addr, stop := exampleBroker()
	client, err := sdk.Dial(context.Background(), addr, opts...)
	if err != nil {
		log.Fatal(err)
	}
	return client, func() {
		_ = client.Close()
		stop()
	}
}

func Example() {
	addr, stop := exampleBroker()
	defer stop()
	ctx := context.Background()
	client, err := sdk.Dial(ctx, addr, sdk.WithClientID("meter-7"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	// When Send returns nil, the message is on the broker's disk.
	if _, err := client.Producer().Send(ctx, sdk.NewMessage("meters/7", []byte("21.5"))); err != nil {
		log.Fatal(err)
	}

	consumer := client.PullConsumer()
	if err := consumer.AttachQueue(ctx, "billing", "meters/#"); err != nil {
		log.Fatal(err)
	}
	for m, err := range consumer.Backlog(ctx) { // until nothing more is waiting
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(m.Topic(), string(m.Body()))
	}
	// Output: meters/7 21.5
}

func ExampleProducer_SendAsync() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	producer := client.Producer()
	for i := range 1000 { // many under way at once
		if _, err := producer.SendAsync(ctx, sdk.NewMessage("log", fmt.Append(nil, i))); err != nil {
			log.Fatal(err)
		}
	}
	if err := producer.Flush(ctx); err != nil { // all 1000 are on disk
		log.Fatal(err)
	}
	fmt.Println(client.Pending(), "pending")
	// Output: 0 pending
}

func ExampleSendError() {
	client, stop := exampleClient()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	_, err := client.Producer().Send(ctx, sdk.NewMessage("t", nil).PutHeader(sdk.HeaderMessageID, sdk.String("order-5")))
	var e *sdk.SendError
	if errors.As(err, &e) && errors.Is(err, context.DeadlineExceeded) {
		// e.Known says whether it may be stored. With the same MessageId it is safe to send it again in any case.
		fmt.Println(e.MessageID, "was not acknowledged in time")
	}
	// Output: order-5 was not acknowledged in time
}

func ExampleMessage_PutProperty() {
	m := sdk.NewMessage("orders", nil).
		PutProperty("retries", sdk.Int32(3)).
		PutProperty("amount", sdk.Int64(math.MaxInt64)).
		PutProperty("price", sdk.Float64(0.1)).
		PutProperty("customer", sdk.String("Ada"))
	price, err := m.Property("price").Float64()
	fmt.Println(price, err)
	_, err = m.Property("price").Int32() // getters do not convert
	fmt.Println(errors.Is(err, sdk.ErrType))
	for name, v := range m.Properties().All() {
		fmt.Println(name, v.Kind(), v)
	}
	// Output:
	// 0.1 <nil>
	// true
	// retries int32 3
	// amount int64 9223372036854775807
	// price float64 0.1
	// customer string Ada
}

func ExamplePullConsumer_Messages() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	for i := range 3 {
		if _, err := client.Producer().Send(ctx, sdk.NewQueueMessage("jobs", fmt.Append(nil, i))); err != nil {
			log.Fatal(err)
		}
	}
	consumer := client.PullConsumer(sdk.WithManualAck())
	if err := consumer.AttachQueue(ctx, "jobs"); err != nil {
		log.Fatal(err)
	}
	for m, err := range consumer.Messages(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(m.Body()))
		if err := m.Ack(); err != nil { // or m.Nack, to have it come again
			log.Fatal(err)
		}
		if string(m.Body()) == "2" {
			break
		}
	}
	// Output:
	// 0
	// 1
	// 2
}

func ExampleClient_PushConsumer() {
	client, stop := exampleClient()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	if _, err := client.Producer().Send(ctx, sdk.NewQueueMessage("jobs", []byte("dig"))); err != nil {
		log.Fatal(err)
	}
	consumer := client.PushConsumer(func(_ context.Context, m *sdk.Delivery) error {
		fmt.Println(string(m.Body()))
		cancel() // an example ends
		return nil
	}, sdk.WithConcurrency(4))
	if err := consumer.Run(ctx, sdk.FromQueue("jobs")); err != nil {
		log.Fatal(err)
	}
	// Output: dig
}

func ExampleFromPartitions() {
	client, stop := exampleClient()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	producer := client.Producer(sdk.WithPartitions(4)) // orders/0 to orders/3, by ShardingKey
	m := sdk.NewMessage("orders", []byte("42")).PutHeader(sdk.HeaderShardingKey, sdk.String("customer-1"))
	if _, err := producer.Send(ctx, m); err != nil {
		log.Fatal(err)
	}
	consumer := client.PushConsumer(func(_ context.Context, m *sdk.Delivery) error {
		fmt.Println("order", string(m.Body()))
		cancel()
		return nil
	})
	if err := consumer.Run(ctx, sdk.FromPartitions(sdk.Partitions{Topic: "orders", N: 4, Group: "shipping"})); err != nil {
		log.Fatal(err)
	}
	// Output: order 42
}

func ExampleClient_Replay() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	for _, level := range []string{"1.20", "1.25"} {
		if _, err := client.Producer().Send(ctx, sdk.NewMessage("dam/level", []byte(level))); err != nil {
			log.Fatal(err)
		}
	}
	sub, err := client.Replay(ctx, "dam/#", sdk.FromEarliest())
	if err != nil {
		log.Fatal(err)
	}
	for m, err := range sub.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(m.Offset(), string(m.Body()))
		if m.Offset() == 2 {
			break
		}
	}
	// Output:
	// 1 1.20
	// 2 1.25
}

func ExampleClient_Request() {
	client, stop := exampleClient()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- client.Respond(ctx, sdk.FromQueue("time"), func(context.Context, *sdk.Delivery) ([]byte, error) {
			return []byte("high noon"), nil
		})
	}()
	answer, err := client.Request(ctx, sdk.NewQueueMessage("time", nil))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(answer.Body()))
	cancel()
	<-done
	// Output: high noon
}

func ExampleNewProducer() {
	first, stopFirst := exampleClient()
	defer stopFirst()
	second, stopSecond := exampleClient()
	defer stopSecond()
	// A broker that fails or is slow is avoided for a while; the message goes to the other.
	producer := sdk.NewProducer([]*sdk.Client{first, second}, sdk.WithTries(3, time.Second), sdk.WithLatencyTable(sdk.LatencyTable5()))
	r, err := producer.Send(context.Background(), sdk.NewMessage("t", nil))
	fmt.Println(r.Broker != "", err)
	// Output: true <nil>
}

func ExampleMemoryQueue() {
	queue := &sdk.MemoryQueue{}
	producer := sdk.NewProducer(nil, sdk.WithTopology(sdk.TopologyFunc(func(*sdk.Message) ([]sdk.WritableQueue, error) {
		return []sdk.WritableQueue{queue}, nil
	})))
	if _, err := producer.Send(context.Background(), sdk.NewMessage("t", []byte("no network"))); err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(queue.Messages()[0].Body()))
	// Output: no network
}

func ExampleBuffer() {
	b := sdk.NewBuffer[string](sdk.BufferOptions{Capacity: 3, High: 2, Low: 1}, nil)
	for _, s := range []string{"a", "b", "c", "d"} {
		fmt.Println(s, b.Put(s), b.Throttled())
	}
	// Output:
	// a <nil> false
	// b <nil> true
	// c <nil> true
	// d edgemq: buffer is full true
}

func ExampleClient_Cursors() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	cursors := client.Cursors("dashboard")
	if err := cursors.Commit(ctx, "dam/level", 0, 17); err != nil {
		log.Fatal(err)
	}
	at, err := cursors.Load(ctx, "dam/level", 2)
	fmt.Println(at, err)
	// Output: [17 0] <nil>
}

func ExampleAveragely() {
	members := []string{"a", "b", "c"}
	for _, m := range members {
		mine, err := sdk.Averagely()(m, members, []int{0, 1, 2, 3})
		fmt.Println(m, mine, err)
	}
	// Output:
	// a [0 1] <nil>
	// b [2] <nil>
	// c [3] <nil>
}

func ExampleWithStateFunc() {
	client, stop := exampleClient(sdk.WithClientID("watched"), sdk.WithStateFunc(func(s sdk.State) {
		fmt.Println(s.ClientID, "connected:", s.Connected)
	}))
	defer stop()
	_ = client
	// Output: watched connected: true
}
