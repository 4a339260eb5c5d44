package pathcost

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const recordedFile = "testdata/table.txt"

// TestCosts: no figure of a call rises.
//
//	go test ./internal/test/pathcost -v -pathcost.measure     print the table, compare it
//	go test ./internal/test/pathcost -update                  record it
func TestCosts(t *testing.T) {
	m, err := newMeter("calls", t.TempDir())
	require.NoError(t, err)
	text, err := os.ReadFile(recordedFile)
	require.NoError(t, err)
	recorded, err := parseTable(string(text))
	require.NoError(t, err)

	rounds, attempts := 4, 4
	if *update {
		rounds, attempts = 24, 1
	}
	found, cpu := table{}, map[cell]float64{}
	var risen, fallen []string
	for _, c := range allCells() {
		costs, used, err := m.measure(c, rounds)
		require.NoError(t, err)
		for range attempts - 1 { // a machine that is busy with something else only adds
			up, _ := c.compareCosts(recorded[c], costs.withoutVarying())
			if len(up) == 0 {
				break
			}
			again, _, err := m.measure(c, rounds)
			require.NoError(t, err)
			costs = minCosts(costs, again)
		}
		found[c] = costs.withoutVarying()
		up, down := c.compareCosts(recorded[c], found[c])
		risen, fallen = append(risen, up...), append(fallen, down...)
		cpu[c] = used / 1000
	}
	var b strings.Builder
	b.WriteString(found.writeSums())
	writeRow(&b, "processor time, µs (of this machine; not compared)", func(c cell) float64 { return cpu[c] })
	t.Logf("what one call costs, both ends together\n%s", &b)
	if *update {
		note := "What one call of 64 bytes costs, both ends together, and in which functions. Recorded with " + runtime.Version() +
			":\n\n\tgo test ./internal/test/pathcost -update"
		require.NoError(t, os.WriteFile(recordedFile, []byte(found.write(note)), 0o644))
		return
	}
	if len(fallen) > 0 {
		t.Logf("less than recorded: record it with -update, so that it stays\n%s", strings.Join(fallen, ""))
	}
	if len(risen) > 0 {
		t.Errorf("more than recorded (this is %s): take it back, or, if it must be, record it with -update\n%s",
			runtime.Version(), strings.Join(risen, ""))
	}
}
