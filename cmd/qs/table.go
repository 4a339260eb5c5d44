package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
)

// A textTable prints rows below column headings. On a terminal it wraps text columns that are too wide, or truncates
// their cells, and omits optional columns.
type textTable struct {
	rows        table.Writer
	right       []bool // whether each column is right-aligned
	widths      []int  // width of each column
	shortenable bool   // on a terminal, cells are truncated instead of wrapped
	isNames     []string
	optional    []string // columns that may be omitted on a narrow terminal, in this order
}

// newTable returns a table with the given columns. The prefix > denotes a right-aligned column.
func newTable(columns ...string) *textTable {
	t := &textTable{rows: table.NewWriter(), right: make([]bool, len(columns)), widths: make([]int, len(columns))}
	for i := range columns {
		columns[i], t.right[i] = strings.CutPrefix(columns[i], ">")
	}
	t.isNames = columns
	style := table.Style{Name: "plain", Box: table.StyleBoxDefault, Format: table.FormatOptions{Header: text.FormatDefault}}
	style.Box.PaddingLeft, style.Box.PaddingRight, style.Box.UnfinishedRow = "", "  ", " ~"
	t.rows.SetStyle(style)
	if strings.Join(columns, "") != "" {
		t.rows.AppendHeader(t.addCells(columns))
	}
	return t
}

// newList returns a table with two columns, for labels and values, and without headings.
func newList() *textTable { return newTable("", "") }

// addRow adds a row. The cells may contain untrusted text from peers, which is escaped.
func (t *textTable) addRow(cells ...string) { t.rows.AppendRow(t.addCells(cells)) }

func (t *textTable) addCells(cells []string) table.Row {
	row := make(table.Row, len(cells))
	for i, cell := range cells {
		cell = show.Text(cell)
		row[i] = cell
		t.widths[i] = max(t.widths[i], text.StringWidthWithoutEscSequences(cell))
	}
	return row
}

// print prints the table. It prints nothing if the table is empty.
func (t *textTable) print(out io.Writer) {
	if t.rows.Length() == 0 {
		return
	}
	width, onTerminal := terminalWidth(out)
	if !onTerminal {
		width = 0
	}
	for _, line := range t.lines(width) {
		fmt.Fprintln(out, line)
	}
}

// lines returns the lines of the table for a terminal of the given width, or for other output if width is 0.
func (t *textTable) lines(width int) (lines []string) {
	enforcer := text.WrapSoft
	if t.shortenable {
		enforcer = func(cell string, width int) string { return text.Snip(cell, width, "~") }
	}
	configs := make([]table.ColumnConfig, len(t.right))
	hidden := t.hiddenColumns(width)
	limits := t.columnWidths(width, hidden)
	for i, right := range t.right {
		configs[i].Number, configs[i].Hidden = i+1, hidden[i]
		if right {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
		if limit := limits[i]; limit > 0 {
			configs[i].WidthMax, configs[i].WidthMaxEnforcer = limit, enforcer
		}
	}
	t.rows.Style().Size.WidthMax = width
	t.rows.SetColumnConfigs(configs)
	for line := range strings.Lines(t.rows.Render()) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return lines
}

// usefulWidth is the minimum width to which a text column is truncated. If this is not enough, an optional column is
// omitted.
const usefulWidth = 24

// hiddenColumns reports which columns to omit on a terminal of the given width. It omits optional columns, in the order
// of t.optional, until the others fit with text columns truncated to usefulWidth.
func (t *textTable) hiddenColumns(width int) []bool {
	hidden := make([]bool, len(t.right))
	for _, name := range t.optional {
		need := -2
		for i, right := range t.right {
			switch {
			case hidden[i]:
			case right:
				need += 2 + t.widths[i]
			default:
				need += 2 + min(t.widths[i], usefulWidth)
			}
		}
		if width == 0 || need <= width {
			break
		}
		hidden[slices.Index(t.isNames, name)] = true
	}
	return hidden
}

// columnWidths returns the maximum width of each text column on a terminal of the given width. Narrow columns keep
// their width, and the others share the remaining space.
func (t *textTable) columnWidths(width int, hidden []bool) []int {
	limits := make([]int, len(t.right))
	if width == 0 {
		return limits
	}
	var texts []int
	room := width
	for i, right := range t.right {
		if hidden[i] {
			continue
		}
		room -= 2 // space between columns
		if right {
			room -= t.widths[i]
		} else {
			texts = append(texts, i)
		}
	}
	slices.SortStableFunc(texts, func(a, b int) int { return cmp.Compare(t.widths[a], t.widths[b]) })
	for n, i := range texts {
		limits[i] = min(t.widths[i], max(8, room/(len(texts)-n)))
		room -= limits[i]
	}
	return limits
}

// bytesText formats a number of bytes with a binary unit, such as "1.5 MiB".
func bytesText(n int64) string { return humanize.IBytesN(uint64(max(n, 0)), 3) }

// toMicros returns a duration in microseconds, the unit used in JSON.
func toMicros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
