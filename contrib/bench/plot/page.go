package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// page generates, from the figures in docs/bench, the plots and the pages with their tables. It
// returns them by path.
func page(docs string) (map[string][]byte, error) {
	made := map[string][]byte{}
	for _, table := range []struct {
		page, name, file string
		draw             func(*file) (map[string][]byte, string, error)
	}{
		{"../README.md", "short", "calls.json", short},
		{"BENCHMARKS.md", "calls", "calls.json", calls},
		{"BENCHMARKS.md", "quic", "quic.json", func(f *file) (map[string][]byte, string, error) { return nil, callsTable(f.Runs), nil }},
		{"BENCHMARKS.md", "bodies", "bodies.json", bodies},
		{"BENCHMARKS.md", "ladder", "ladder.json", ladder},
		{"BENCHMARKS.md", "bulk", "bulk.json", bandwidth},
		{"BENCHMARKS.md", "beside", "beside.json", plain(column{"p50 alone, us", "idle_p50_us"}, column{"p99", "idle_p99_us"},
			column{"bulk alone, MiB/s", "idle_bulk_mib_per_s"}, column{"p50 beside bulk, us", "busy_p50_us"}, column{"p99", "busy_p99_us"},
			column{"bulk, MiB/s", "bulk_mib_per_s"})},
		{"BENCHMARKS.md", "loss", "loss.json", plain(column{"p50, us", "lat_p50_us"}, column{"p99", "lat_p99_us"}, column{"bulk, MiB/s", "bulk_mib_per_s"})},
		{"BENCHMARKS.md", "idle", "idle.json", plain(column{"% of a processor, all together", "cpu_percent"}, column{"bytes of heap and stacks, each", "bytes_per_peer"})},
	} {
		f, err := readFile(filepath.Join(docs, "bench", table.file))
		if err != nil {
			return nil, err
		}
		images, text, err := table.draw(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", table.file, err)
		}
		for image, b := range images {
			made[filepath.Join(docs, "img", "bench-"+image+".svg")] = b
		}
		name := filepath.Join(docs, table.page)
		if made[name] == nil {
			if made[name], err = os.ReadFile(name); err != nil {
				return nil, err
			}
		}
		if table.name != "short" {
			text += f.source(table.file)
		}
		if made[name], err = replace(made[name], table.name, text); err != nil {
			return nil, fmt.Errorf("%s: %w", table.page, err)
		}
	}
	return made, nil
}

// source returns a sentence that states the origin of the figures in f.
func (f *file) source(name string) string {
	return fmt.Sprintf("\nMedians of %d rounds at %s, %s: [%s](bench/%[4]s).\n", len(f.Runs[0].Rounds), f.Commit, f.Date, name)
}

// replace replaces the text between the comments in md that mark the named table.
func replace(md []byte, name, table string) ([]byte, error) {
	begin := "<!-- figures: " + name + " -->\n"
	before, rest, ok := strings.Cut(string(md), begin)
	_, after, ended := strings.Cut(rest, "<!-- end -->")
	if !ok || !ended {
		return nil, fmt.Errorf("no place for the figures of %s", name)
	}
	return []byte(before + begin + table + "<!-- end -->" + after), nil
}

var inFlight = []int{1, 16, 64}

