package main

import (
	"strings"
	"testing"

	"github.com/edgemq/edgemq/sdk/sdktest"
)

func TestExample(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), sdktest.Run(t).Addr, &out); err != nil {
		t.Fatal(err)
	}
	if want := "WATER!\n"; out.String() != want {
		t.Fatalf("it says %q, want %q", out.String(), want)
	}
}
