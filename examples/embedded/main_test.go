package main

import (
	"strings"
	"testing"
)

func TestExample(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), t.TempDir(), &out); err != nil {
		t.Fatal(err)
	}
	if want := "close the gate\n"; out.String() != want {
		t.Fatalf("it says %q, want %q", out.String(), want)
	}
}
