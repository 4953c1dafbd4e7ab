package sdk_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/edgemq/edgemq/internal/testbroker"
)

func TestMain(m *testing.M) { os.Exit(testbroker.Main(leakless{m})) }

// leakless runs the tests and then looks for goroutines that were left behind.
type leakless struct{ m *testing.M }

func (l leakless) Run() int {
	code := l.m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			os.Stderr.WriteString("goroutines left behind: " + err.Error() + "\n")
			return 1
		}
	}
	return code
}
