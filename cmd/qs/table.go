package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
)

// A textTable prints rows under the names of columns. On a terminal its last column is wrapped, and rows that are longer still are cut.
type textTable struct {
	rows   table.Writer
	right  []bool // the column is aligned to the right
	widths []int  // of the columns
}

// newTable returns a table with columns. A name that begins with > is of a column that is aligned to the right.
func newTable(columns ...string) *textTable {
	t := &textTable{rows: table.NewWriter(), right: make([]bool, len(columns)), widths: make([]int, len(columns))}
	for i := range columns {
		columns[i], t.right[i] = strings.CutPrefix(columns[i], ">")
	}
	style := table.Style{Name: "plain", Box: table.StyleBoxDefault, Format: table.FormatOptions{Header: text.FormatDefault}}
	style.Box.PaddingLeft, style.Box.PaddingRight, style.Box.UnfinishedRow = "", "  ", " ~"
	t.rows.SetStyle(style)
	if strings.Join(columns, "") != "" {
		t.rows.AppendHeader(t.row(columns))
	}
	return t
}

// newList returns a table of labels and values, without a header.
func newList() *textTable { return newTable("", "") }

// addRow adds a row. The cells may be texts of peers.
func (t *textTable) addRow(cells ...string) { t.rows.AppendRow(t.row(cells)) }

func (t *textTable) row(cells []string) table.Row {
	row := make(table.Row, len(cells))
	for i, cell := range cells {
		cell = show.Text(cell)
		row[i] = cell
		t.widths[i] = max(t.widths[i], text.StringWidthWithoutEscSequences(cell))
	}
	return row
}

// print prints the table.
func (t *textTable) print(out io.Writer) {
	if t.rows.Length() == 0 {
		return
	}
	configs := make([]table.ColumnConfig, len(t.right))
	width, onTerminal := terminalWidth(out)
	rest := 0 // the width of all columns but the last
	for i, right := range t.right {
		configs[i].Number = i + 1
		if right {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
		if i < len(t.right)-1 {
			if !right && onTerminal {
				configs[i].WidthMax, configs[i].WidthMaxEnforcer = width/2, text.WrapText
				t.widths[i] = min(t.widths[i], width/2)
			}
			rest += t.widths[i] + 2
		}
	}
	if onTerminal {
		t.rows.Style().Size.WidthMax = width
		if last := len(configs) - 1; !t.right[last] {
			configs[last].WidthMax = max(20, width-rest-2)
			configs[last].WidthMaxEnforcer = text.WrapSoft
		}
	}
	t.rows.SetColumnConfigs(configs)
	for line := range strings.Lines(t.rows.Render()) {
		fmt.Fprintln(out, strings.TrimRight(line, " \n"))
	}
}

// bytesText returns a number of bytes for people.
func bytesText(n int64) string { return humanize.IBytesN(uint64(max(n, 0)), 3) }

// micros returns a time in microseconds, as JSON has it.
func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
