package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/sdk/sdktest"
)

func TestExample(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), sdktest.Run(t).Addr, &out); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	slices.Sort(got) // several are handled at once
	want := []string{
		"dead: pears (no address)", "dead: quinces (no address)",
		"delivered: apples to Mill Lane 3", "delivered: pears to the shop", "delivered: plums to High Street 9", "delivered: quinces to the shop",
	}
	if !slices.Equal(got, want) {
		t.Fatalf("it says %q, want %q", got, want)
	}
}
