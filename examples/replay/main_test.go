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
	if want := "earliest: offset 1, 1.20 m\nearliest: offset 2, 1.25 m\nearliest: offset 3, 1.31 m\noffset:2: offset 2, 1.25 m\noffset:2: offset 3, 1.31 m\n"; out.String() != want {
		t.Fatalf("it says %q, want %q", out.String(), want)
	}
}
