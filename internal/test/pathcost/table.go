package pathcost

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A cell is a way to make a call.
type cell struct{ kind, transport string }

func (c cell) String() string { return c.kind + " over " + c.transport }

var (
	kinds      = []string{"callback", "blocking", "typed"}
	transports = []string{"tcp", "udp", "sm"}
)

func allCells() (all []cell) {
	for _, k := range kinds {
		for _, t := range transports {
			all = append(all, cell{k, t})
		}
	}
	return all
}

// A table has the costs of each cell.
type table map[cell]costs

// write returns t as text: the sums of all figures, and then, for each figure, the functions that
// it is in.
func (t table) write(note string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", note)
	b.WriteString(t.writeSums())
	for _, figure := range lists {
		names := map[string]bool{}
		for _, c := range t {
			for name := range c[figure] {
				names[name] = true
			}
		}
		fmt.Fprintf(&b, "\n%s\n", figure)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			writeRow(&b, name, func(c cell) float64 { return t[c][figure][name] })
		}
	}
	return b.String()
}

func (t table) writeSums() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-60s", "")
	for _, k := range kinds {
		fmt.Fprintf(&b, "   %-21s", k)
	}
	fmt.Fprintf(&b, "\n%-60s", "")
	for range kinds {
		b.WriteString("  ")
		for _, t := range transports {
			fmt.Fprintf(&b, " %6s", t)
		}
	}
	b.WriteString("\n")
	for _, figure := range figures {
		writeRow(&b, "all "+figure, func(c cell) float64 { return sum(t[c][figure]) })
	}
	return b.String()
}

// writeRow writes a name and a number for each cell, with a point for 0.
func writeRow(b *strings.Builder, name string, number func(c cell) float64) {
	fmt.Fprintf(b, "%-60s", name)
	for i, c := range allCells() {
		if i%len(transports) == 0 {
			b.WriteString("  ")
		}
		text := "."
		if n := number(c); n != 0 {
			text = strconv.FormatFloat(n, 'f', -1, 64)
			if n != float64(int(n)) {
				text = strconv.FormatFloat(n, 'f', 1, 64)
			}
		}
		fmt.Fprintf(b, " %6s", text)
	}
	b.WriteString("\n")
}

// parseTable parses a text of write.
func parseTable(text string) (table, error) {
	t := table{}
	for _, c := range allCells() {
		t[c] = costs{}
	}
	figure := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if slices.Contains(lists, line) {
			figure = line
			continue
		}
		if figure == "" || line == "" {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 1+len(allCells()) {
			return nil, fmt.Errorf("not a line of the table: %q", line)
		}
		for i, c := range allCells() {
			if fields[1+i] == "." {
				continue
			}
			n, err := strconv.ParseFloat(fields[1+i], 64)
			if err != nil {
				return nil, fmt.Errorf("not a line of the table: %q: %w", line, err)
			}
			t[c].add(figure, fields[0], n)
		}
	}
	return t, nil
}

// tolerance is how much a figure may be above the recorded one. Functions and frames do not vary.
// Of the others a busy machine adds a little to what is divided by the number of calls. Over sm an
// end that sleeps is woken by two system calls, with a lock, which the other end spares it if it is
// still awake: that is as the threads run.
func (c cell) tolerance(figure string) float64 {
	switch {
	case figure == functions, figure == frames:
		return 0
	case c.transport == "sm" && c.kind != "callback" && (figure == locks || figure == systemCalls):
		return 2.5
	}
	return 0.7
}

// compareCosts returns a text for each figure that has risen above what is recorded, and one for
// each that has fallen, with the functions in which there is more now, and then those in which
// there is less.
func (c cell) compareCosts(recorded, measured costs) (risen, fallen []string) {
	for _, figure := range figures {
		before, now := recorded[figure], measured[figure]
		if figure == functions {
			before, now = exceptIn(before, measured[varying]), exceptIn(now, recorded[varying])
		}
		was, is, tolerance := sum(before), sum(now), c.tolerance(figure)
		text := fmt.Sprintf("%v: %s: got %.4g, recorded %.4g, tolerance %g\n", c, figure, is, was, tolerance)
		text += listChanges(before, now)
		if figure == clockReads {
			text += listChanges(recorded[clockReaders], measured[clockReaders])
		}
		switch {
		case is > was+tolerance:
			risen = append(risen, text)
		case is < was-max(tolerance, 0.9):
			fallen = append(fallen, text)
		}
	}
	return risen, fallen
}

// exceptIn returns the entries of all that are not in some.
func exceptIn(all, some map[string]float64) map[string]float64 {
	rest := map[string]float64{}
	for name, n := range all {
		if some[name] == 0 {
			rest[name] = n
		}
	}
	return rest
}

// listChanges returns a line for each function in which there is more, and then one for each in
// which there is less.
func listChanges(recorded, measured map[string]float64) string {
	var more, less strings.Builder
	for _, name := range slices.Sorted(maps.Keys(maxFrames(recorded, measured))) {
		was, is := recorded[name], measured[name]
		switch {
		case is > was:
			fmt.Fprintf(&more, "    + %s: %.4g, was %.4g\n", name, is, was)
		case is < was:
			fmt.Fprintf(&less, "    - %s: %.4g, was %.4g\n", name, is, was)
		}
	}
	return more.String() + less.String()
}
