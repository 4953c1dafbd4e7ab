// Package arch holds the tests that keep the architecture: which package may import which.
package arch

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/edgemq/edgemq/"

// pkg is a package and what its files import, those of all systems, tests apart.
type pkg struct {
	path    string   // from the root of the module
	imports []string // not those of tests
}

// packages reads the whole module. It reads the files itself, so that go test knows when its result is stale.
func packages(t *testing.T) []*pkg {
	t.Helper()
	const root = "../.."
	byPath := map[string]*pkg{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if name == "testdata" || strings.HasPrefix(name, ".") && file != root {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		p := byPath[dir]
		if p == nil {
			p = &pkg{path: filepath.ToSlash(dir)}
			byPath[dir] = p
		}
		for _, i := range f.Imports {
			p.imports = append(p.imports, strings.Trim(i.Path.Value, `"`))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(maps.Values(byPath))
}

// layers are listed from the top. A package may import packages of lower layers only.
var layers = [][]string{
	{"cmd/edgemq"},
	{"internal/config"},
	{"broker"},
	{"hooks", "broker/admin"},
	{"broker/conn", "broker/transport"},
	{"broker/poll", "broker/session"},
	{"broker/feed"},
	{"broker/auth"},
	{"broker/topic", "broker/packet", "broker/socket"},
	{"store"},
	{"store/journal", "store/segment", "store/ledger", "store/state", "store/sparse"},
	{"store/record"},
	{"store/vfs", "internal/wire", "internal/diagnose"},
}

// outside are packages that no part of the broker may need: tools, clients, tests.
var outside = []string{"internal/client", "internal/testbroker", "internal/testcert", "internal/e2e", "internal/accept", "internal/torture", "internal/arch", "internal/bench", "sdk", "examples"}

// homes says where the libraries with a large face may be imported: anywhere else, and a change of library
// is a change of everything.
var homes = map[string][]string{
	"github.com/spf13/viper":              {"internal/config"},
	"github.com/spf13/cobra":              {"cmd/edgemq"},
	"github.com/eclipse/paho.golang":      {"internal/client"},
	"github.com/eclipse/paho.mqtt.golang": {"internal/client", "sdk"},
	"go.etcd.io/bbolt":                    {"store/state"},
	"golang.org/x/crypto":                 {"broker/auth"},
	"golang.org/x/term":                   {"cmd/edgemq"},
	"github.com/mochi-mqtt/server/v2":     {"hooks", "broker"},
	"github.com/coder/websocket":          {"broker/transport", "internal/client"},
	"log":                                 {},
	"io/ioutil":                           {},
	"math/rand":                           {},
}

// within reports whether path is root or below it.
func within(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}

// layer finds the layer of a package: the longest name that it is within.
func layer(path string) (index int, name string) {
	index = -1
	for i, names := range layers {
		for _, n := range names {
			if within(path, n) && len(n) > len(name) {
				index, name = i, n
			}
		}
	}
	return index, name
}

func isOutside(path string) bool {
	return slices.ContainsFunc(outside, func(o string) bool { return within(path, o) })
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range packages(t) {
		from := p.path
		if isOutside(from) {
			continue
		}
		at, name := layer(from)
		if at < 0 {
			t.Errorf("%s has no layer: say in this test where it belongs", from)
			continue
		}
		for _, imported := range p.imports {
			to, own := strings.CutPrefix(imported, module)
			if !own {
				continue
			}
			if isOutside(to) {
				if name != "cmd/edgemq" {
					t.Errorf("%s imports %s, which is a tool", from, to)
				}
				continue
			}
			below, target := layer(to)
			if below < at || below == at && target != name {
				t.Errorf("%s imports %s, which is not below it", from, to)
			}
		}
	}
}

func TestLibrariesHaveOneHome(t *testing.T) {
	for _, p := range packages(t) {
		from := p.path
		for library, allowed := range homes {
			for _, imported := range p.imports {
				if !within(imported, library) || (library == "log" || library == "math/rand") && imported != library {
					continue
				}
				if !slices.Contains(allowed, from) {
					t.Errorf("%s imports %s, whose home is %v", from, imported, allowed)
				}
			}
		}
	}
}

// What ships has no test helpers in it.
func TestNoTestCodeInProduction(t *testing.T) {
	for _, p := range packages(t) {
		from := p.path
		if isOutside(from) || strings.HasSuffix(from, "test") {
			continue
		}
		for _, imported := range p.imports {
			if imported == "testing" || strings.HasSuffix(imported, "/vfstest") || strings.Contains(imported, "goleak") {
				t.Errorf("%s imports %s", from, imported)
			}
		}
	}
}
