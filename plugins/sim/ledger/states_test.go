package ledger

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/states"
)

// cellCounts are how often each cell had been reached.
type cellCounts map[string]int64

func reached() cellCounts {
	r := cellCounts{}
	for _, m := range states.All() {
		for _, c := range m.Cells() {
			r[c.String()] = c.Reached
		}
	}
	return r
}

// require says how much of the tables was reached since, and fails below least of a hundred. One coroutine runs at a time
// here, so the cells that take a race are not asked for.
func (before cellCounts) require(t *testing.T, least int) {
	t.Helper()
	var missing []string
	all, want, got := 0, 0, 0
	for _, m := range states.All() {
		for _, c := range m.Cells() {
			all++
			if c.Race {
				continue
			}
			want++
			if c.Reached > before[c.String()] {
				got++
			} else {
				missing = append(missing, c.String())
			}
		}
	}
	text := fmt.Sprintf("cells reached %d of %d, and %d more take a race; missing: %s", got, want, all-want, strings.Join(missing, "; "))
	t.Log(text)
	require.GreaterOrEqual(t, got*100, least*want, text)
}
