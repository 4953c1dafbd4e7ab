package sdktest_test

import (
	"context"
	"testing"

	"github.com/edgemq/edgemq/sdk"
	"github.com/edgemq/edgemq/sdk/sdktest"
)

func Example() {
	_ = func(t *testing.T) { // func TestBilling(t *testing.T) {
		broker := sdktest.Run(t)
		client := broker.Dial(sdk.WithClientID("billing"))
		if _, err := client.Producer().Send(t.Context(), sdk.NewMessage("orders", []byte("42"))); err != nil {
			t.Fatal(err)
		}
		broker.Stop() // what does the program do without its broker?
		if client.Connected() {
			t.Error("still connected")
		}
	}
}

func ExampleRun() {
	_ = func(t *testing.T) { // func TestFullQueue(t *testing.T) {
		broker := sdktest.Run(t, "limits.max_packet=8KiB")
		client, err := sdk.Dial(context.Background(), broker.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
	}
}
