package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// page returns what is made of docs/bench below the folder docs: the plots, and the pages with their tables, by path.
func page(docs string) (map[string][]byte, error) {
	made := map[string][]byte{}
	for _, table := range []struct {
		page, name, file string
		draw             func(*file) (map[string][]byte, string, error)
	}{
		{"BENCHMARKS.md", "calls", "calls.json", calls},
		{"BENCHMARKS.md", "ladder", "ladder.json", ladder},
		{"BENCHMARKS.md", "bulk", "bulk.json", bandwidth},
		{"MERCURY.md", "mercury", "calls.json", mercury},
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
		if made[name], err = replace(made[name], table.name, text+f.source(table.file)); err != nil {
			return nil, fmt.Errorf("%s: %w", table.page, err)
		}
	}
	return made, nil
}

// source says where the figures of f are from.
func (f *file) source(name string) string {
	return fmt.Sprintf("\nMedians of %d rounds at %s, %s; every round and every command is in [%s](bench/%[4]s).\n",
		len(f.Runs[0].Rounds), f.Commit, f.Date, name)
}

// replace puts table between the comments that name it.
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

// calls draws the latency and the rates of all systems.
func calls(f *file) (map[string][]byte, string, error) {
	var all, timed []string // the systems; those with a latency
	latency := series{}
	rates := make([]series, len(inFlight))
	for i, n := range inFlight {
		rates[i].name = fmt.Sprint(n, " in flight")
	}
	for _, r := range f.Runs {
		all = append(all, r.System)
		if v, ok := r.median(p50); ok {
			timed = append(timed, r.System)
			latency.values = append(latency.values, v)
		}
		for i, n := range inFlight {
			v, _ := r.median(rate(n))
			rates[i].values = append(rates[i].values, v)
		}
	}
	images := map[string][]byte{}
	var err error
	if images["latency"], err = bars("Latency: median time of a call, 64 bytes, one in flight",
		"microseconds; less is better", timed, []series{latency}); err != nil {
		return nil, "", err
	}
	images["rate"], err = bars("Rate: calls of 64 bytes with 1, 16 and 64 in flight", "calls/s; more is better", all, rates)
	return images, callsTable(f.Runs), err
}

// mercury returns the rows of Mercury and of the transports beside it.
func mercury(f *file) (map[string][]byte, string, error) {
	var rows []*run
	for _, system := range []string{"quicksilver, sm", "Mercury, sm, polling", "quicksilver, tcp", "Mercury, tcp, polling"} {
		i := slices.IndexFunc(f.Runs, func(r *run) bool { return r.System == system })
		if i < 0 {
			return nil, "", fmt.Errorf("no run of %q", system)
		}
		rows = append(rows, f.Runs[i])
	}
	return nil, callsTable(rows), nil
}

func callsTable(rows []*run) string {
	var b strings.Builder
	b.WriteString("||p50, us|calls/s, 1 in flight|16|64|bulk, MiB/s|\n|---|---:|---:|---:|---:|---:|\n")
	for _, r := range rows {
		b.WriteString("|" + r.System + cell(r.median(p50)))
		for _, n := range inFlight {
			b.WriteString(cell(r.median(rate(n))))
		}
		b.WriteString(cell(r.median(bulk)) + "|\n")
	}
	return b.String()
}

func cell(v float64, ok bool) string {
	if !ok {
		return "|"
	}
	return "|" + number(v)
}

// ladder draws the latency of calls over the size of their input.
func ladder(f *file) (map[string][]byte, string, error) {
	return bySize(f, "ladder", "Latency by size: median time of a call, one in flight", "microseconds; less is better", "us",
		[]int64{64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20})
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
	figures := map[string]map[int64]float64{}
	for _, r := range f.Runs {
		s := byName[r.System]
		if s == nil {
			s = &series{name: r.System}
			byName[r.System], all = s, append(all, s)
			figures[r.System] = map[int64]float64{}
		}
		for _, size := range r.sizes() {
			if size < columns[0] {
				continue
			}
			if v, ok := r.median(at(size)); ok {
				s.sizes, s.values = append(s.sizes, size), append(s.values, v)
			}
		}
		if size, ok := r.bulkSize(); ok {
			if v, ok := r.median(bulk); ok {
				s.sizes, s.values = append(s.sizes, size), append(s.values, v)
			}
		}
		for i, size := range s.sizes {
			figures[r.System][size] = s.values[i]
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

// bulkSize returns the size of the one bulk transfer that r's command makes.
func (r *run) bulkSize() (size int64, ok bool) {
	_, after, ok := strings.Cut(r.Command, "-bulk ")
	if !ok || len(r.sizes()) > 0 {
		return 0, false
	}
	_, err := fmt.Sscan(after, &size)
	return size, err == nil
}
