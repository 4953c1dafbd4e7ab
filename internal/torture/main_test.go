package torture

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/edgemq/edgemq/internal/testbroker"
)

// What "make torture" sets; an ordinary run of the tests does a little of each.
var (
	images   = flag.Int("images", 32, "power cuts: images to recover from")
	rounds   = flag.Int("rounds", 3, "kill -9: rounds")
	failures = flag.Int("failures", 6, "disk errors, and flipped bits")
	heavy    = flag.Bool("heavy", false, "network: as much as docs/RELIABILITY.md says")
	soak     = flag.Duration("soak", 0, "how long the soak takes; 0 leaves it out")
	duration = flag.Duration("duration", 0, "stop beginning new rounds after this time; 0 is no limit")
	seed     = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of everything that is left to chance")
)

func TestMain(m *testing.M) { os.Exit(testbroker.Main(m)) }

// enough says whether a test that began then has had its time.
func enough(began time.Time) bool { return *duration > 0 && time.Since(began) > *duration }

// report fails a test with the faults and what happened around the first.
func report(t *testing.T, p *Plant, faults []Fault) {
	t.Helper()
	for i, f := range faults {
		if i == 10 {
			t.Errorf("and %d more", len(faults)-i)
			break
		}
		t.Error(f)
	}
	if len(faults) > 0 {
		for _, line := range p.H.About(faults[0]) {
			t.Log(line)
		}
		if f, err := os.CreateTemp("", "torture-*.history"); err == nil {
			_, _ = f.WriteString(p.H.Dump())
			_ = f.Close()
			t.Logf("all that happened is in %s", f.Name())
		}
	}
}