// calls draws the latency and rates of all systems. Systems that work only within one host have plots
// of their own.
func calls(f *file) (map[string][]byte, string, error) {
	images, text := map[string][]byte{}, ""
	for _, part := range []struct {
		shared    bool
		name, are string
	}{{false, "", "over loopback TCP or UDP"}, {true, "shared-", "by shared memory or Unix socket"}} {
		var rows []*run
		var all, timed []string // the systems; those with a latency
		latency := series{}
		rates := make([]series, len(inFlight))
		for i, n := range inFlight {
			rates[i].name = fmt.Sprint(n, " in flight")
		}
		for _, r := range f.Runs {
			if r.Shared != part.shared {
				continue
			}
			rows, all = append(rows, r), append(all, r.System)
			if v, ok := r.median(p50); ok {
				timed = append(timed, r.System)
				latency.values = append(latency.values, v)
			}
			for i, n := range inFlight {
				v, _ := r.median(rate(n))
				rates[i].values = append(rates[i].values, v)
			}
		}
		if len(rows) == 0 {
			continue
		}
		var err error
		if images[part.name+"latency"], err = bars("A call of 64 bytes "+part.are+", median time",
			"microseconds; less is better", timed, []series{latency}); err != nil {
			return nil, "", err
		}
		if images[part.name+"rate"], err = bars("Calls of 64 bytes "+part.are,
			"calls/s; more is better", all, rates); err != nil {
			return nil, "", err
		}
		text += callsTable(rows) + "\n"
	}
	return images, text, nil
}

// headline lists the systems in the README's figures: the API that the README teaches and its
// counterparts in other systems.
var headline = []string{"quicksilver, sm, typed", "quicksilver, tcp, typed", "quicksilver, udp, typed", "net/rpc, tcp", "drpc, tcp", "grpc-go, tcp"}

// short draws the rates of the systems in headline and returns a table of their figures.
func short(f *file) (map[string][]byte, string, error) {
	one, many := series{name: "1 in flight"}, series{name: "64 in flight"}
	text := "|calls of 64 bytes|median latency of one call alone, us|calls a second, 64 goroutines|\n|---|---:|---:|\n"
	for _, system := range headline {
		at := slices.IndexFunc(f.Runs, func(r *run) bool { return r.System == system })
		if at < 0 {
			return nil, "", fmt.Errorf("no run of %q", system)
		}
		latency, ok := f.Runs[at].median(p50)
		single, also := f.Runs[at].median(rate(1))
		busy, too := f.Runs[at].median(rate(64))
		if !ok || !also || !too {
			return nil, "", fmt.Errorf("the run of %q lacks a figure", system)
		}
		one.values, many.values = append(one.values, single), append(many.values, busy)
		text += fmt.Sprintf("|%s|%s|%s|\n", system, number(latency), number(busy))
	}
	image, err := bars("Typed calls of 64 bytes on one machine, loopback", "calls/s; more is better", headline, []series{one, many})
	return map[string][]byte{"typed": image}, text, err
}

// bodies returns a table of the rates of calls with large bodies, by size and number in flight.
func bodies(f *file) (map[string][]byte, string, error) {
	var sizes []int64
	var systems []string
	at := map[string]map[int64]*run{}
	for _, r := range f.Runs {
		size, ok := r.number("-size ")
		if !ok {
			return nil, "", fmt.Errorf("%s: no -size", r.Command)
		}
		if !slices.Contains(sizes, size) {
			sizes = append(sizes, size)
		}
		if at[r.System] == nil {
			systems, at[r.System] = append(systems, r.System), map[int64]*run{}
		}
		at[r.System][size] = r
	}
	flights := []int{1, 3, 16}
	table, line := "|calls/s", "\n|---"
	for _, size := range sizes {
		for _, n := range flights {
			table += fmt.Sprintf("|%s, %d", sizeName(size), n)
			line += "|---:"
		}
	}
	table += "|" + line + "|\n"
	for _, s := range systems {
		table += "|" + s
		for _, size := range sizes {
			for _, n := range flights {
				if r := at[s][size]; r != nil {
					table += cell(r.spread(rate(n)))
				} else {
					table += "|"
				}
			}
		}
		table += "|\n"
	}
	return nil, table, nil
}

// A column holds what is printed by a name.
type column struct{ title, name string }

