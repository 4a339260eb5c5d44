package ledger

import (
	"fmt"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
)

// stepCounts are how often each step of a state machine had been taken.
type stepCounts map[string]int64

func countSteps() stepCounts {
	r := stepCounts{}
	for _, m := range fsmcheck.All() {
		for _, s := range m.Steps() {
			r[s.String()] = s.Reached
		}
	}
	return r
}

// stepsSince returns how many of the steps were taken since before.
func (before stepCounts) stepsSince() (got, legal int, text string) {
	var missing []string
	for _, m := range fsmcheck.All() {
		for _, s := range m.Steps() {
			if legal++; s.Reached > before[s.String()] {
				got++
			} else {
				missing = append(missing, s.String())
			}
		}
	}
	return got, legal, fmt.Sprintf("steps taken %d of %d; missing: %s", got, legal, strings.Join(missing, "; "))
}
