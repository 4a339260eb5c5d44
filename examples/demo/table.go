package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// A table holds the final output of the program: the steps, their results and durations.
type table struct{ rows []row }

type row struct {
	step, result string
	took         time.Duration
}

func (t *table) add(step, result string, took time.Duration) {
	t.rows = append(t.rows, row{step, result, took})
}

func (t *table) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "\nSTEP\tWHAT HAPPENED\tTOOK")
	var total time.Duration
	for _, r := range t.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.step, r.result, ms(r.took))
		total += r.took
	}
	fmt.Fprintf(w, "all well\t\t%s\n", ms(total))
	return w.Flush()
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond)) }
