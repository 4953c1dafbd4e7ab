package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/edgemq/edgemq/sdk"
)

func ExampleProducer_Send() {
	client, stop := exampleClient()
	defer stop()
	r, err := client.Producer().Send(context.Background(), sdk.NewMessage("orders", []byte("42")))
	if err != nil {
		log.Fatal(err) // *SendError says what is known
	}
	fmt.Println("on disk at", r.Offset)
	// Output: on disk at 1
}

func ExampleProducer_SendOneway() {
	client, stop := exampleClient()
	defer stop()
	err := client.Producer().SendOneway(context.Background(), sdk.NewMessage("temperature", []byte("21.5"))) // the next one comes soon
	fmt.Println(err)
	// Output: <nil>
}

func ExampleProducer_CreateBytesMessageToTopic() {
	client, stop := exampleClient()
	defer stop()
	producer := client.Producer()
	m, err := producer.CreateBytesMessageToTopic("dam", []byte("water"))
	fmt.Println(m.Topic(), err)
	_, err = producer.CreateBytesMessageToTopic("a/+", nil)
	fmt.Println(errors.Is(err, sdk.ErrDestination))
	// Output:
	// dam <nil>
	// true
}

func ExampleProducer_CreateBytesMessageToQueue() {
	client, stop := exampleClient()
	defer stop()
	m, err := client.Producer().CreateBytesMessageToQueue("canal", []byte("water"))
	fmt.Println(m.Queue(), err)
	// Output: canal <nil>
}

func ExamplePromise() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	promise, err := client.Producer().SendAsync(ctx, sdk.NewMessage("orders", nil))
	if err != nil {
		log.Fatal(err)
	}
	<-promise.Done() // or do something else meanwhile
	r, err := promise.Wait(ctx)
	fmt.Println(r.Offset, err)
	// Output: 1 <nil>
}

func ExampleDialBrokers() {
	a, stopA := exampleBroker()
	defer stopA()
	b, stopB := exampleBroker()
	defer stopB()
	ctx := context.Background()
	brokers, err := sdk.DialBrokers(ctx, sdk.Addresses(a, b), sdk.WithClientID("till-3"))
	if err != nil {
		log.Fatal(err)
	}
	defer brokers.Close()
	_, err = brokers.Producer().Send(ctx, sdk.NewMessage("sales", nil)) // to either; to the other, if one fails
	fmt.Println(len(brokers.Clients()), err)
	// Output: 2 <nil>
}

func ExampleAddresses() {
	discovery := sdk.Addresses("mqtts://a.example.com", "mqtts://b.example.com")
	err := discovery.Discover(context.Background(), func(addresses []string) { fmt.Println(addresses) })
	fmt.Println(err)
	// Output:
	// [mqtts://a.example.com mqtts://b.example.com]
	// <nil>
}

func ExampleDiscoveryFunc() {
	addr, stop := exampleBroker()
	defer stop()
	lookup := func(context.Context) ([]string, error) { return []string{addr}, nil } // net.DefaultResolver, a registry, a file
	discovery := sdk.DiscoveryFunc(func(ctx context.Context, found func([]string)) error {
		for ctx.Err() == nil {
			addresses, err := lookup(ctx)
			if err != nil {
				return err // it is called again, a little later
			}
			found(addresses)
			select {
			case <-time.After(30 * time.Second):
			case <-ctx.Done():
			}
		}
		return nil
	})
	brokers, err := sdk.DialBrokers(context.Background(), discovery)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(brokers.Clients()), brokers.Close())
	// Output: 1 <nil>
}

// partitions is a producer of n partitions in memory.
func partitions(n int, opts ...sdk.ProducerOption) *sdk.Producer {
	var queues []sdk.WritableQueue
	for i := range n {
		queues = append(queues, &sdk.MemoryQueue{At: sdk.Partition{Broker: "memory", Topic: fmt.Sprint("orders/", i), Index: i}})
	}
	all := sdk.TopologyFunc(func(*sdk.Message) ([]sdk.WritableQueue, error) { return queues, nil })
	return sdk.NewProducer(nil, append([]sdk.ProducerOption{sdk.WithTopology(all)}, opts...)...)
}

// routed prints the partitions that messages with these keys go to.
func routed(p *sdk.Producer, keys ...string) {
	for _, key := range keys {
		m := sdk.NewMessage("orders", nil)
		if key != "" {
			m.PutHeader(sdk.HeaderShardingKey, sdk.String(key))
		}
		r, err := p.Send(context.Background(), m)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(r.Partition.Index, " ")
	}
	fmt.Println()
}

