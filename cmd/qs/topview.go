package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
)

// A topView is the content of the qs top screen, independent of the terminal, and the display
// settings that the user can change.
type topView struct {
	order       string
	filter      string
	fullSection int // number of the section that fills the screen, from 1 to 3; 0: all sections are displayed
	paused      bool
	typing      bool // the user is typing the filter
	styled      bool // headings are bold and problems are red

	report  *topReport
	message string // reason why no report, or no new report, is available
}

// handleKey handles a typed key and reports whether the user quit.
func (v *topView) handleKey(key rune) (quit bool) {
	const ctrlC, escape, backspace, del = 3, 0x1b, 8, 0x7f
	if v.typing {
		switch {
		case key == '\r' || key == '\n':
			v.typing = false
		case key == escape || key == ctrlC:
			v.typing, v.filter = false, ""
		case key == backspace || key == del:
			_, n := utf8.DecodeLastRuneInString(v.filter)
			v.filter = v.filter[:len(v.filter)-n]
		case key >= ' ' && len(v.filter) < 40:
			v.filter += string(key)
		}
		return false
	}
	switch key {
	case 'q', 'Q', ctrlC:
		return true
	case 'p', ' ':
		v.paused = !v.paused
	case 's':
		v.order = sortKeys[(slices.Index(sortKeys, v.order)+1)%len(sortKeys)]
	case '/':
		v.typing, v.filter = true, ""
	case escape:
		v.filter, v.fullSection = "", 0
	case '0', '1', '2', '3':
		v.fullSection = int(key - '0')
	}
	return false
}

// A screenSection is a heading followed by a table. The first of its lines contains the column
// headings.
type screenSection struct {
	heading string
	lines   []string
}

// render returns the lines of the screen: at most height lines, each at most width columns wide.
func (v *topView) render(width, height int) []string {
	head := []string{v.statusText(width), v.helpText(width)}
	if v.report == nil {
		return head[:min(len(head), height)]
	}
	sections := v.listSections(width)
	if v.fullSection > 0 {
		sections = sections[v.fullSection-1 : v.fullSection]
	}
	room := height - len(head)
	lines := head
	for i, s := range sections {
		left := len(sections) - i
		mine := min(room/left, len(s.lines)+2) // including the heading and an empty line; unused lines are available to the other sections
		room -= mine
		lines = append(lines, s.firstLines(mine, width, v.styled)...)
	}
	return lines[:min(len(lines), height)]
}

// firstLines returns at most n lines of a section, starting with an empty line and the heading.
func (s screenSection) firstLines(n, width int, styled bool) []string {
	if n < 3 {
		return nil
	}
	heading := s.heading
	shown := s.lines[:min(len(s.lines), n-2)]
	if hidden := len(s.lines) - len(shown); hidden > 0 {
		heading += fmt.Sprintf("  (%d more)", hidden)
	}
	heading = text.Trim(heading, width)
	if styled {
		heading = "\x1b[1m" + heading + "\x1b[0m"
	}
	return append([]string{"", heading}, shown...)
}

func (v *topView) statusText(width int) string {
	if v.report == nil {
		return text.Trim(show.Text(v.message), width)
	}
	r := v.report
	active, waiting := int64(0), int64(0)
	for _, c := range r.Contexts {
		active += c.Active
		waiting += c.Waiting
	}
	line := fmt.Sprintf("%s  %s  ", r.Address, r.Time.Format(time.TimeOnly))
	if v.message != "" { // displayed instead of an unknown value
		line += v.message
	} else {
		line += fmt.Sprintf("%s at work, %s", countText(int(active), "handler"), waitText(waiting))
	}
	if v.paused {
		line += "  PAUSED"
	}
	line = text.Trim(show.Text(line), width)
	if v.styled && v.message != "" {
		return "\x1b[31m" + line + "\x1b[0m"
	}
	return line
}

func waitText(requests int64) string {
	if requests == 1 {
		return "1 request waits"
	}
	return fmt.Sprintf("%d requests wait", requests)
}

// shownText returns the number of displayed entries as text, followed by the total if the filter
// omits some.
func shownText(shown, all int) string {
	if shown == all {
		return fmt.Sprint(all)
	}
	return fmt.Sprintf("%d of %d", shown, all)
}

func (v *topView) helpText(width int) string {
	line := fmt.Sprintf("q quit  p pause  s sort: %s  / filter: %s  1 calls 2 peers 3 methods 0 all", v.order, cmp.Or(v.filter, "none"))
	if v.typing {
		line = "filter: " + v.filter + "_  (Enter: keep it, Esc: none)"
	}
	return text.Trim(show.Text(line), width)
}

