// Package arch holds the tests that keep the architecture: which package may import which.
package arch

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/edgemq/edgemq/"

type pkg struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", module+"...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// layers are listed from the top. A package may import packages of lower layers only.
var layers = [][]string{
	{"cmd/edgemq"},
	{"internal/config"},
	{"broker"},
	{"hooks", "broker/admin"},
	{"broker/conn"},
	{"broker/session"},
	{"broker/feed"},
	{"broker/topic", "broker/packet"},
	{"store"},
	{"store/journal", "store/segment", "store/ledger", "store/state"},
	{"store/record"},
	{"store/vfs", "internal/wire"},
}

// outside are packages that no part of the broker may need: tools, clients, tests.
var outside = []string{"internal/client", "internal/testbroker", "internal/e2e", "internal/arch", "internal/bench", "sdk", "examples"}

// homes says where the libraries with a large face may be imported: anywhere else, and a change of library
// is a change of everything.
var homes = map[string][]string{
	"github.com/spf13/viper":              {"internal/config"},
	"github.com/spf13/cobra":              {"cmd/edgemq"},
	"github.com/eclipse/paho.golang":      {"internal/client"},
	"github.com/eclipse/paho.mqtt.golang": {"internal/client", "sdk"},
	"go.etcd.io/bbolt":                    {"store/state"},
	"github.com/mochi-mqtt/server/v2":     {"hooks", "broker", "broker/session", "broker/conn"},
	"github.com/coder/websocket":          {"broker", "broker/conn"},
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
	for _, o := range outside {
		if within(path, o) {
			return true
		}
	}
	return false
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, module)
		if isOutside(from) {
			continue
		}
		at, name := layer(from)
		if at < 0 {
			t.Errorf("%s has no layer: say in this test where it belongs", from)
			continue
		}
		for _, imported := range p.Imports {
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
		from := strings.TrimPrefix(p.ImportPath, module)
		for library, allowed := range homes {
			for _, imported := range p.Imports {
				if !within(imported, library) || (library == "log" || library == "math/rand") && imported != library {
					continue
				}
				ok := false
				for _, home := range allowed {
					ok = ok || from == home
				}
				if !ok {
					t.Errorf("%s imports %s, whose home is %v", from, imported, allowed)
				}
			}
		}
	}
}

// What ships has no test helpers in it.
func TestNoTestCodeInProduction(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, module)
		if isOutside(from) || strings.HasSuffix(from, "test") {
			continue
		}
		for _, imported := range p.Imports {
			if imported == "testing" || strings.HasSuffix(imported, "/vfstest") || strings.Contains(imported, "goleak") {
				t.Errorf("%s imports %s", from, imported)
			}
		}
	}
}
