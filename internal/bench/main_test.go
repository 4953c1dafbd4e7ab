package bench

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/edgemq/edgemq/internal/testbroker"
)

func TestMain(m *testing.M) { os.Exit(testbroker.Main(leaks{m})) }

// leaks runs tests and looks for goroutines that are left over.
type leaks struct{ *testing.M }

func (l leaks) Run() int {
	code := l.M.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}
	return code
}