// listSections returns the sorted and filtered tables for a screen of the given width.
func (v *topView) listSections(width int) []screenSection {
	r := *v.report
	r.Calls, r.Methods, r.Peers = slices.Clone(r.Calls), slices.Clone(r.Methods), slices.Clone(r.Peers)
	r.filter(v.filter)
	r.sort(v.order)
	return r.listSections(width)
}

// listSections returns the tables for a terminal of the given width, or for other output if width
// is 0.
func (r *topReport) listSections(width int) []screenSection {
	calls := newTable(">age", "state", "kind", ">moved", "method", "peer")
	calls.optional = []string{"kind"}
	for _, c := range r.Calls {
		moved := ""
		if c.Items > 0 {
			moved = countText(int(c.Items), "item") + ", "
		}
		if c.Moved > 0 || c.Size > 0 {
			moved += bytesText(c.Moved)
		}
		if c.Size > 0 {
			moved += "/" + bytesText(c.Size)
		}
		calls.addRow(shortTime(c.Age), c.State, c.Kind, moved, c.Method, c.Peer)
	}
	peers := newTable("name", "address", ">active", ">calls/s", ">err/s", ">in/s", ">out/s", ">held", ">queued", "by")
	peers.optional = []string{"held", "queued", "in/s", "out/s", "by", "active", "err/s"}
	for _, p := range r.Peers {
		name := cmp.Or(p.Name, "-")
		if p.Own {
			name += " (this top)"
		}
		peers.addRow(name, cmp.Or(p.Remote, p.Address), fmt.Sprint(p.Active), rateText(p.Rate), rateText(p.Errors), bytesText(int64(p.Received)),
			bytesText(int64(p.Sent)), fmt.Sprint(p.Held), fmt.Sprint(p.Queued), p.Transport)
	}
	methods := newTable("method", ">active", ">calls/s", ">err/s", ">p50", ">p90", ">p99", ">max", ">items/s", ">in/s", ">out/s", "kind")
	methods.optional = []string{"kind", "in/s", "out/s", "max", "p90", "items/s", "active", "err/s"}
	for _, m := range r.Methods {
		methods.addRow(m.Method, fmt.Sprint(m.Active), rateText(m.Rate), rateText(m.Errors), shortTime(m.P50/1e6), shortTime(m.P90/1e6),
			shortTime(m.P99/1e6), shortTime(m.Max/1e6), rateText(m.Items), bytesText(int64(m.Received)), bytesText(int64(m.Sent)), m.Kind)
	}
	calls.shortenable, peers.shortenable, methods.shortenable = true, true, true
	return []screenSection{
		{fmt.Sprintf("Calls under way: %d", len(r.Calls)+r.More), calls.lines(width)},
		{"Peers: " + shownText(len(r.Peers), r.allPeers) + r.noPeer, peers.lines(width)},
		{fmt.Sprintf("Methods: %s, of the last %.1f s", shownText(len(r.Methods), r.allMethods), r.Seconds), methods.lines(width)},
	}
}

// shortTime formats a time in seconds for a narrow column. It returns a dash for an unknown time.
func shortTime(seconds float64) string {
	switch {
	case seconds <= 0:
		return "-"
	case seconds < 1e-3:
		return fmt.Sprintf("%.0fµs", seconds*1e6)
	case seconds < 1:
		return fmt.Sprintf("%.1fms", seconds*1e3)
	case seconds < 60:
		return fmt.Sprintf("%.1fs", seconds)
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}

func rateText(rate float64) string {
	switch {
	case rate == 0:
		return "-"
	case rate < 10:
		return fmt.Sprintf("%.1f", rate)
	}
	return fmt.Sprintf("%.0f", rate)
}

// print prints the report, line by line, for output that is not a full-screen view.
func (r *topReport) print(lines func(line string), width int) {
	v := topView{report: r}
	lines(v.statusText(cmp.Or(width, 1000)))
	for _, s := range r.listSections(width) {
		lines("")
		lines(s.heading)
		for _, l := range s.lines {
			lines(l)
		}
	}
}

// hasColors reports whether output may contain styles. It returns false if NO_COLOR is set (see
// no-color.org).
func hasColors() bool { return os.Getenv("NO_COLOR") == "" }

// drawCommands returns the control sequences that draw lines on a terminal in raw mode, replacing
// the previous content.
func drawCommands(lines []string) string {
	return "\x1b[H" + strings.Join(lines, "\x1b[K\r\n") + "\x1b[K\x1b[J"
}
