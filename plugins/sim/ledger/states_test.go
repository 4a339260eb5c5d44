package ledger

import (
	"fmt"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
)

// cellCounts are how often each cell had been reached.
type cellCounts map[string]int64

func reached() cellCounts {
	r := cellCounts{}
	for _, m := range fsmcheck.All() {
		for _, c := range m.Cells() {
			r[c.String()] = c.Reached
		}
	}
	return r
}

// since says how much of the tables was reached since. One coroutine runs at a time here, so the cells that take a race are
// not asked for.
func (before cellCounts) since() (got, legal int, text string) {
	var missing []string
	races := 0
	for _, m := range fsmcheck.All() {
		for _, c := range m.Cells() {
			switch {
			case c.Race:
				races++
				continue
			case c.Reached > before[c.String()]:
				got++
			default:
				missing = append(missing, c.String())
			}
			legal++
		}
	}
	return got, legal, fmt.Sprintf("cells reached %d of %d, and %d more take a race; missing: %s", got, legal, races, strings.Join(missing, "; "))
}
