package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"slices"
	"time"

	"github.com/edgemq/edgemq/sdk"
)

func ExampleNewMessage() {
	m := sdk.NewMessage("meters/7", []byte("21.5")).
		PutHeader(sdk.HeaderShardingKey, sdk.String("meter-7")).
		PutProperty("unit", sdk.String("°C"))
	fmt.Println(m.Topic(), string(m.Body()), m.Header(sdk.HeaderShardingKey), m.Property("unit"))
	// Output: meters/7 21.5 meter-7 °C
}

func ExampleNewQueueMessage() {
	m := sdk.NewQueueMessage("jobs", []byte("dig"))
	m.Delay = time.Minute                                               // not before
	m.PutHeader(sdk.HeaderTimeout, sdk.Int64(time.Hour.Milliseconds())) // nor after, counted from when it is due
	fmt.Println(m.Queue(), m.Headers().Has(sdk.HeaderTopic))
	// Output: jobs false
}

func ExampleMessage_Clone() {
	m := sdk.NewMessage("a", []byte("x"))
	c := m.Clone().PutHeader(sdk.HeaderTopic, sdk.String("b"))
	fmt.Println(m.Topic(), c.Topic())
	// Output: a b
}

func ExampleMessage_StoreTime() {
	client, stop := exampleClient(sdk.WithClientID("meter-7"))
	defer stop()
	ctx := context.Background()
	r, err := client.Producer().Send(ctx, sdk.NewQueueMessage("readings", nil))
	if err != nil {
		log.Fatal(err)
	}
	consumer := client.PullConsumer()
	if err := consumer.AttachQueue(ctx, "readings"); err != nil {
		log.Fatal(err)
	}
	m, err := consumer.PollWait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Producer(), m.MessageID() == r.MessageID, m.Offset() == r.Offset)
	fmt.Println(m.StoreTime().Equal(r.StoreTime.Truncate(time.Millisecond)), time.Since(m.BornTime()) < time.Minute)
	// Output:
	// meter-7 true true
	// true true
}

func ExampleString() {
	v := sdk.String("Ada")
	text, err := v.Text()
	fmt.Println(v.Kind(), text, err)
	// Output: string Ada <nil>
}

func ExampleInt32() {
	n, err := sdk.Int32(3).Int32()
	fmt.Println(n, err, sdk.Int32(3) == sdk.Int64(3))
	// Output: 3 <nil> false
}

func ExampleInt64() {
	n, err := sdk.Int64(math.MinInt64).Int64()
	fmt.Println(n, err)
	// Output: -9223372036854775808 <nil>
}

func ExampleFloat64() {
	v := sdk.Float64(math.Copysign(0, -1))
	f, err := v.Float64()
	fmt.Println(v, math.Signbit(f), err)
	// Output: -0 true <nil>
}

func ExampleKind() {
	switch v := sdk.NewMessage("t", nil).PutProperty("n", sdk.Int64(5)).Property("n"); v.Kind() {
	case sdk.KindInt32, sdk.KindInt64:
		fmt.Println("a number:", v)
	case sdk.KindNone:
		fmt.Println("not there")
	}
	// Output: a number: 5
}

func ExampleValues() {
	m := sdk.NewMessage("t", nil).PutProperty("a", sdk.Int32(1)).PutProperty("b", sdk.Int32(2))
	fmt.Println(slices.Collect(m.Properties().Keys()), m.Properties().Get("b"), m.Properties().Has("c"))
	// Output: [a b] 2 false
}

func ExampleField() {
	m := sdk.NewMessage("t", nil).PutProperty("retries", sdk.Int32(3))
	for _, f := range m.Properties() {
		fmt.Println(f.Name, f.Value)
	}
	// Output: retries 3
}

func ExampleKnowledge() {
	resend := func(e *sdk.SendError) bool {
		return e.Known != sdk.Refused // NotSent and Unknown: with the same MessageId it is stored once in any case
	}
	fmt.Println(resend(&sdk.SendError{Known: sdk.Unknown}), sdk.Unknown)
	// Output: true it may have been stored
}

func ExampleFilterError() {
	addr, stop := exampleBroker()
	defer stop()
	ctx := context.Background()
	client, err := sdk.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	first, err := client.Subscribe(ctx, "$exclusive/pump")
	if err != nil {
		log.Fatal(err)
	}
	defer first.Close()
	second, err := sdk.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	defer second.Close()
	_, err = second.Subscribe(ctx, "$exclusive/pump")
	var refused *sdk.FilterError
	fmt.Println(errors.As(err, &refused) && refused.Filter == "$exclusive/pump", errors.Is(err, sdk.ErrRefused))
	// Output: true true
}

func ExampleContextWithTraceID() {
	client, stop := exampleClient()
	defer stop()
	// With OpenTelemetry: propagation.TraceContext{} gives the traceparent of the current span.
	ctx := sdk.ContextWithTraceID(context.Background(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	if _, err := client.Producer().Send(ctx, sdk.NewQueueMessage("orders", nil)); err != nil {
		log.Fatal(err)
	}
	consumer := client.PullConsumer()
	if err := consumer.AttachQueue(ctx, "orders"); err != nil {
		log.Fatal(err)
	}
	for m, err := range consumer.Backlog(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(m.Header(sdk.HeaderTraceID))
	}
	// Output: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
}

func ExampleTraceID() {
	client, stop := exampleClient()
	defer stop()
	ctx, cancel := context.WithCancel(sdk.ContextWithTraceID(context.Background(), "trace-1"))
	producer := client.Producer()
	if _, err := producer.Send(ctx, sdk.NewQueueMessage("orders", nil)); err != nil {
		log.Fatal(err)
	}
	handle := func(ctx context.Context, _ *sdk.Delivery) error {
		fmt.Println(sdk.TraceID(ctx)) // what is sent with ctx belongs to the same trace
		cancel()
		return nil
	}
	if err := client.PushConsumer(handle).Run(ctx, sdk.FromQueue("orders")); err != nil {
		log.Fatal(err)
	}
	// Output: trace-1
}
