package main

import (
	"strings"
	"testing"

	"github.com/edgemq/edgemq/sdk/sdktest"
)

func TestExample(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), sdktest.Run(t, `topics=[{filter: "site/+/state", keep: last}]`).Addr, &out); err != nil {
		t.Fatal(err)
	}
	want := "site/3/state: 4\nsite/0/state: 19\nsite/1/state: 19\nsite/2/state: 19\nsite/4/state: 19\nthat is all of them\nsite/3/state: 100\n"
	if out.String() != want {
		t.Fatalf("it says %q, want %q", out.String(), want)
	}
}
