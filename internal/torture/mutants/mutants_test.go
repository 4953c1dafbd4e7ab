package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The list goes with the code: each text to replace is there, once, in a copy as in the tree.
func TestListFitsTheCode(t *testing.T) {
	const root = "../../.."
	names := map[string]bool{}
	for _, m := range mutants {
		if names[m.name] || m.what == "" || len(m.tests) == 0 || len(m.edits) == 0 {
			t.Errorf("%s: there twice, or incomplete", m.name)
		}
		names[m.name] = true
		for _, e := range m.edits {
			b, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				t.Error(err)
				continue
			}
			copied := filepath.Join(t.TempDir(), e.file)
			if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(copied, b, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := e.apply(strings.TrimSuffix(copied, e.file)); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		}
	}
}

func TestFirstFault(t *testing.T) {
	out := "=== RUN x\n    cut_test.go:187: seed 5, image 0\n    cut_test.go:188: s2: lost p|t|1 at event 5: acknowledged\nFAIL\n"
	if got := firstFault(out); got != "s2: lost p|t|1 at event 5: acknowledged" {
		t.Errorf("%q", got)
	}
}
