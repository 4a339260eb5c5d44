package pathcost

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	tab := table{}
	for _, c := range allCells() {
		tab[c] = costs{}
	}
	tab[cell{"callback", "tcp"}] = costs{functions: {"hg.a": 1, "hg.b": 1}, locks: {"hg.b": 2}, frames: {"hg.a": 3}}
	tab[cell{"typed", "sm"}] = costs{functions: {"hg.b": 1}, varying: {"hg.a": 1}, systemCalls: {"na.c": 2.3}, clockReads: {"na.c": 1}, clockReaders: {"na.d": 1}}
	text := tab.write("a note")
	require.Contains(t, text, "a note\n")
	require.Regexp(t, `(?m)^all functions +2 +\. +\. +\. +\. +\. +\. +\. +1$`, text)
	require.Regexp(t, `(?m)^na\.c +\. +\. +\. +\. +\. +\. +\. +\. +2\.3$`, text)
	parsed, err := parseTable(text)
	require.NoError(t, err)
	require.Equal(t, tab, parsed)

	for _, line := range []string{"hg.a 1 1", "hg.a 1 1 1 1 x 1 1 1 1"} {
		_, err = parseTable("functions\n" + line)
		require.ErrorContains(t, err, `not a line of the table: "`+line+`"`)
	}
}

func TestCompareCosts(t *testing.T) {
	recorded := func() costs {
		return costs{
			functions: {"hg.a": 1, "hg.b": 1}, varying: {"hg.v": 1}, locks: {"hg.b": 2}, clockReads: {"tcp.now": 3},
			clockReaders: {"hg.b": 3}, systemCalls: {"na.c": 2}, allocations: {"hg.a": 1}, frames: {"hg.a": 3},
		}
	}
	for name, c := range map[string]struct {
		cell          cell
		change        func(c costs)
		risen, fallen []string
	}{
		"the same":           {change: func(costs) {}},
		"a function":         {change: func(c costs) { c[functions]["hg.c"] = 1 }, risen: []string{"callback over tcp: functions: got 3, recorded 2, tolerance 0\n    + hg.c: 1, was 0\n"}},
		"another name":       {change: func(c costs) { delete(c[functions], "hg.a"); c[functions]["hg.c"] = 1 }},
		"two for one":        {change: func(c costs) { delete(c[functions], "hg.a"); c[functions]["hg.c"], c[functions]["hg.d"] = 1, 1 }, risen: []string{"callback over tcp: functions: got 3, recorded 2, tolerance 0\n    + hg.c: 1, was 0\n    + hg.d: 1, was 0\n    - hg.a: 0, was 1\n"}},
		"fewer functions":    {change: func(c costs) { delete(c[functions], "hg.a") }, fallen: []string{"callback over tcp: functions: got 1, recorded 2, tolerance 0\n    - hg.a: 0, was 1\n"}},
		"varied, now always": {change: func(c costs) { c[functions]["hg.v"] = 1; delete(c[varying], "hg.v") }},
		"always, now varies": {change: func(c costs) { delete(c[functions], "hg.a"); c[varying]["hg.a"] = 1 }},
		"a lock":             {change: func(c costs) { c[locks]["hg.b"]++ }, risen: []string{"callback over tcp: locks: got 3, recorded 2, tolerance 0.7\n    + hg.b: 3, was 2\n"}},
		"a lock, elsewhere":  {change: func(c costs) { c[locks]["hg.a"] = 1 }, risen: []string{"callback over tcp: locks: got 3, recorded 2, tolerance 0.7\n    + hg.a: 1, was 0\n"}},
		"half a lock":        {change: func(c costs) { c[locks]["hg.b"] += 0.5 }},
		"a lock less":        {change: func(c costs) { c[locks]["hg.b"]-- }, fallen: []string{"callback over tcp: locks: got 1, recorded 2, tolerance 0.7\n    - hg.b: 1, was 2\n"}},
		"the clock":          {change: func(c costs) { c[clockReads]["tcp.now"]++; c[clockReaders]["hg.x"] = 1 }, risen: []string{"callback over tcp: clock reads: got 4, recorded 3, tolerance 0.7\n    + tcp.now: 4, was 3\n    + hg.x: 1, was 0\n"}},
		"a reader":           {change: func(c costs) { c[clockReaders]["hg.x"] = 1 }},
		"a system call":      {change: func(c costs) { c[systemCalls]["na.c"]++ }, risen: []string{"callback over tcp: system calls: got 3, recorded 2, tolerance 0.7\n    + na.c: 3, was 2\n"}},
		"a wakeup":           {cell: cell{"typed", "sm"}, change: func(c costs) { c[systemCalls]["na.c"] += 2; c[locks]["hg.b"] += 2 }},
		"two wakeups":        {cell: cell{"typed", "sm"}, change: func(c costs) { c[systemCalls]["na.c"] += 3 }, risen: []string{"typed over sm: system calls: got 5, recorded 2, tolerance 2.5\n    + na.c: 5, was 2\n"}},
		"an allocation":      {change: func(c costs) { c[allocations]["hg.b"] = 1 }, risen: []string{"callback over tcp: allocations: got 2, recorded 1, tolerance 0.7\n    + hg.b: 1, was 0\n"}},
		"a frame":            {change: func(c costs) { c[frames]["hg.a"]++ }, risen: []string{"callback over tcp: frames: got 4, recorded 3, tolerance 0\n    + hg.a: 4, was 3\n"}},
	} {
		if c.cell == (cell{}) {
			c.cell = cell{"callback", "tcp"}
		}
		now := recorded()
		c.change(now)
		risen, fallen := c.cell.compareCosts(recorded(), now)
		require.Equal(t, c.risen, risen, name)
		require.Equal(t, c.fallen, fallen, name)
	}
}