// plain returns what draws a table of columns with a row for each system, and no plot. Columns that no run has a figure for are left out.
func plain(all ...column) func(*file) (map[string][]byte, string, error) {
	return func(f *file) (map[string][]byte, string, error) {
		columns := slices.DeleteFunc(slices.Clone(all), func(c column) bool {
			return !slices.ContainsFunc(f.Runs, func(r *run) bool {
				_, ok := r.spread(named(c.name))
				return ok
			})
		})
		head, line, rows := "|", "\n|---", ""
		for _, c := range columns {
			head, line = head+"|"+c.title, line+"|---:"
		}
		for _, r := range f.Runs {
			rows += "|" + r.System
			for _, c := range columns {
				rows += cell(r.spread(named(c.name)))
			}
			rows += "|\n"
		}
		return nil, head + "|" + line + "|\n" + rows, nil
	}
}

func callsTable(rows []*run) string {
	var b strings.Builder
	b.WriteString("||p50, us|calls/s, 1 in flight|16|64|bulk, MiB/s|\n|---|---:|---:|---:|---:|---:|\n")
	for _, r := range rows {
		b.WriteString("|" + r.System + cell(r.spread(p50)))
		for _, n := range inFlight {
			b.WriteString(cell(r.spread(rate(n))))
		}
		b.WriteString(cell(r.spread(bulk)) + "|\n")
	}
	return b.String()
}

// uneven marks a figure whose rounds differ by more than twofold; the page says what that means.
const uneven = "\\*"

// cell is a figure, with its least and most if there are rounds that differ.
func cell(s spread, ok bool) string {
	mark := ""
	switch {
	case !ok:
		return "|"
	case number(s.least) == number(s.most):
		return "|" + number(s.median)
	case s.most > 2*s.least:
		mark = uneven
	}
	return fmt.Sprintf("|%s (%s–%s)%s", number(s.median), number(s.least), number(s.most), mark)
}

// ladder draws the latency of calls over the size of their input.
func ladder(f *file) (map[string][]byte, string, error) {
	return bySize(f, "ladder", "Latency by size: median time of a call, one in flight", "microseconds; less is better", "us",
		[]int64{64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20})
}

// bandwidth draws the throughput of transfers over their size.
func bandwidth(f *file) (map[string][]byte, string, error) {
	return bySize(f, "bulk", "Bulk: the target pushes, one transfer after the other", "MiB/s; more is better", "MiB/s",
		[]int64{4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20})
}

// bySize draws a line for each system, and a table of columns, the first of which is the smallest size that is drawn. Runs with one bulk transfer each, of a system that has no
// table of its own, are points of one line: the size is what their commands say.
func bySize(f *file, name, title, axis, unit string, columns []int64) (map[string][]byte, string, error) {
	var all []*series
	byName := map[string]*series{}
	figures := map[string]map[int64]spread{}
	for _, r := range f.Runs {
		s := byName[r.System]
		if s == nil {
			s = &series{name: r.System}
			byName[r.System], all = s, append(all, s)
			figures[r.System] = map[int64]spread{}
		}
		add := func(size int64, figure func(result) float64) {
			if v, ok := r.spread(figure); ok {
				s.sizes, s.values = append(s.sizes, size), append(s.values, v.median)
				figures[r.System][size] = v
			}
		}
		for _, size := range r.sizes() {
			if size < columns[0] {
				continue
			}
			add(size, at(size))
		}
		if size, ok := r.number("-bulk "); ok && len(r.sizes()) == 0 { // the one bulk transfer that it makes
			add(size, bulk)
		}
	}
	table := "|" + unit
	for _, size := range columns {
		table += "|" + sizeName(size)
	}
	table += "|\n|---" + strings.Repeat("|---:", len(columns)) + "|\n"
	drawn := make([]series, len(all))
	for i, s := range all {
		drawn[i] = *s
		table += "|" + s.name
		for _, size := range columns {
			v, ok := figures[s.name][size]
			table += cell(v, ok)
		}
		table += "|\n"
	}
	image, err := lines(title, axis, drawn)
	return map[string][]byte{name: image}, table, err
}

// number returns the number behind a flag of r's command.
func (r *run) number(flag string) (n int64, ok bool) {
	_, after, ok := strings.Cut(r.Command, flag)
	if !ok {
		return 0, false
	}
	_, err := fmt.Sscan(after, &n)
	return n, err == nil
}
