// Command mutants breaks edgemq on purpose, one promise at a time, and runs the tests that must notice. A test that passes on a broken
// build proves nothing; this shows that they do prove something. Run it by "make torture-mutants".
//
//	go run ./internal/torture/mutants [-tries n] [-list] [name ...]
//
// Each mutant is applied to a copy of the tree. It is caught if one of its tests fails in one of the tries: some faults show only in a
// part of all crashes.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// edit replaces a text that a file has exactly once.
type edit struct{ file, old, new string }

// test is what must fail: in a package, with flags.
type test struct{ pkg, run, flags string }

func (t test) String() string { return t.pkg + " " + t.run }

type mutant struct {
	name, what string
	edits      []edit
	tests      []test // any of them
}

// torture is the test of the whole broker; it needs some hundred images to meet a rare moment.
var torture = test{"./internal/torture", "^TestPowerCuts$", "-images=600"}

func main() {
	tries := flag.Int("tries", 3, "runs of each test")
	list := flag.Bool("list", false, "only say what there is")
	flag.Parse()
	failed := 0
	for _, m := range mutants {
		if flag.NArg() > 0 && !slices.Contains(flag.Args(), m.name) {
			continue
		}
		if *list {
			fmt.Printf("%-22s %s\n", m.name, m.what)
			continue
		}
		start := time.Now()
		by, err := m.try(*tries)
		took := time.Since(start).Round(time.Second)
		switch {
		case err != nil:
			fmt.Printf("%-22s ERROR: %v\n", m.name, err)
			failed++
		case by == "":
			fmt.Printf("%-22s SURVIVED (%v)\n", m.name, took)
			failed++
		default:
			fmt.Printf("%-22s caught by %s (%v)\n", m.name, by, took)
		}
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// try runs the mutant's tests and says which caught it, and how.
func (m *mutant) try(tries int) (caught string, err error) {
	dir, err := os.MkdirTemp("", "edgemq-mutant")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := copyTree(dir); err != nil {
		return "", err
	}
	for _, e := range m.edits {
		if err := e.apply(dir); err != nil {
			return "", err
		}
	}
	if out, err := command(dir, "go", "build", "./...").CombinedOutput(); err != nil {
		return "", fmt.Errorf("it does not build: %w\n%s", err, out)
	}
	for range tries {
		for _, t := range m.tests {
			args := []string{"test", "-count=1", "-timeout=10m", "-run", t.run, t.pkg}
			if t.flags != "" {
				args = append(args, "-args", t.flags)
			}
			out, err := command(dir, "go", args...).CombinedOutput()
			if err != nil {
				return fmt.Sprintf("%s: %s", t, firstFault(string(out))), nil
			}
		}
	}
	return "", nil
}

// firstFault is the line of a test's output that says most.
func firstFault(out string) string {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if at := strings.Index(line, "_test.go:"); at >= 0 {
			_, what, _ := strings.Cut(line[at+9:], ": ")
			if !strings.HasPrefix(what, "seed ") || strings.Contains(what, ": ") {
				return fmt.Sprintf("%.110s", what)
			}
		}
	}
	return "it failed"
}

func command(dir, name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Dir = dir
	return c
}

func (e edit) apply(root string) error {
	path := filepath.Join(root, filepath.FromSlash(e.file))
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := strings.Count(string(b), e.old); n != 1 {
		return fmt.Errorf("%s has this %d times, not once: %q", e.file, n, e.old)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(b), e.old, e.new, 1)), 0o644)
}

// copyTree copies what is under version control, or could be.
func copyTree(to string) error {
	out, err := exec.Command("git", "ls-files", "-co", "--exclude-standard").Output()
	if err != nil {
		return fmt.Errorf("git ls-files, in the module's root: %w", err)
	}
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSuffix(name, "\n")
		b, err := os.ReadFile(name)
		if err != nil {
			continue // deleted, not yet committed
		}
		path := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}