func ExampleRoundRobin() {
	routed(partitions(3, sdk.WithRouter(sdk.RoundRobin())), "", "", "", "")
	// Output: 0 1 2 0
}

func ExampleKeyHash() {
	routed(partitions(3, sdk.WithRouter(sdk.KeyHash())), "ada", "bob", "ada", "bob")
	// Output: 2 1 2 1
}

func ExampleConsistentHash() {
	routed(partitions(3, sdk.WithRouter(sdk.ConsistentHash())), "ada", "bob", "ada", "bob")
	// Output: 1 2 1 2
}

func ExampleRouterFunc() {
	last := sdk.RouterFunc(func(_ *sdk.Message, ps []sdk.Partition) int { return len(ps) - 1 })
	routed(partitions(3, sdk.WithRouter(last)), "", "")
	// Output: 2 2
}

func ExampleRouter() {
	// The first partition at a broker that is neither down nor slow.
	var router sdk.Router = sdk.RouterFunc(func(_ *sdk.Message, ps []sdk.Partition) int {
		for i, p := range ps {
			if p.Available {
				return i
			}
		}
		return 0
	})
	fmt.Println(router.Route(nil, []sdk.Partition{{Broker: "a"}, {Broker: "b", Available: true}}))
	// Output: 1
}

func ExampleWithRouter() {
	routed(partitions(2, sdk.WithRouter(sdk.RoundRobin())), "ada", "ada")
	// Output: 0 1
}

func ExampleWithPartitions() {
	client, stop := exampleClient()
	defer stop()
	producer := client.Producer(sdk.WithPartitions(4)) // orders/0 to orders/3
	m := sdk.NewMessage("orders", nil).PutHeader(sdk.HeaderShardingKey, sdk.String("ada"))
	r, err := producer.Send(context.Background(), m)
	fmt.Println(r.Partition.Topic, err)
	// Output: orders/1 <nil>
}

func ExampleWithTopology() {
	test := &sdk.MemoryQueue{}
	topology := sdk.TopologyFunc(func(m *sdk.Message) ([]sdk.WritableQueue, error) {
		return []sdk.WritableQueue{test}, nil
	})
	producer := sdk.NewProducer(nil, sdk.WithTopology(topology))
	_, err := producer.Send(context.Background(), sdk.NewMessage("t", []byte("x")))
	fmt.Println(len(test.Messages()), err)
	// Output: 1 <nil>
}

// failing is a WritableQueue that does not take anything.
type failing struct{ sdk.MemoryQueue }

func (*failing) Write(context.Context, *sdk.EnhancedMessage) (sdk.Result, error) {
	return sdk.Result{}, errors.New("out of order")
}

func ExampleWritableQueue() {
	down, up := &failing{}, &sdk.MemoryQueue{At: sdk.Partition{Broker: "b"}}
	topology := sdk.TopologyFunc(func(*sdk.Message) ([]sdk.WritableQueue, error) { return []sdk.WritableQueue{down, up}, nil })
	producer := sdk.NewProducer(nil, sdk.WithTopology(topology), sdk.WithTries(2, time.Second))
	r, err := producer.Send(context.Background(), sdk.NewMessage("t", nil))
	fmt.Println(r.Broker, err)
	// Output: b <nil>
}

func ExampleEnhancedMessage() {
	queue := &sdk.MemoryQueue{}
	producer := sdk.NewProducer(nil, sdk.WithTopology(sdk.TopologyFunc(func(*sdk.Message) ([]sdk.WritableQueue, error) {
		return []sdk.WritableQueue{queue}, nil
	})))
	r, err := producer.Send(context.Background(), sdk.NewMessage("t", nil))
	if err != nil {
		log.Fatal(err)
	}
	e := queue.Messages()[0] // what the sender did not have to set
	fmt.Println(e.ID == r.MessageID, time.Since(e.Born) < time.Minute)
	// Output: true true
}

func ExampleWithEpoch() {
	addr, stop := exampleBroker()
	defer stop()
	ctx := context.Background()
	start := func(epoch uint64) (*sdk.Producer, func() error) {
		client, err := sdk.Dial(ctx, addr, sdk.WithClientID("till-3"))
		if err != nil {
			log.Fatal(err)
		}
		return client.Producer(sdk.WithEpoch(epoch)), client.Close
	}
	successor, closeIt := start(2)
	_, err := successor.Send(ctx, sdk.NewMessage("sales", nil))
	fmt.Println(err)
	_ = closeIt()

	zombie, closeIt := start(1) // it was slow, and not dead
	_, err = zombie.Send(ctx, sdk.NewMessage("sales", nil))
	fmt.Println(errors.Is(err, sdk.ErrRefused))
	_ = closeIt()
	// Output:
	// <nil>
	// true
}

