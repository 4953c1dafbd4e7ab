package main

import (
	"os"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/internal/testbroker"
)

func TestMain(m *testing.M) {
	if os.Getenv("EDGEMQ_CONTEST_CHILD") != "" {
		main()
	}
	os.Exit(testbroker.Main(m))
}

// TestContest is AT-30, with fewer messages than make contest has.
func TestContest(t *testing.T) {
	for name, args := range map[string][]string{"sdk": nil, "raw": {"-raw"}} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			args := append([]string{"-edgemq", testbroker.Binary(t), "-dir", t.TempDir(), "-n", "20000", "-large", "2000"}, args...)
			if code := run(args, &out); code != 0 {
				t.Fatalf("exit code %d\n%s", code, out.String())
			}
			t.Log(out.String())
		})
	}
}
