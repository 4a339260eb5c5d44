package pathcost

import (
	"flag"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

var (
	measured = flag.Bool("pathcost.measure", false, "measure what a call costs, print the table, and compare it with the recorded one")
	update   = flag.Bool("update", false, "measure, and record the table")
)

// TestMain leaves TestCosts out of a plain run: it is about this machine's compiler and system, too.
func TestMain(m *testing.M) {
	flag.Parse()
	if !*measured && !*update {
		_ = flag.Set("test.skip", "^TestCosts$")
	}
	leak.Main(m)
}