func ExampleWithTries() {
	client, stop := exampleClient()
	defer stop()
	producer := sdk.NewProducer([]*sdk.Client{client}, sdk.WithTries(5, 200*time.Millisecond)) // a second at most
	_, err := producer.Send(context.Background(), sdk.NewMessage("t", nil))
	fmt.Println(err)
	// Output: <nil>
}

func ExampleWithLatencyTable() {
	client, stop := exampleClient()
	defer stop()
	producer := client.Producer(sdk.WithLatencyTable(&sdk.LatencyTable{
		Latency: []time.Duration{time.Second, 10 * time.Second}, // slower than that:
		Avoid:   []time.Duration{5 * time.Second, time.Minute},  // not for so long
		Failure: 10 * time.Second,
	}))
	_, err := producer.Send(context.Background(), sdk.NewMessage("t", nil))
	fmt.Println(err)
	// Output: <nil>
}

func ExampleLatencyTable4() {
	fmt.Println(sdk.LatencyTable4().For(600*time.Millisecond), sdk.LatencyTable4().For(20*time.Second))
	// Output: 30s 10m0s
}

func ExampleLatencyTable5() {
	fmt.Println(sdk.LatencyTable5().For(600*time.Millisecond), sdk.LatencyTable5().For(20*time.Second))
	// Output: 2s 30s
}

func ExampleByCircle() {
	mine, err := sdk.ByCircle()("a", []string{"a", "b"}, []int{0, 1, 2, 3})
	fmt.Println(mine, err)
	// Output: [0 2] <nil>
}

func ExampleByConsistentHash() {
	before, _ := sdk.ByConsistentHash()("a", []string{"a", "b", "c"}, []int{0, 1, 2, 3, 4, 5, 6, 7})
	after, _ := sdk.ByConsistentHash()("a", []string{"a", "b"}, []int{0, 1, 2, 3, 4, 5, 6, 7})
	fmt.Println(before, after) // c has gone: a keeps what it had, and gets a part of what c had
	// Output: [0 4 6 7] [0 1 4 6 7]
}

func ExampleByList() {
	mine, err := sdk.ByList(map[string][]int{"a": {0, 3}, "b": {1, 2}})("a", []string{"a", "b"}, []int{0, 1, 2, 3})
	fmt.Println(mine, err)
	// Output: [0 3] <nil>
}

func ExampleNewBuffer() {
	b := sdk.NewBuffer(sdk.BufferOptions{High: 2, Low: 1, HighBytes: 10, LowBytes: 5}, func(s string) int { return len(s) })
	_ = b.Put("12345678901")
	fmt.Println(b.Len(), b.Bytes(), b.Throttled())
	s, err := b.Take(context.Background())
	fmt.Println(s, err, b.Throttled())
	// Output:
	// 1 11 true
	// 12345678901 <nil> false
}

func ExampleBuffer_Changed() {
	b := sdk.NewBuffer[string](sdk.BufferOptions{}, nil)
	go func() { _ = b.Put("a") }()
	<-b.Changed()
	s, ok := b.TryTake()
	fmt.Println(s, ok)
	_ = b.Put("b")
	b.Clear()
	fmt.Println(b.Len(), b.Close())
	// Output:
	// a true
	// 0 <nil>
}

func ExampleResult() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	m := sdk.NewMessage("orders", nil).PutHeader(sdk.HeaderMessageID, sdk.String("order-7"))
	first, err := client.Producer().Send(ctx, m)
	if err != nil {
		log.Fatal(err)
	}
	again, err := client.Producer().Send(ctx, m) // not stored twice: it is where it was
	fmt.Println(again.MessageID, again.Offset == first.Offset, again.StoreTime.Equal(first.StoreTime), err)
	// Output: order-7 true true <nil>
}

func ExampleTopology() {
	audit, rest := &sdk.MemoryQueue{}, &sdk.MemoryQueue{}
	var topology sdk.Topology = sdk.TopologyFunc(func(m *sdk.Message) ([]sdk.WritableQueue, error) {
		if m.Topic() == "audit" {
			return []sdk.WritableQueue{audit}, nil
		}
		return []sdk.WritableQueue{rest}, nil
	})
	producer := sdk.NewProducer(nil, sdk.WithTopology(topology))
	_, err := producer.Send(context.Background(), sdk.NewMessage("audit", nil))
	fmt.Println(len(audit.Messages()), len(rest.Messages()), err)
	// Output: 1 0 <nil>
}
